"""Arrow streams over loopback: servers that stall, cut the connection at any byte, or never answer."""

from __future__ import annotations

import http.server
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.adaptive.arrivals.events import Arrived
from millrace.adaptive.arrivals.ipc_sources import ipc_http, ipc_socket
from millrace.adaptive.arrivals.live import LiveArrivals
from millrace.adaptive.join import StreamJoin
from millrace.core.errors import ConfigError, SourceError

BATCHES = [
    pa.record_batch({"n": np.arange(i * 50, i * 50 + 50), "t": [f"row {j}" for j in range(50)]}) for i in range(6)
]
_PATIENCE = 20.0


def stream(batches: list[pa.RecordBatch]) -> tuple[bytes, list[int]]:
    """An Arrow stream, and where in it each batch ends."""
    sink = pa.BufferOutputStream()
    ends = []
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            ends.append(sink.tell())
    return sink.getvalue().to_pybytes(), ends


WHOLE, ENDS = stream(BATCHES)


@contextmanager
def server(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that talks to one client; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, suppress(ConnectionError):  # a client may leave early
                talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            with socket.socket() as knock:  # wakes a server that nobody has called
                knock.connect_ex(listening.getsockname())
            thread.join(_PATIENCE)
            assert not thread.is_alive()


def haltingly(data: bytes, seed: int) -> Callable[[socket.socket], None]:
    """Send data in random pieces, with random stalls between them."""
    rng = random.Random(seed)

    def talk(connection: socket.socket) -> None:
        start = 0
        while start < len(data):
            end = start + rng.choice([1, 3, 100, 1000])
            connection.sendall(data[start:end])
            time.sleep(rng.choice([0, 0, 0, 0.001, 0.005]))
            start = end

    return talk


@pytest.mark.parametrize("seed", range(3))
def test_a_server_that_stalls_at_random(seed: int) -> None:
    with server(haltingly(WHOLE, seed)) as port:
        assert list(ipc_socket("127.0.0.1", port, timeout=_PATIENCE)) == BATCHES


def test_a_stream_of_nothing_has_columns() -> None:
    """A join can fill them with nulls."""
    empty = pa.BufferOutputStream()
    pa.ipc.new_stream(empty, BATCHES[0].schema).close()
    with server(lambda connection: connection.sendall(empty.getvalue())) as port:
        join = StreamJoin(on="n", how="left", memory="1MB")
        left = pa.record_batch({"n": [1, 2]})
        out = pa.Table.from_batches(join.run(left=[left], right=ipc_socket("127.0.0.1", port, timeout=_PATIENCE)))
    assert out.sort_by("n").to_pydict() == {"n": [1, 2], "t": [None, None]}


@pytest.mark.parametrize("at", [0, 3, 4, 60, *(end + off for end in ENDS[1::2] for off in (-9, 0, 7)), len(WHOLE) - 1])
def test_a_connection_that_is_cut(at: int) -> None:
    whole = sum(end <= at for end in ENDS)
    came = []
    with server(lambda connection: connection.sendall(WHOLE[:at])) as port:
        source = iter(ipc_socket("127.0.0.1", port, timeout=_PATIENCE))
        with pytest.raises(SourceError) as raised:
            came += list(source)
        assert str(raised.value) == (
            f"ipc_socket(127.0.0.1:{port}): the connection was cut before the end of the stream, "
            f"after {whole * 50} tuples in {whole} batches ({at} bytes)"
        )
        assert (raised.value.tuples, raised.value.batches) == (whole * 50, whole)


def test_a_server_that_dies_is_noticed_by_the_join() -> None:
    with server(haltingly(WHOLE, 1)) as good, server(lambda connection: connection.sendall(WHOLE[: ENDS[3]])) as bad:
        inputs = {"good": ipc_socket("127.0.0.1", good), "bad": ipc_socket("127.0.0.1", bad)}
        came: list[int] = []
        with LiveArrivals(inputs) as arrivals, pytest.raises(SourceError) as raised:
            came.extend(event.batch.num_rows for event in arrivals if isinstance(event, Arrived))
    assert (raised.value.source, raised.value.tuples, raised.value.batches) == ("bad", 200, 4)
    assert "input 'bad' failed after 200 tuples in 4 batches: ipc_socket(" in str(raised.value)


def test_two_stalling_servers_side_by_side() -> None:
    with server(haltingly(WHOLE, 5)) as one, server(haltingly(WHOLE, 6)) as other:
        got: dict[str, list[int]] = {"one": [], "other": []}
        inputs = {"one": ipc_socket("127.0.0.1", one), "other": ipc_socket("127.0.0.1", other)}
        with LiveArrivals(inputs, wait=0.002, buffer=2000) as arrivals:
            for event in arrivals:
                if isinstance(event, Arrived):
                    got[event.input] += event.batch["n"].to_pylist()
    assert got == {"one": list(range(300)), "other": list(range(300))}


def test_a_server_that_falls_silent() -> None:
    done = threading.Event()

    def talk(connection: socket.socket) -> None:
        connection.sendall(WHOLE[: ENDS[0]])
        done.wait(_PATIENCE)

    with server(talk) as port:
        with pytest.raises(SourceError, match=r"no data arrived for 0\.05 s, after 50 tuples in 1 batches") as raised:
            list(ipc_socket("127.0.0.1", port, timeout=0.05))
        assert isinstance(raised.value.__cause__, TimeoutError)
        done.set()


def test_close_ends_a_read_that_blocks() -> None:
    done = threading.Event()

    def talk(connection: socket.socket) -> None:
        connection.sendall(WHOLE[: ENDS[0]])
        done.wait(_PATIENCE)

    with server(talk) as port:
        arrivals = LiveArrivals({"slow": ipc_socket("127.0.0.1", port, timeout=_PATIENCE)}, wait=0.001)
        while not isinstance(next(arrivals), Arrived):
            pass
        arrivals.close()
        assert arrivals.abandoned == ()
        done.set()


def test_a_cancelled_source_is_not_read_again() -> None:
    with server(lambda connection: None) as port:
        source = ipc_socket("127.0.0.1", port)
        source.cancel()
        with pytest.raises(SourceError, match=rf"ipc_socket\(127.0.0.1:{port}\): reading was cancelled"):
            list(source)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"220 mail.example ESMTP\r\n" * 9, "it begins with b'220 '"),
        (b"\xff" * 4 + b"\x10\0\0\0" + b"rubbish " * 9, ""),
    ],
)
def test_what_is_no_arrow_stream(sent: bytes, said: str) -> None:
    message = f"expected an Arrow IPC stream; {said}"
    with server(lambda connection: connection.sendall(sent)) as port, pytest.raises(SourceError, match=message):
        list(ipc_socket("127.0.0.1", port))


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(SourceError, match=r"could not be opened: .*refused"):
            list(ipc_socket("127.0.0.1", port))


