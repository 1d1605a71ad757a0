"""A process of a Spark job on periods that can kill or freeze itself after a step.

Argument: a JSON object with ``bootstrap``, ``zookeeper``, ``name`` (root and group), ``topic``, ``output``, ``log``
(one line per step: process, period, step), ``first_ms``, ``length_ms``, ``until_ms`` and optionally ``fault``: a step,
the number of its period, and the signal that the process sends to itself and its JVM after that step.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from offsetmgr.period import Period, PeriodSchedule
from offsetmgr.spark import Coordination, JobSettings, PeriodRules, PeriodStep, run_periods, session
from offsetmgr.stores.kafka import KafkaStore

Row = tuple[str, int, int, str]


def write(rows: Any, task: Any) -> None:
    chosen = rows.selectExpr("topic", "partition", "offset", "cast(value as string) as value")
    chosen.coalesce(1).write.json(task.output)


def rows_in(directory: Path) -> list[Row]:
    assert (directory / "_SUCCESS").exists()
    lines = [json.loads(line) for part in directory.glob("part-*.json") for line in part.read_text().splitlines()]
    return sorted((row["topic"], row["partition"], row["offset"], row["value"]) for row in lines)


def main(arguments: dict[str, Any]) -> None:
    log = os.open(arguments["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    fault = arguments.get("fault")

    def log_step(step: PeriodStep, period: Period) -> None:
        os.write(log, f"{os.getpid()} {period.number} {step.name}\n".encode())
        if fault is not None and [step.name, period.number] == fault[:2]:
            os.killpg(0, fault[2])

    settings: dict[str, Any] = {
        "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 2, "spark.log.level": "ERROR",
    }  # fmt: skip
    spark = session("offsetmgr-period-job", master="local[2]", **settings)
    with KafkaStore(arguments["bootstrap"]) as store:
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
                on_step=log_step,
            ),
        )
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
