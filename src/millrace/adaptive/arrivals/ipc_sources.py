"""Sources on slow networks: Arrow IPC streams from a socket or over HTTP, as iterables of record batches.

A stream is complete only with Arrow's end-of-stream marker. A connection that ends without the marker was cut, even if
it ended between two batches. Reading it raises an error, which says how much had been read.
"""

from __future__ import annotations

import http.client
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import BinaryIO, cast
from urllib.parse import urljoin, urlsplit

import pyarrow as pa

from millrace.core.errors import ConfigError, SourceError

_BEGINNING = b"\xff\xff\xff\xff"  # the first bytes of every message since Arrow 0.15
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5


def ipc_socket(host: str, port: int, *, timeout: float = 60.0) -> IpcSource:
    """Return a source of record batches: an Arrow IPC stream that a server sends to every client that connects.

    Parameters
    ----------
    host, port
        Address of the server.
    timeout
        Seconds to wait for the connection, and for each further piece of the stream.
    """
    return _SocketSource(host, port, timeout)


def ipc_http(url: str, *, timeout: float = 60.0, headers: Mapping[str, str] | None = None) -> IpcSource:
    """Return a source of record batches: an Arrow IPC stream that is the body of the response to a GET request.

    Parameters
    ----------
    url
        An ``http`` or ``https`` address. Redirects are followed.
    timeout
        Seconds to wait for the connection, the response, and each further piece of the stream.
    headers
        Additional request headers, such as ``Authorization``. They are not sent if a redirect leads to another host,
        port or scheme.
    """
    return _HttpSource(url, timeout, headers or {})


class IpcSource(ABC):
    """An Arrow IPC stream, which is opened each time it is iterated over.

    Failures raise a :class:`SourceError`. :meth:`cancel` ends a read in progress, and may be called from any thread.
    """

    def __init__(self, name: str, timeout: float) -> None:
        if not 0 < timeout < float("inf"):
            raise ConfigError(f"timeout: expected a finite number of seconds above 0; got {timeout!r}")
        self.name = name
        self.timeout = timeout
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._cancelled = False

    def __repr__(self) -> str:
        return self.name

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        tuples = batches = 0
        body: _Body | None = None
        mine: list[socket.socket] = []
        try:
            body = _Body(self._open(mine))
            stream = pa.ipc.open_stream(body)
            for batch in stream:
                yield batch
                tuples += batch.num_rows
                batches += 1
            if not batches and not body.cut:  # an empty batch, so that the columns are known
                yield pa.RecordBatch.from_pylist([], stream.schema)
            body.check_whole()
        except SourceError:
            raise
        except Exception as error:
            how_far = f", after {tuples} tuples in {batches} batches ({body.nbytes} bytes)" if body else ""
            raise SourceError(
                f"{self.name}: {self._reason(error, body)}{how_far}", self.name, tuples, batches
            ) from error
        finally:
            if body is not None:
                body.close()
            self._forget(mine)

    def cancel(self) -> None:
        """End all reads that are in progress, and make later reads fail."""
        with self._lock:
            self._cancelled = True
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    @abstractmethod
    def _open(self, mine: list[socket.socket]) -> BinaryIO:
        """Open the byte stream. Implementations must pass every socket that they open to :meth:`_keep`."""

    def _keep(self, opened: socket.socket, mine: list[socket.socket]) -> None:
        with self._lock:
            mine.append(opened)
            self._sockets.append(opened)
            if self._cancelled:
                raise ConnectionAbortedError("cancelled")

    def _forget(self, mine: list[socket.socket]) -> None:
        with self._lock:
            for each in mine:
                self._sockets.remove(each)
                each.close()

    def _reason(self, error: Exception, body: _Body | None) -> str:
        if self._cancelled:
            return "reading was cancelled"
        if isinstance(error, TimeoutError):
            return f"no data arrived for {self.timeout:g} s"
        if body is None:
            return f"the connection could not be opened: {error}"
        if body.cut:  # whatever error Arrow raised
            return "the connection was cut before the end of the stream"
        return f"the connection broke: {error}" if body.broken else f"expected an Arrow IPC stream; {error}"


class _SocketSource(IpcSource):
    def __init__(self, host: str, port: int, timeout: float) -> None:
        super().__init__(f"ipc_socket({host}:{port})", timeout)
        self._address = (host, port)

    def _open(self, mine: list[socket.socket]) -> BinaryIO:
        opened = socket.create_connection(self._address, self.timeout)
        self._keep(opened, mine)
        return opened.makefile("rb")


class _HttpSource(IpcSource):
    def __init__(self, url: str, timeout: float, headers: Mapping[str, str]) -> None:
        super().__init__(f"ipc_http({url})", timeout)
        _host_of(url)
        self._url = url
        self._headers = dict(headers)

    def _open(self, mine: list[socket.socket]) -> BinaryIO:
        url = self._url
        for _ in range(_MOST_REDIRECTS + 1):
            answer = self._get(url, mine)
            if answer.status in _REDIRECTS and answer.getheader("Location"):
                url = urljoin(url, answer.getheader("Location"))
                answer.close()
                continue
            if answer.status != http.client.OK:
                raise SourceError(f"{self.name}: expected status 200; got {answer.status} {answer.reason}", self.name)
            return cast(BinaryIO, answer)
        raise SourceError(f"{self.name}: redirected more than {_MOST_REDIRECTS} times, last to {url}", self.name)

    def _get(self, url: str, mine: list[socket.socket]) -> http.client.HTTPResponse:
        scheme, host = _host_of(url)
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        connection = kind(host, timeout=self.timeout)
        connection.connect()
        self._keep(connection.sock, mine)
        parts = urlsplit(url)
        headers = self._headers if (scheme, host) == _host_of(self._url) else {}
        connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), headers=headers)
        return connection.getresponse()


def _host_of(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"url: expected an http or https address; got {url!r}")
    return parts.scheme, parts.netloc.rpartition("@")[2]


class _Body:
    """A file-like object that Arrow reads from; it records whether the stream ended too early.

    Arrow reads no further than the end-of-stream marker, so a read that returns fewer bytes than requested means that
    the marker was missing.
    """

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.nbytes = 0
        self.cut = self.broken = False

    def read(self, nbytes: int) -> bytes:
        pieces = []
        while nbytes > 0:
            try:
                piece = self._file.read(nbytes)
            except Exception as error:
                self.cut = isinstance(error, http.client.IncompleteRead)
                self.broken = True
                raise
            if not piece:
                self.cut = True
                break
            pieces.append(piece)
            nbytes -= len(piece)
        whole = b"".join(pieces)
        if self.nbytes == 0 and not _BEGINNING.startswith(whole[:4]):
            raise pa.ArrowInvalid(f"it begins with {whole[:4]!r}")  # as a length, it might be gigabytes
        self.nbytes += len(whole)
        return whole

    def check_whole(self) -> None:
        if self.cut:
            raise EOFError("no end-of-stream marker")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
