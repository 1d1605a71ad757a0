"""A chapter of `scripts/demo spark`: two Spark applications process three periods of two topics, in step.

Each application is a process that runs `demo_period_job.py`. The demo starts the second one when the first has finished
a period, to show that the first one waits.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from demo_stage import chapter, check, create_topics, offsetmgr, say, script

from offsetmgr.spark import published_outputs

JOB: Final = Path(__file__).with_name("demo_period_job.py")
ROOT: Final = "/offsetmgr/periods/hourly"
TOPICS: Final = {"visits": 3, "purchases": 2}
"""Topics and their numbers of partitions. The demo starts the application of the first topic first."""
RECORDS: Final = {"visits": 900, "purchases": 300}
PERIODS: Final = 3
HOUR_MS: Final = 3_600_000
JOB_TIMEOUT_S: Final = 600.0

Record = tuple[str, int, int]
"""Topic, partition, offset."""


def show(bootstrap: str, zookeeper: str, directory: Path) -> None:
    chapter(
        "Two applications, two topics, three hours: no application begins an hour before all have finished the last"
    )
    first = (time.time_ns() // 1_000_000 // HOUR_MS - PERIODS) * HOUR_MS
    expected = produce(bootstrap, first)
    counts = ", ".join(f"{RECORDS[topic]} {topic} in {count} partitions" for topic, count in TOPICS.items())
    say(f"{counts}; the records are slightly out of time order")
    steps = directory / "steps.jsonl"
    steps.touch()
    early, late = TOPICS
    with ExitStack() as running:
        jobs = {
            early: running.enter_context(
                script(command(bootstrap, zookeeper, directory, early, first), directory / early)
            )
        }
        wait_for_first(steps, early, jobs[early], directory)
        say(f"the application of {early} has finished its first hour, and waits: that of {late} has not started yet")
        offsetmgr("period", "status", "--zookeeper", zookeeper, "--root", ROOT)
        status = json.loads(
            offsetmgr("period", "status", "--zookeeper", zookeeper, "--root", ROOT, "--format", "json", show=False)
        )
        check_holding(status, late)
        jobs[late] = running.enter_context(
            script(command(bootstrap, zookeeper, directory, late, first), directory / late)
        )
        for topic, job in jobs.items():
            check(
                job.wait(JOB_TIMEOUT_S) == 0, f"the application of {topic} failed:\n{(directory / topic).read_text()}"
            )
    lines = read(steps)
    in_step(lines)
    outputs(zookeeper, lines, expected)


def command(bootstrap: str, zookeeper: str, directory: Path, topic: str, first: int) -> list[str]:
    found = [str(JOB), "--bootstrap-server", bootstrap, "--zookeeper", zookeeper, "--root", ROOT, "--topic", topic]
    found += ["--together", *TOPICS, "--first-ms", str(first), "--length-ms", str(HOUR_MS), "--periods", str(PERIODS)]
    return [*found, "--output", str(directory / "periods" / topic), "--steps", str(directory / "steps.jsonl")]


def produce(bootstrap: str, first: int) -> dict[tuple[str, int], set[Record]]:
    """Produces all records, slightly out of time order. Returns them by topic and period."""
    create_topics(bootstrap, TOPICS)
    producer = Producer({"bootstrap.servers": bootstrap})
    expected: dict[tuple[str, int], set[Record]] = {}
    for topic, count in RECORDS.items():
        for n in range(count):
            at = first + min(
                PERIODS * HOUR_MS - 1, max(0, PERIODS * HOUR_MS * n // count + (n * 7919 % 241 - 120) * 1000)
            )
            partition, offset = n % TOPICS[topic], n // TOPICS[topic]
            producer.produce(topic, f"{topic} {n}", partition=partition, timestamp=at)
            expected.setdefault((topic, (at - first) // HOUR_MS), set()).add((topic, partition, offset))
    check(producer.flush(60) == 0, "not all records could be produced")
    return expected


def wait_for_first(steps: Path, topic: str, job: subprocess.Popen[bytes], directory: Path) -> None:
    deadline = time.monotonic() + JOB_TIMEOUT_S
    while not any((line["topic"], line["period"], line["step"]) == (topic, 0, "REPORTED") for line in read(steps)):
        check(job.poll() is None, f"the application of {topic} ended:\n{(directory / topic).read_text()}")
        check(time.monotonic() < deadline, f"the application of {topic} did not finish its first period")
        time.sleep(0.1)


def read(steps: Path) -> list[dict[str, Any]]:
    """The steps in time order, without an incomplete last line."""
    whole = steps.read_text(encoding="utf-8").rpartition("\n")[0]
    return sorted((json.loads(line) for line in whole.splitlines()), key=lambda line: line["at"])


def check_holding(status: Iterable[Mapping[str, Any]], topic: str) -> None:
    holding = {row["topic"] for row in status if row["state"] != "finished"}
    check(holding == {topic}, f"period status shows that {sorted(holding)} hold the period")


def in_step(lines: Iterable[Mapping[str, Any]]) -> None:
    """Ends the demo if an application began a period before all applications had finished the previous one."""
    for number in range(1, PERIODS):
        begun = [line["at"] for line in lines if (line["period"], line["step"]) == (number, "CLOSED")]
        ended = [line["at"] for line in lines if (line["period"], line["step"]) == (number - 1, "COMMITTED")]
        check(len(begun) == len(ended) == len(TOPICS), f"not every application processed period {number} exactly once")
        check(max(ended) < min(begun), f"an application began period {number} before period {number - 1} was finished")


def outputs(zookeeper: str, lines: list[dict[str, Any]], expected: Mapping[tuple[str, int], set[Record]]) -> None:
    """Prints and checks the published outputs, record by record."""
    start = lines[0]["at"]
    at = {(line["topic"], line["period"], line["step"]): (line["at"] - start) / 1e9 for line in lines}
    say("")
    say(f"{'PERIOD':<8}{'TOPIC':<12}{'RECORDS':>8}{'LOST':>6}{'TWICE':>7}   PROCESSED, IN SECONDS")
    for number in range(PERIODS):
        for topic in TOPICS:
            found = published_outputs(zookeeper, ROOT, topic)
            (output,) = [entry.output for period, entry in found.items() if period.number == number]
            rows = records(Path(output))
            right = expected[topic, number]
            lost, twice = len(right - set(rows)), sum(count > 1 for count in rows.values())
            begun, ended = at[topic, number, "CLOSED"], at[topic, number, "COMMITTED"]
            say(f"{number:<8}{topic:<12}{rows.total():>8}{lost:>6}{twice:>7}   {begun:6.1f} to {ended:.1f}")
            check(
                set(rows) == right and twice == 0,
                f"the output of period {number} of {topic} differs from the produced records",
            )
    say("every record is in its period exactly once")


def records(directory: Path) -> Counter[Record]:
    rows = [json.loads(line) for part in directory.glob("part-*.json") for line in part.read_text("utf-8").splitlines()]
    return Counter((row["topic"], row["partition"], row["offset"]) for row in rows)
