"""Parses the consumer ids that old consumers generate."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# kafka.consumer.ZookeeperConsumerConnector: host, start time in milliseconds, up to 8 hex digits of a random UUID.
_GENERATED_ID: Final = re.compile(r"(?P<host>.+)-(?P<millis>[0-9]{10,16})-[0-9a-f]{1,8}")
_HOST_AND_UUID: Final = re.compile(r"(?P<host>[^:]+):[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class MemberOrigin(NamedTuple):
    """The host in a consumer's id, and the consumer's start time (ms since 1970) if the id contains it."""

    host: str
    started_at_ms: int | None


def parse_member_id(group: str, member_id: str) -> MemberOrigin | None:
    """Parses a generated consumer id; returns None for other ids.

    A generated id begins with the prefix ``GROUP_``. The prefix is optional if the id contains a UUID.
    """
    prefix = f"{group}_"
    own = member_id.removeprefix(prefix)
    if match := _HOST_AND_UUID.fullmatch(own):
        return MemberOrigin(match["host"], None)
    match = _GENERATED_ID.fullmatch(own) if member_id.startswith(prefix) else None
    return MemberOrigin(match["host"], int(match["millis"])) if match is not None else None
