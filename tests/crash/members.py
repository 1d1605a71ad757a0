"""`PythonMember`: a member of an old consumer group as a process, the counterpart of the sandbox's `OldConsumer`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from offsetmgr.sandbox.legacy_consumer import ConsumedMessage, OldConsumer, read_messages
from offsetmgr.sandbox.process import ServerProcess

_PROGRAM: Final = Path(__file__).with_name("consuming_member.py")
_JOINED: Final = re.compile(rb"^joined as (\S+)$", re.MULTILINE)


class PythonMember(ServerProcess):
    """A `ZookeeperConsumer` in its own process, with the interface of `OldConsumer`.

    ``settings`` are those of `ConsumerSettings`; ``topic`` has the form of `OldConsumer`'s. `start` returns after the
    first rebalance.
    """

    def __init__(
        self,
        directory: Path,
        *,
        zookeeper: str,
        bootstrap: str,
        group: str,
        topic: str,
        offsets: str = "zookeeper",
        strategy: str = "range",
        consumer_id: str | None = None,
        streams: int = 1,
        settings: Mapping[str, Any] | None = None,
        think_ms: int = 0,
        ignore_lease: bool = False,
    ) -> None:
        super().__init__(directory)
        self.name = f"Python member of {group}"
        self._arguments: dict[str, Any] = {
            "zookeeper": zookeeper,
            "bootstrap_servers": bootstrap,
            "group": group,
            "offsets": offsets,
            "strategy": strategy,
            "consumer_id": consumer_id,
            "settings": {"auto_commit_interval_ms": 1000, "auto_offset_reset": "smallest", **(settings or {})},
            "think_ms": think_ms,
            "ignore_lease": ignore_lease,
            "output": str(self.output_file),
        }
        if topic.startswith("white_list:"):
            self._arguments |= {"white_list": topic.removeprefix("white_list:"), "streams": streams}
        else:
            self._arguments["topics"] = dict.fromkeys(topic.split(","), streams)

    @property
    def output_file(self) -> Path:
        return self.directory / "messages.tsv"

    @property
    def member_id(self) -> str:
        found = _JOINED.findall(self.log_of_this_run())
        assert found, "the member has not joined"
        return str(found[-1].decode())

    def messages(self) -> list[ConsumedMessage]:
        return read_messages(self.output_file)

    def _command(self) -> list[str]:
        return [sys.executable, str(_PROGRAM), json.dumps(self._arguments)]

    def _is_ready(self) -> bool:
        return bool(_JOINED.search(self.log_of_this_run()))


AnyMember = PythonMember | OldConsumer
