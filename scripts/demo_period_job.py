"""One application of `demo_periods`: a Spark job that processes three periods of one topic, in step with others.

It appends each step of each period to ``--steps`` as a line of JSON, with the time of a clock that all processes of
this machine share.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from offsetmgr import open_store
from offsetmgr.period.schedule import Period, PeriodSchedule
from offsetmgr.spark import Coordination, JobSettings, PeriodRules, PeriodStep, run_periods, session


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--zookeeper", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--together", nargs="+", required=True)
    parser.add_argument("--first-ms", type=int, required=True)
    parser.add_argument("--length-ms", type=int, required=True)
    parser.add_argument("--periods", type=int, required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=Path, required=True)
    return parser.parse_args()


def write(rows: Any, task: Any) -> None:
    """The job itself: writes a period's records into the directory of this attempt."""
    chosen = rows.selectExpr("topic", "partition", "offset", "cast(value as string) as value")
    chosen.coalesce(1).write.json(task.output)


def main() -> None:
    options = arguments()
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 1, "spark.log.level": "ERROR",
    }  # fmt: skip
    spark = session(f"demo-{options.topic}", master="local[2]", **settings)

    def record_step(step: PeriodStep, period: Period) -> None:
        line = {"at": time.monotonic_ns(), "topic": options.topic, "period": period.number, "step": step.name}
        with options.steps.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")

    with open_store(f"kafka://{options.bootstrap_server}") as store:
        done = run_periods(
            spark,
            [options.topic],
            PeriodSchedule(options.first_ms, options.length_ms),
            write,
            store,
            f"{options.topic}-hourly",
            Coordination(options.zookeeper, options.root, options.topic, options.together),
            JobSettings(
                bootstrap=options.bootstrap_server,
                output=options.output,
                rules=PeriodRules(grace_ms=1_000),
                until_ms=options.first_ms + options.periods * options.length_ms,
                on_step=record_step,
            ),
        )
    spark.stop()
    print(f"{done} periods done")


if __name__ == "__main__":
    main()
