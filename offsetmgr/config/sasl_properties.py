"""Translates the ``sasl.*`` settings of Kafka's Java client into librdkafka's, with the options of the JAAS line.

Source: Kafka's SaslConfigs and OAuthBearerLoginCallbackHandler; librdkafka's CONFIGURATION.md. No error contains a
value, because values may be secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from offsetmgr.config.tls_properties import TLS_KEYS, translate_tls
from offsetmgr.core.errors import ConfigError

_JAAS: Final = "sasl.jaas.config"
_UNCHANGED: Final = frozenset(
    {
        "sasl.kerberos.service.name",
        "sasl.kerberos.principal",
        "sasl.kerberos.keytab",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.token.command",
        "https.ca.location",
        "https.ca.pem",
    }
)
_RENAMED: Final = {
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
"""Names of Kafka 4.1 (KIP-1139)."""
_METHOD: Final = "sasl.oauthbearer.method"
_HANDLERS: Final = ("sasl.login.callback.handler.class", "sasl.client.callback.handler.class")
_OIDC_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer."
"""The package of the handler with which Java clients get tokens from an endpoint; offsetmgr does the same."""

SASL_KEYS: Final = _UNCHANGED | _RENAMED.keys() | {_JAAS, _METHOD, *_HANDLERS}
"""The keys that `translate_sasl` translates."""

_OAUTH_OPTIONS: Final = {
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_KERBEROS_OPTIONS: Final = {
    "principal": "sasl.kerberos.principal",
    "keyTab": "sasl.kerberos.keytab",
    "serviceName": "sasl.kerberos.service.name",
}
_EXTENSION: Final = "extension_"
_JAAS_OPTION: Final = re.compile(
    r"""\s*([A-Za-z0-9_.\-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))"""
)


def translate_sasl(properties: Mapping[str, str], source: str) -> dict[str, str]:
    """Returns librdkafka's settings for those keys of ``properties`` that are in `SASL_KEYS`. ``source`` is the name of
    the file in errors. Raises `ConfigError`."""
    found = _translate_jaas(properties[_JAAS], source) if _JAAS in properties else {}
    for key, value in properties.items():
        if key in _UNCHANGED or key in _RENAMED:
            found[_RENAMED.get(key, key)] = value
    if properties.get(_METHOD, "oidc").lower() != "oidc":
        raise _unsupported(source, _METHOD, "the only supported method is oidc")
    for key in _HANDLERS:
        if key in properties and not properties[key].startswith(_OIDC_HANDLER):
            raise _unsupported(
                source,
                key,
                "a Java class cannot be loaded here: for tokens of a cloud set sasl.mechanism=OAUTHBEARER and "
                "sasl.oauthbearer.token.command; otherwise use sasl.username and sasl.password",
            )
    return found


def _unsupported(source: str, key: str, instead: str) -> ConfigError:
    return ConfigError(f"{source}: {key}", "this setting is not supported", instead)


def _translate_jaas(text: str, source: str) -> dict[str, str]:
    """Returns librdkafka's settings for the options of a JAAS line, ``MODULE required key="value" ...;``."""
    module, _, rest = text.strip().partition(" ")
    flag, _, options_text = rest.strip().partition(" ")
    if flag.rstrip(";").lower() not in ("required", "requisite", "sufficient", "optional"):
        raise ConfigError(f"{source}: {_JAAS}", "not of the form 'MODULE required OPTION=\"VALUE\" ... ;'")
    options = _jaas_options(options_text, source)
    name = module.rpartition(".")[2]
    if name in ("PlainLoginModule", "ScramLoginModule"):
        if "username" not in options or "password" not in options:
            raise ConfigError(f"{source}: {_JAAS}", f"{name} needs both username and password")
        return {"sasl.username": options["username"], "sasl.password": options["password"]}
    if name == "Krb5LoginModule":
        return {new: options[old] for old, new in _KERBEROS_OPTIONS.items() if old in options}
    if name == "OAuthBearerLoginModule":
        found = {new: options[old] for old, new in _OAUTH_OPTIONS.items() if old in options}
        extensions = [(key, value) for key, value in options.items() if key.startswith(_EXTENSION)]
        if extensions:
            pairs = [f"{key.removeprefix(_EXTENSION)}={value}" for key, value in extensions]
            found["sasl.oauthbearer.extensions"] = ",".join(pairs)
        trust = translate_tls({k: v for k, v in options.items() if k in TLS_KEYS}, f"{source}: {_JAAS}")
        return found | {f"https.{key.removeprefix('ssl.')}": value for key, value in trust.items() if ".ca." in key}
    raise _unsupported(source, _JAAS, f"login module {name} is not known; use sasl.username and sasl.password")


def _jaas_options(text: str, source: str) -> dict[str, str]:
    options: dict[str, str] = {}
    at = 0
    while text[at:].strip() not in ("", ";"):
        match = _JAAS_OPTION.match(text, at)
        if match is None:
            raise ConfigError(f"{source}: sasl.jaas.config", f"cannot be parsed after {len(options)} options")
        quoted = match[2] if match[2] is not None else match[3]
        options[match[1]] = match[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = match.end()
    return options
