"""A query in a process of its own, made to be killed: ``python crashing_query.py ROOT MODE [SPARK-MASTER]``.

It enriches the files of ROOT/in with the store ROOT/store into ROOT/out, one file to a micro-batch, goes on from its
checkpoint when it is started again, and writes ROOT/done when all is over. In the modes of ``stream_joins`` it joins
the files of ROOT/left, ROOT/right and ROOT/third.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import stream_joins
from streams import finished, streamed

from millrace.spark import enrich, session
from millrace.spark.session import JAVA


def main(root: Path, mode: str, master: str = "local[2,8]") -> None:
    spark = session(
        "crashing",
        master=master,
        spark__sql__shuffle__partitions=2,
        spark__driver__memory="1g",
        spark__executor__cores=1,
        spark__executor__memory="700m",
        spark__driver__host="127.0.0.1",
        spark__driver__bindAddress="127.0.0.1",
        # for a Java that does not live long
        spark__driver__extraJavaOptions=f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {JAVA}",
    )
    spark.sparkContext.setLogLevel("OFF")
    if mode in stream_joins.MODES:
        out = stream_joins.query(spark, root, mode)
    else:
        out = enrich(
            streamed(spark, root / "in"),
            root / "store",
            on="key",
            how="left",
            algorithm="ssbj",
            memory="2MB",
            pending=mode,
            scratch=root / "soft",
        )
    writer = out.writeStream.format("parquet").option("path", str(root / "out"))
    writer = writer.option("checkpointLocation", str(root / "check"))
    if mode != "carry":
        writer.trigger(availableNow=True).start().awaitTermination()
    else:
        query = writer.trigger(processingTime="20 milliseconds").start()
        files = len(list((root / "in").glob("*.parquet")))
        quiet = 0
        while quiet < 30:  # all files are in the checkpoint, and nobody has waited for a while
            time.sleep(0.1)
            error = query.exception()
            if error is not None:
                raise error
            committed = len(list((root / "check" / "sources" / "0").glob("[0-9]*"))) >= files
            quiet = quiet + 1 if committed and query.recentProgress and finished(query, 0) else 0
        query.stop()
    (root / "done").write_text("")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
