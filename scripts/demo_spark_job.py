"""A streaming job for the demo and the tests: copies records from Kafka to a file, with its offsets in a group.

The job appends each batch to ``--output`` as one line of JSON: its number and its records. If ``--checkpoint`` is an
empty directory, the job begins at the group's offsets. ``--die-in BATCH`` kills the driver and its JVM (SIGKILL) in
that batch, after its output and before Spark or the group records it. ``--until N`` ends the job when the sum of the
group's offsets reaches N.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from offsetmgr import open_store
from offsetmgr.core.model import Committed
from offsetmgr.spark import OffsetCommitter, reader_from_group, session


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", action="append", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--die-in", type=int)
    parser.add_argument("--until", type=int)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 1, "spark.log.level": "ERROR",
    }  # fmt: skip
    spark = session("offsetmgr-demo", master="local[2]", **settings)
    committing = open_store(f"kafka://{options.bootstrap_server}")
    reading = open_store(f"kafka://{options.bootstrap_server}")
    committer = OffsetCommitter(committing, options.group)

    def write(frame: Any, batch: int) -> None:
        rows = frame.select("topic", "partition", "offset", frame.value.cast("string").alias("value")).collect()
        with options.output.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"batch": batch, "records": [list(row) for row in rows]}) + "\n")
            out.flush()
            os.fsync(out.fileno())
        if batch == options.die_in:
            os.killpg(0, signal.SIGKILL)

    reader = reader_from_group(
        spark,
        reading,
        options.group,
        options.topic,
        bootstrap=options.bootstrap_server,
        maxOffsetsPerTrigger=options.batch_size,
    )
    with committer:
        query = (
            reader.load()
            .writeStream.foreachBatch(committer.committed_first(write))
            .option("checkpointLocation", options.checkpoint)
            .queryName("demo")
            .start()
        )
        while not query.awaitTermination(0.2):  # type: ignore[arg-type]  # py4j passes the fraction on
            committed = [c.offset for c in reading.fetch(options.group).values() if isinstance(c, Committed)]
            if options.until and sum(committed) >= options.until:
                query.stop()
    committing.close()
    reading.close()
    spark.stop()


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"the job ended after {time.monotonic() - started:.0f} s")
