"""`GroupSecret`: managers prove to each other that a message in the managers' group comes from a manager.

The coordinator checks only that a member may use the group. A member with this right could claim shard groups, or lead
the group and assign them, and thereby send clients to an address of its own. So each manager signs its metadata, and
the leader signs its assignment, with an HMAC whose key is a secret of the managers. The HMAC covers all other bytes of
the message, the name of the group, and:

- for metadata, the member id. The coordinator makes up the id, and names it before it takes metadata (KIP-394, since
  Kafka 2.2; managers need 2.8), so each other member has another id. A member can still send earlier metadata of a
  manager under the id of this manager. That tells clients no new address, because a manager keeps its address, and
  `assignment` releases no shard group because of outdated metadata.
- for an assignment, the generation. If the group is deleted, its generations begin again, but no manager keeps its
  member id then; a manager also rejects an assignment that does not name its member id (`ownership`).

The HMAC does not prevent denial of service: a member can remove others from the group, or lead it and assign nothing.
Heartbeats have no HMAC, so a member can also keep a dead or frozen manager in the group. If the member can listen at
the address of a dead manager, it then receives the clients of this manager. Only TLS prevents this.

A message has one HMAC for each secret of the file, and one valid HMAC is enough, so that secrets can be replaced while
managers run. Managers without a secret ignore HMACs.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from offsetmgr.config import toml_table
from offsetmgr.core.errors import ConfigError, OffsetMgrError

_log = logging.getLogger(__name__)

_Clock = Callable[[], float]

MIN_LENGTH: Final = 32
"""The minimum number of characters of a secret. Principals that may describe the group can read its messages, and try
secrets with them."""
_ALARM_S: Final = 600.0
"""The time for which the sender of an invalid message raises an alarm after the end of the message's generation."""
_MAX_ALARMS: Final = 20
_ID_LENGTH: Final = 100
"""Logs and alarms contain only the end of a longer member id. It is unique; the member chooses the rest."""
_FIELD: Final = b',"hmacs":"'
"""The last field of a signed JSON object. Within a string of JSON, quotes are escaped, so the field occurs once."""
_END: Final = b'"}'


class GroupSecret:
    """The secrets with which the managers of ``group`` sign and verify messages. Without ``secrets``, messages have no
    HMAC, and every message is valid. If ``required`` is False, an invalid message is only reported."""

    def __init__(
        self, group: str = "", secrets: Sequence[str] = (), *, required: bool = True, clock: _Clock = time.monotonic
    ) -> None:
        self._group = group
        self._keys = [secret.encode() for secret in secrets]
        self._required = required
        self._clock = clock
        self._unproven: dict[str, tuple[float, str]] = {}
        self.unproven_total = 0

    @property
    def unproven(self) -> list[str]:
        """A sentence for operators about each sender of an invalid message in this generation of the group or in the
        last ten minutes, or the first of them."""
        oldest = self._clock() - _ALARM_S
        self._unproven = {sender: (last, text) for sender, (last, text) in self._unproven.items() if last > oldest}
        return [text for _, text in self._unproven.values()]

    @property
    def warning(self) -> str | None:
        """The consequence of a missing secret, or of one that is not required."""
        if not self._keys:
            return (
                "managers do not authenticate each other: every principal with a right on their group can send clients"
                " to another address"
            )
        return None if self._required else "managers without the secret are accepted until the secret is required"

    def on_join(self) -> None:
        """Notes the end of the generation: its senders may not send a message in the next one."""
        now = self._clock()
        self._unproven = {sender: (min(last, now), text) for sender, (last, text) in self._unproven.items()}

    def signed(self, content: bytes, kind: str, subject: object) -> bytes:
        """Adds HMACs to a JSON object. ``kind`` is "member" or "generation", and ``subject`` its id."""
        return content[:-1] + _FIELD + b" ".join(self._hmacs(content, kind, subject)) + _END if self._keys else content

    def verified(self, data: bytes, kind: str, subject: object) -> bytes:
        """Returns the JSON object without its HMACs, after checking them. Raises `OffsetMgrError`."""
        if not self._keys:
            return data
        fields, found, hmacs = data.rpartition(_FIELD)
        content = fields + b"}"
        given = hmacs.removesuffix(_END).split()
        if any(hmac.compare_digest(own, one) for own in self._hmacs(content, kind, subject) for one in given):
            return content
        what = "metadata" if kind == "member" else "assignment"
        why = (
            f"the HMAC of its {what} does not match: the sender has another secret, or repeats an earlier message"
            if found
            else f"its {what} has no HMAC: the sender does not have the managers' secret"
        )
        name = str(subject)[-_ID_LENGTH:]
        error = OffsetMgrError(f"managers' group, {kind} {name}", why)
        self._report(name if kind == "member" else kind, str(error))
        if self._required:
            raise error
        return data

    def _report(self, sender: str, text: str) -> None:
        """Counts an invalid message, raises an alarm, and logs the first message of the sender."""
        self.unproven_total += 1
        if len(self.unproven) < _MAX_ALARMS or sender in self._unproven:
            if sender not in self._unproven:
                _log.error("%s", text)
            self._unproven[sender] = (math.inf, text)

    def _hmacs(self, content: bytes, kind: str, subject: object) -> list[bytes]:
        message = json.dumps([self._group, kind, str(subject)]).encode() + b"\n" + content
        return [hmac.digest(key, message, "sha256").hex().encode() for key in self._keys]


def load_group_secret(group: str, path: str | None) -> GroupSecret:
    """Loads the secrets from a TOML file; none without a file. Raises `ConfigError`, which contains no secret."""
    if path is None:
        return GroupSecret(group)
    if not Path(path).exists():  # it may be a secret instead of a path
        raise ConfigError("file of the managers' secret", "does not exist", "name a TOML file that contains the secret")
    table = toml_table.load(path, secret=True)
    if not table.values.keys() <= {"secrets", "required"}:
        raise table.error("has an unknown field; known are secrets, required")
    secrets = table.text_list("secrets")
    for number, secret in enumerate(secrets or [""], 1):
        if len(secret.strip()) < MIN_LENGTH:
            why = f"must contain secrets of at least {MIN_LENGTH} characters; number {number} has fewer"
            raise table.error(why, "secrets")
    return GroupSecret(group, secrets, required="required" not in table or table.boolean("required"))
