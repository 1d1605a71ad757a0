"""Consumes a topic with kafka-python or aiokafka, and prints the lines of RunningConsumer.java: each record ("R
partition offset milliseconds"), each assigned partition ("A partition 0 milliseconds") and each error ("E message").

Arguments: the package, the topic, how to commit (auto, sync or explicit), the milliseconds of work for each batch, and
settings of the consumer as NAME=VALUE.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

BATCH = 20
POLL_MS = 10_000
"""The longest poll without a record. kafka-python 3.0 drops the result of a join that ends between two polls, and joins
again, so that members of a group that poll briefly on a busy machine keep each other from consuming."""


def report(kind: str, partition: int, offset: int) -> None:
    sys.stdout.write(f"{kind} {partition} {offset} {time.time() * 1000:.0f}\n")
    sys.stdout.flush()


def report_error(error: BaseException) -> None:
    sys.stdout.write(f"E {' '.join(repr(error).split())}\n")
    sys.stdout.flush()


def batch_offsets(batches: dict[Any, list[Any]]) -> dict[Any, int]:
    """Reports the records of a poll. Returns the next offset of each partition."""
    offsets: dict[Any, int] = {}
    for tp, records in batches.items():
        for record in records:
            report("R", record.partition, record.offset)
            offsets[tp] = record.offset + 1
    return offsets


def kafka_python(topic: str, commit: str, work_s: float, settings: dict[str, Any]) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            for tp in assigned:
                report("A", tp.partition, 0)

        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

    consumer = KafkaConsumer(**settings)
    consumer.subscribe([topic], listener=Listener())
    while True:
        try:
            offsets = batch_offsets(consumer.poll(timeout_ms=POLL_MS, max_records=BATCH))
            if not offsets:
                continue
            time.sleep(work_s)
            if commit == "explicit":
                consumer.commit({tp: OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()})
            elif commit == "sync":
                consumer.commit()
        except Exception as error:
            report_error(error)


async def aiokafka(topic: str, commit: str, work_s: float, settings: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_assigned(self, assigned: Any) -> None:
            for tp in assigned:
                report("A", tp.partition, 0)

        async def on_partitions_revoked(self, revoked: Any) -> None:
            pass

    consumer = AIOKafkaConsumer(**settings)
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while True:
        try:
            offsets = batch_offsets(await consumer.getmany(timeout_ms=100, max_records=BATCH))
            if not offsets:
                continue
            await asyncio.sleep(work_s)
            if commit == "explicit":
                await consumer.commit(offsets)
            elif commit == "sync":
                await consumer.commit()
        except Exception as error:
            report_error(error)


def main(package: str, topic: str, commit: str, work_ms: str, *given: str) -> None:
    settings: dict[str, Any] = dict(setting.split("=", 1) for setting in given)
    settings |= {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": commit == "auto",
        "auto_commit_interval_ms": 500,
    }
    work_s = int(work_ms) / 1000
    if package == "aiokafka":
        asyncio.run(aiokafka(topic, commit, work_s, settings))
    else:
        kafka_python(topic, commit, work_s, settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
