"""SASL GSSAPI (Kerberos) for offsetmgr's own client, RFC 4752, through the package `gssapi`.

The credentials come from a keytab, or from the ticket cache that ``kinit`` fills. The package `gssapi` is an extra,
because it needs the Kerberos library of the system.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from offsetmgr.core.errors import AuthenticationFailed, UnsupportedOperation
from offsetmgr.core.extras import install_hint
from offsetmgr.kafka.client.sasl import GSSAPI

_DEFAULT_SERVICE: Final = "kafka"
_NO_SECURITY_LAYER: Final = b"\x01\x00\x00\x00"
"""The answer to the broker's offer of security layers: none, and no further messages of this layer."""


@dataclass(frozen=True, slots=True)
class KerberosLogin:
    """The settings of a login. Without ``keytab``, the login uses the ticket cache."""

    service: str
    principal: str | None
    keytab: str | None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> KerberosLogin:
        """Reads librdkafka's names. Raises `UnsupportedOperation` if the package `gssapi` is missing."""
        if importlib.util.find_spec("gssapi") is None:
            raise UnsupportedOperation(
                "Kerberos (SASL mechanism GSSAPI)", "the package gssapi is missing", install_hint("kerberos")
            )
        return cls(
            properties.get("sasl.kerberos.service.name") or _DEFAULT_SERVICE,
            properties.get("sasl.kerberos.principal"),
            properties.get("sasl.kerberos.keytab"),
        )


class Gssapi:
    """One exchange with the broker at ``host``. Its methods may wait for the KDC."""

    name = GSSAPI
    hint = "check the principal, its ticket (klist), and the broker's service name and host name"

    def __init__(self, login: KerberosLogin, host: str) -> None:
        self._login = login
        self._host = host
        self._context: Any = None
        self._answered = False

    def start(self) -> bytes:
        import gssapi  # An extra, and slow to import.

        try:
            target = gssapi.Name(f"{self._login.service}@{self._host}", gssapi.NameType.hostbased_service)
            self._context = gssapi.SecurityContext(name=target, creds=self._credentials(gssapi), usage="initiate")
            return bytes(self._context.step() or b"")
        except gssapi.exceptions.GSSError as error:
            raise self._failed(error) from None

    def _credentials(self, gssapi: Any) -> Any:
        """Returns None for the ticket cache. Tickets from a keytab stay in memory."""
        principal, keytab = self._login.principal, self._login.keytab
        name = None if principal is None else gssapi.Name(principal, gssapi.NameType.kerberos_principal)
        if keytab is None:
            return None if name is None else gssapi.Credentials(name=name, usage="initiate")
        store = {"client_keytab": keytab, "ccache": f"MEMORY:offsetmgr-{id(self)}"}
        return gssapi.Credentials(name=name, usage="initiate", store=store)

    def answer(self, server: bytes) -> bytes | None:
        import gssapi

        try:
            if not self._context.complete:
                return bytes(self._context.step(server) or b"")
            if self._answered:
                return None
            self._context.unwrap(server)  # the layers that the broker offers, and its signature
            self._answered = True
            return bytes(self._context.wrap(_NO_SECURITY_LAYER, False).message)
        except gssapi.exceptions.GSSError as error:
            raise self._failed(error) from None

    def _failed(self, error: Any) -> AuthenticationFailed:
        details = error.get_all_statuses(error.min_code, False) if error.min_code else []
        why = "; ".join(str(detail) for detail in details) or str(error.gen_message()).splitlines()[0]
        target = f"{self._login.service}/{self._host}"
        return AuthenticationFailed(f"Kerberos login to {target}", why, self.hint)
