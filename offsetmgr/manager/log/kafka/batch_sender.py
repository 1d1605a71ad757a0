"""`BatchSender`: sends the batches of partition producers to the leaders, until every outcome is certain or the
deadline passes. `PartitionProducer` decides what each response means."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from offsetmgr.core.errors import OffsetMgrError, ServerError
from offsetmgr.core.retry import Backoff, Retries
from offsetmgr.kafka.client.connection import attempt_deadline
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.manager.log.kafka.leader_connections import LeaderConnection, LeaderConnections
from offsetmgr.manager.log.kafka.partition_producer import PartitionProducer, Step

_RESEND_BACKOFF: Final = Backoff(0.01, 0.25)


class BatchSender:
    """Sends batches over ``connections``."""

    def __init__(self, connections: LeaderConnections) -> None:
        self._connections = connections

    async def send(self, producers: Mapping[int, PartitionProducer], deadline: float, *, check: bool = True) -> None:
        """Sends the batch that each producer has begun. If ``check`` is False, a batch may go over a connection on
        which the producers of its partition were not checked; only batches that fence an older producer id may do so.
        Raises `LogClosed`."""
        left = dict(producers)
        retries = Retries(deadline, _RESEND_BACKOFF)
        while left:
            self._connections.check_open()
            try:
                leaders, errors = await self._connections.by_leader(left, attempt_deadline(deadline))
            except OffsetMgrError as error:
                leaders, errors = {}, dict.fromkeys(left, error)
            for number, failure in errors.items():
                left[number].on_not_sent(failure)
            sends = [
                self._send_to(leader, {number: left[number] for number in numbers}, deadline, check=check)
                for leader, numbers in leaders.items()
            ]
            if len(sends) == 1:
                await sends[0]
            else:
                await asyncio.gather(*sends)
            left = {number: producer for number, producer in left.items() if producer.batch}
            if left and not await retries.pause():
                for producer in left.values():
                    producer.on_deadline()
                return

    async def _send_to(
        self, leader: Address, producers: Mapping[int, PartitionProducer], deadline: float, *, check: bool
    ) -> None:
        """Makes one attempt to send the batches to a leader."""
        attempt = attempt_deadline(deadline)
        try:
            connection = await self._connections.connection(leader, attempt)
            if check and not connection.checked.issuperset(producers):
                await self._check_owners(connection, producers, attempt)
        except OffsetMgrError as error:
            for number, producer in producers.items():
                if producer.batch:
                    producer.on_not_sent(error)
                    self._connections.forget_leader(number)
            return
        sent = {number: producer for number, producer in producers.items() if producer.batch}
        if not sent:
            return
        try:
            results = await connection.produce({number: producer.batch for number, producer in sent.items()}, attempt)
        except OffsetMgrError as error:
            for number, producer in sent.items():
                producer.on_no_response(error)
                self._connections.forget_leader(number)
            return
        for number, producer in sent.items():
            result = results.get(number)
            if result is None:
                producer.on_no_response(_incomplete(leader))
            elif producer.on_result(result) is Step.RESEND_TO_LEADER:
                self._connections.forget_leader(number)

    async def _check_owners(
        self, connection: LeaderConnection, producers: Mapping[int, PartitionProducer], deadline: float
    ) -> None:
        """Checks on a new connection that no other manager has claimed a partition. Ends the batch of a producer that
        is not the newest one any more."""
        numbers = [number for number in producers if number not in connection.checked]
        described = await connection.describe_producers(numbers, deadline)
        for number in numbers:
            epochs = described.get(number)
            if epochs is None or isinstance(epochs, OffsetMgrError):
                raise epochs or _incomplete(f"{number}")
            producers[number].on_owners(epochs)
            if producers[number].usable:
                connection.checked.add(number)


def _incomplete(where: object) -> ServerError:
    return ServerError(f"offsets topic at {where}", "the broker's response is incomplete")
