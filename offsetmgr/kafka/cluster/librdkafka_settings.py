"""Settings of librdkafka clients: the user's settings, with the logins that librdkafka leaves to the application."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from offsetmgr.core.errors import UnsupportedOperation
from offsetmgr.kafka.client.sasl import GSSAPI, OAUTHBEARER

_OWN_KEYS: Final = ("sasl.oauthbearer.", "https.")


def librdkafka_settings(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings that every client of librdkafka accepts.

    With OAUTHBEARER, the clients get their tokens from the same source as offsetmgr's own client, so a token endpoint
    and a token command work alike in both. Gets the first token, so that a failure has its own error. Raises the
    errors of `TokenSource.token`, and `UnsupportedOperation` for Kerberos if the installed librdkafka lacks it.
    """
    kept = {key: value for key, value in properties.items() if not key.startswith(_OWN_KEYS)}
    if not properties.get("security.protocol", "").lower().startswith("sasl"):
        return kept
    name = (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or GSSAPI).upper()
    if name == GSSAPI and not _has_kerberos():
        raise UnsupportedOperation(
            "Kerberos (SASL mechanism GSSAPI)",
            "librdkafka would be needed here, and the wheel of confluent-kafka is built without Kerberos (sasl_gssapi)",
            "the extra kerberos of offsetmgr suffices for commands that consume no records; the others need "
            "confluent-kafka built with libsasl2: pip install --no-binary confluent-kafka confluent-kafka",
        )
    if name != OAUTHBEARER:
        return kept
    from offsetmgr.kafka.client.oauth_tokens import token_source

    source = token_source(properties)
    source.token()

    def token(_: str) -> tuple[str, float, str, dict[str, str]]:
        current = source.token()
        return current.value, current.expires_at, "", dict(source.extensions)

    return {**kept, "oauth_cb": token}


@functools.cache
def _has_kerberos() -> bool:
    """Returns whether librdkafka is built with libsasl2. The client has no address, so it does not connect."""
    try:
        AdminClient({"security.protocol": "sasl_plaintext", "sasl.mechanism": GSSAPI, "log_level": 0})
    except KafkaException:
        return False
    return True