# HTTP


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        getattr(self, "do_" + self.path.strip("/").partition("?")[0])()
        self.close_connection = True

    def begin(self, status: int, **headers: Any) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def do_whole(self) -> None:
        self.begin(200, Content_Length=len(WHOLE))
        haltingly(WHOLE, 2)(self.connection)

    def do_chunked(self) -> None:
        self.begin(200, Transfer_Encoding="chunked")
        for start in range(0, len(WHOLE), 777):
            piece = WHOLE[start : start + 777]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def do_cut(self) -> None:
        self.begin(200, Content_Length=len(WHOLE))
        self.wfile.write(WHOLE[: ENDS[1]])

    def do_cutchunk(self) -> None:
        self.begin(200, Transfer_Encoding="chunked")
        self.wfile.write(b"%x\r\n%s" % (ENDS[2], WHOLE[: ENDS[2] - 5]))

    def do_moved(self) -> None:
        self.begin(302, Location="/whole", Content_Length=0)

    def do_round(self) -> None:
        self.begin(302, Location="/round", Content_Length=0)

    def do_secret(self) -> None:
        known = self.headers["Authorization"] == "Bearer abc"
        self.begin(200 if known else 403, Content_Length=len(WHOLE) if known else 0)
        if known:
            self.wfile.write(WHOLE)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["whole", "chunked", "moved", "whole?x=1"])
def test_streams_over_http(address: str, path: str) -> None:
    source = ipc_http(f"{address}/{path}", timeout=_PATIENCE)
    assert list(source) == BATCHES
    assert list(source) == BATCHES, "each time anew"


def test_http_with_headers(address: str) -> None:
    assert list(ipc_http(f"{address}/secret", headers={"Authorization": "Bearer abc"})) == BATCHES
    with pytest.raises(SourceError, match=r"ipc_http\(.*/secret\): expected status 200; got 403 Forbidden"):
        list(ipc_http(f"{address}/secret"))


@pytest.mark.parametrize(("path", "whole"), [("cut", 2), ("cutchunk", 2)])
def test_http_that_is_cut(address: str, path: str, whole: int) -> None:
    message = f"/{path}.*: the connection was cut before the end of the stream, after {whole * 50} tuples in {whole} "
    with pytest.raises(SourceError, match=message):
        list(ipc_http(f"{address}/{path}"))


def test_http_that_goes_round_in_circles(address: str) -> None:
    with pytest.raises(SourceError, match=r"redirected more than 5 times, last to .*/round"):
        list(ipc_http(f"{address}/round"))


@pytest.mark.parametrize("url", ["ftp://a/b", "nothing", "http://"])
def test_bad_addresses(url: str) -> None:
    with pytest.raises(ConfigError, match="url: expected an http or https address; got"):
        ipc_http(url)


def test_bad_timeouts() -> None:
    with pytest.raises(ConfigError, match="timeout: expected a finite number of seconds above 0; got 0"):
        ipc_socket("localhost", 1, timeout=0)
