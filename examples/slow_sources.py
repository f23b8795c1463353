"""Two web servers that stall at random, joined while they send: results come long before the inputs have ended."""

from __future__ import annotations

import http.server
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

import millrace as mr
from millrace.adaptive.arrivals.ipc_sources import ipc_http

ROWS, BATCH = 6_000, 100


def table(name: str, seed: int) -> pa.Table:
    keys = np.random.default_rng(seed).integers(0, 2_000, ROWS)
    return pa.table({"key": keys, name: np.arange(ROWS), f"{name}_note": [f"{name} {i:060}" for i in range(ROWS)]})


@contextmanager
def slow_server(whole: pa.Table, seed: int) -> Iterator[str]:
    """Run a server that sends a table as an Arrow IPC stream, with stalls, and yield its address."""

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            stalls = random.Random(seed)
            with pa.ipc.new_stream(self.wfile, whole.schema) as stream:
                for batch in whole.to_batches(max_chunksize=BATCH):
                    stream.write_batch(batch)
                    time.sleep(0.25 if stalls.random() < 0.15 else 0.005)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


def main() -> None:
    left, right = table("order", 1), table("payment", 2)
    with slow_server(left, 3) as orders, slow_server(right, 4) as payments:
        join = mr.StreamJoin(on="key", memory="300kB")  # about a quarter of the size of the inputs
        out = pa.Table.from_batches(join.run(left=ipc_http(orders), right=ipc_http(payments)))

    m = join.metrics
    print(f"first results after {m.over_time[0][0]:.2f} s; both inputs had ended after {m.online_seconds:.2f} s")
    print(f"{m.rows_online:,} of {m.rows_out:,} results came before that, {m.rows_reactive:,} of them in silence")
    print(f"{m.spilled_rows:,} rows were on disk in between; at most {m.peak_bytes:,} bytes of memory were used")

    exact = left.select(["key", "order"]).join(right.select(["key", "payment"]), "key", join_type="inner")
    order = [("order", "ascending"), ("payment", "ascending")]
    assert out.select(["key", "order", "payment"]).sort_by(order) == exact.sort_by(order)
    print(f"and the {len(exact):,} results are exactly the join")


if __name__ == "__main__":
    main()
