"""One process of a Spark job on periods, as the tests start it; it kills or freezes itself behind a step.

Argument: a JSON object with ``bootstrap``, ``zookeeper``, ``name`` (root and group), ``topic``, ``output``, ``log``
(one line a step: process, period, step), ``first_ms``, ``length_ms``, ``until_ms``, and perhaps ``end``: a step, the
number of its period, and the signal that this process, its JVM included, gets behind it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from offsetmgr import open_store
from offsetmgr.period.schedule import Period, PeriodSchedule
from offsetmgr.spark import Coordination, JobSettings, PeriodRules, PeriodStep, run_periods, session


def write(rows: Any, task: Any) -> None:
    chosen = rows.selectExpr("topic", "partition", "offset", "cast(value as string) as value")
    chosen.coalesce(1).write.json(task.output)


def main(arguments: dict[str, Any]) -> None:
    log = os.open(arguments["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    end = arguments.get("end")

    def told(step: PeriodStep, period: Period) -> None:
        os.write(log, f"{os.getpid()} {period.number} {step.name}\n".encode())
        if end is not None and [step.name, period.number] == end[:2]:
            os.killpg(0, end[2])

    spark = session(
        "offsetmgr-period-job",
        master="local[2]",
        **{"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 2, "spark.log.level": "ERROR"},
    )
    with open_store(f"kafka://{arguments['bootstrap']}") as store:
        run_periods(
            spark,
            [arguments["topic"]],
            PeriodSchedule(arguments["first_ms"], arguments["length_ms"]),
            write,
            store,
            arguments["name"],
            Coordination(arguments["zookeeper"], f"/{arguments['name']}", "job", session_timeout_ms=4_000),
            JobSettings(
                bootstrap=arguments["bootstrap"],
                output=arguments["output"],
                rules=PeriodRules(grace_ms=0, lateness_ms=arguments["length_ms"]),
                until_ms=arguments["until_ms"],
                on_step=told,
            ),
        )
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
