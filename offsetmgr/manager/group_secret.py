"""`GroupSecret`: managers prove to each other that a message in the managers' group comes from a manager.

The coordinator checks only that a member may use the group. A member with this right could claim shard groups, or lead
the group and assign them, and thereby send clients to an address of its own. So each manager signs its metadata, and
the leader signs its assignment, with an HMAC whose key is a secret of the managers. The HMAC covers all other bytes of
the message, the name of the group, and:

- for metadata, the member id. The coordinator makes up the id, and names it before it takes metadata (KIP-394, since
  Kafka 2.2; managers need 2.8), so each other member has another id. A member can still send earlier metadata of a
  manager under the id of this manager. That redirects no client, because a manager keeps its address, and `assignment`
  does not release a shard group because of outdated metadata.
- for an assignment, the generation. If the group is deleted, its generations begin again, but no manager keeps its
  member id then; a manager also rejects an assignment that does not name its member id (`ownership`).

The HMAC does not prevent denial of service: a member can remove others from the group, or lead it and assign nothing.

A message has one HMAC for each secret of the file, and one valid HMAC is enough, so that secrets can be replaced while
managers run. Managers without a secret ignore HMACs.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Sequence
from typing import Final

from offsetmgr.config import toml_table
from offsetmgr.core.errors import OffsetMgrError

_log = logging.getLogger(__name__)

MIN_LENGTH: Final = 32
"""The minimum number of characters of a secret. Principals that may describe the group can read its messages, and try
secrets with them."""
_FIELD: Final = b',"hmacs":"'
"""The last field of a signed JSON object. Within a string of JSON, quotes are escaped, so the field occurs once."""
_END: Final = b'"}'


class GroupSecret:
    """The secrets with which the managers of ``group`` sign and verify messages. Without ``secrets``, messages have no
    HMAC, and every message is valid. If ``required`` is False, an invalid message is only reported."""

    def __init__(self, group: str = "", secrets: Sequence[str] = (), *, required: bool = True) -> None:
        self._group = group
        self._keys = [secret.encode() for secret in secrets]
        self._required = required
        self.unproven: dict[str, str] = {}
        """The senders of invalid messages in the present generation, each with a sentence for operators."""
        self.unproven_total = 0

    @property
    def warning(self) -> str | None:
        """The consequence of a missing secret, or of one that is not required."""
        if not self._keys:
            return (
                "managers do not authenticate each other: every principal with a right on their group can send clients"
                " to another address"
            )
        return None if self._required else "managers without the secret are accepted until the secret is required"

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
        error = OffsetMgrError(f"managers' group, {kind} {subject}", why)
        self.unproven[f"{kind} {subject}"] = str(error)
        self.unproven_total += 1
        _log.error("%s", error)
        if self._required:
            raise error
        return data

    def _hmacs(self, content: bytes, kind: str, subject: object) -> list[bytes]:
        message = json.dumps([self._group, kind, str(subject)]).encode() + b"\n" + content
        return [hmac.digest(key, message, "sha256").hex().encode() for key in self._keys]


def load_group_secret(group: str, path: str | None) -> GroupSecret:
    """Loads the secrets from a TOML file; none without a file. Raises `ConfigError`, which contains no secret."""
    if path is None:
        return GroupSecret(group)
    table = toml_table.load(path, secret=True)
    table.reject_unknown(["secrets", "required"])
    secrets = table.text_list("secrets")
    if not secrets or min(map(len, secrets)) < MIN_LENGTH:
        raise table.error(f"must contain secrets of at least {MIN_LENGTH} characters", "secrets")
    return GroupSecret(group, secrets, required="required" not in table or table.boolean("required"))
