"""Runs the command line of offsetmgr, and sends a signal to its own process at one step of an edit of a running group.

Arguments: the step, the name of the signal, and the arguments of offsetmgr. A step such as ``SYNC_GROUP:1`` is the
first response to SyncGroup since the edit began, and ``<OFFSET_COMMIT:1`` is the moment before the first OffsetCommit.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from typing import Any

from offsetmgr.cli.app import main
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.protocol.releases import ApiKey

STARTS = (ApiKey.JOIN_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT)


def send_at(step: str, number: signal.Signals) -> None:
    """Makes the process send itself a signal at this step."""
    before = step.startswith("<")
    name, _, wanted = step.removeprefix("<").partition(":")
    counted: Counter[int] = Counter()

    def count(api_key: int, *, before_request: bool) -> None:
        if before_request == before and api_key == ApiKey[name] and counted[api_key] == int(wanted) - before:
            sys.stderr.write(f"commits sent: {counted[ApiKey.OFFSET_COMMIT]}\n")
            sys.stderr.flush()
            os.kill(os.getpid(), number)

    def patched(original: Any) -> Any:
        async def call(self: BrokerConnection, request: Any, *arguments: Any, **named: Any) -> Any:
            started = request.api_key in STARTS or any(counted[key] for key in STARTS)
            if started:
                count(request.api_key, before_request=True)
                counted[request.api_key] += 1
            answer = await original(self, request, *arguments, **named)
            if started:
                count(request.api_key, before_request=False)
            return answer

        return call

    for method in ("call", "call_and_read"):
        setattr(BrokerConnection, method, patched(getattr(BrokerConnection, method)))


if __name__ == "__main__":
    send_at(sys.argv[1], signal.Signals[sys.argv[2]])
    sys.argv = ["offsetmgr", *sys.argv[3:]]
    main()
