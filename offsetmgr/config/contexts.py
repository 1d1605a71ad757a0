"""The contexts of the configuration file: their names, their selection by globs, and the default context."""

from __future__ import annotations

import json
import os
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

from offsetmgr.config.connection import (
    DEFAULT_TIMEOUT_MS,
    ResolvedConnection,
    SettingsLayer,
    context_named,
    environment_layer,
    load_document,
    parse_document,
    read_contexts,
    resolve,
)
from offsetmgr.config.properties import load_properties
from offsetmgr.core import redact
from offsetmgr.core.advice import Advice
from offsetmgr.core.atomic_file import write_atomically
from offsetmgr.core.errors import ConfigError, os_error_as

ADDRESS_VARIABLES: Final = ("OFFSETMGR_BOOTSTRAP_SERVER", "OFFSETMGR_ZOOKEEPER", "OFFSETMGR_STORE")
"""The environment variables that replace the addresses of a context."""

_DEFAULT: Final = re.compile(
    r"""[ \t]*(?:default-context|"default-context"|'default-context')[ \t]*=[ \t]*(?:"(?:[^"\\]|\\.)*"|'[^']*')"""
)


_SHOWN: Final = re.compile(
    r"(client\.id|security\.protocol|sasl\.mechanisms?|sasl\.kerberos\.(service\.name|principal)"
    r"|sasl\.oauthbearer\.(method|scope)|sasl\.username|ssl\.endpoint\.identification\.algorithm|ssl\.protocol"
    r"|ssl\.enabled\.protocols|zookeeper\.ssl\.client\.enable|.*\.(location|type|ms|url)|command-config|context|store|timeout)"
)
"""The settings whose values are shown. Every other value can be a secret."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts of the configuration file at ``path``, by name. A context that is not valid has an error instead of
    settings. ``default`` is the name of the default context; None if the file has none. ``document`` is the content."""

    path: Path
    layers: Mapping[str, SettingsLayer | ConfigError]
    default: str | None
    document: Mapping[str, Any]

    @classmethod
    def read(cls, *, new: bool = False) -> Contexts:
        """Reads the configuration file. With ``new``, a file that does not exist is empty. Raises `ConfigError` for
        errors that do not belong to one context."""
        path, document = load_document(os.environ, new=new)
        return cls(path, read_contexts(document, path), document.get("default-context"), document)

    def select(self, text: str) -> list[str]:
        """Returns the names of the contexts that a list of names and globs selects, sorted. Raises `ConfigError` if a
        part selects no context."""
        chosen: set[str] = set()
        for part in (part.strip() for part in text.split(",")):
            matching = [part] if part in self.layers else [name for name in self.layers if fnmatchcase(name, part)]
            if not matching:
                self.layer(part)  # raises the error of an unknown context
            chosen.update(matching)
        return sorted(chosen)

    def layer(self, name: str) -> SettingsLayer:
        """Returns the settings of a context. Raises `ConfigError` if it does not exist or is not valid."""
        return context_named(name, self.layers, self.path)

    def set_default(self, name: str) -> None:
        """Makes ``name`` the default context. Changes only the line ``default-context`` of the file, or adds this line.
        Raises `ConfigError`."""
        self.layer(name)
        hint = f"edit default-context by hand, or set a variable: export OFFSETMGR_CONTEXT={name}"
        self._edit(lambda text: with_default(text, name), {"default-context": name}, hint)

    def add(self, name: str, settings: SettingsLayer, check: Callable[[ResolvedConnection], object]) -> str:
        """Appends a context with these settings to the file, and returns its table without credentials. First calls
        ``check`` with the settings that commands will resolve. Creates the file with mode 0600 if there is none. Raises
        `ConfigError`, also if the file has the context."""
        what, found = f"context {name!r}", ((one.name, getattr(settings, one.name)) for one in fields(settings))
        values = {key_of(setting): value for setting, value in found if value is not None}
        if name in self.layers:
            raise ConfigError(what, f"is already in {self.path}", "edit the file to change the context")
        if not (name and name.isprintable()) or set(name) & set(",*?["):
            raise ConfigError(what, "is not a name, but empty, a list, a glob, or not printable", "as in prod-1")
        if not values:
            raise ConfigError(what, "has no settings", Advice("add {bootstrap_server}, {zookeeper} or {store}"))
        change = {"context": {**self.document.get("context", {}), name: values}}
        check(resolve(SettingsLayer(), name, {}, (self.path, {**self.document, **change})))
        key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
        lines = [f"{setting} = {json.dumps(value, ensure_ascii=False)}" for setting, value in values.items()]
        lines.insert(0, f"[context.{key}]")

        def append(text: str) -> str:
            end = "\r\n" if "\r\n" in text else "\n"
            gap = "" if not text else end if text.endswith("\n") else end * 2
            return text + gap + end.join(lines) + end

        self._edit(append, change, "add the context by hand")
        return "\n".join(map(redact, lines))

    def _edit(self, edit: Callable[[str], str], change: Mapping[str, object], hint: str) -> None:
        """Replaces the text of the file, unless the new text means more or less than this change of the document."""
        what, found = f"config file {self.path}", dict[str, object]()
        with os_error_as(ConfigError, what, hint):
            if not self.path.exists():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.touch(0o600)
            content = self.path.read_bytes()
            encoding = "utf-8-sig" if content.startswith(BOM_UTF8) else "utf-8"
            written = edit(content.decode(encoding))
            with suppress(ConfigError):
                found = parse_document(written)
            if found != {**self.document, **change}:
                raise ConfigError(what, "its layout is unusual, or it has changed", hint)
            write_atomically(self.path, lambda out: out.write(written.encode(encoding)), overwrite=True)


def key_of(setting: str) -> str:
    """Returns the key, in a context, of a field of `SettingsLayer`."""
    return setting.replace("_", "-").removesuffix("-ms")


def with_default(text: str, name: str) -> str:
    """Returns the text of a configuration file with ``name`` as the default context. All other lines and all comments
    stay as they are."""
    line = f"default-context = {json.dumps(name, ensure_ascii=False)}"
    lines = text.splitlines(keepends=True)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    top = next((at for at, one in enumerate(lines) if one.lstrip().startswith("[")), len(lines))
    for at in range(top):
        if (present := _DEFAULT.match(lines[at])) is not None:
            lines[at] = line + lines[at][present.end() :]
            return "".join(lines)
    at = top
    while at and lines[at - 1].lstrip().startswith("#"):
        at -= 1  # a comment in front of the first table belongs to the table
    if at and not lines[at - 1].endswith("\n"):
        lines[at - 1] += end
    lines.insert(at, f"{line}{end}{end if at < len(lines) else ''}")
    return "".join(lines)


class SettingValue(NamedTuple):
    """One setting in effect, its value without secrets, and its source."""

    name: str
    value: str | int
    source: str


def settings_in_effect(context: str | None) -> list[SettingValue]:
    """Returns the settings that a command without options uses, with the source of each. ``context`` replaces the
    default context.

    Passwords and keys are masked. Raises `ConfigError`.
    """
    contexts = Contexts.read()
    named = (
        (context, "command line"),
        (os.environ.get("OFFSETMGR_CONTEXT"), "OFFSETMGR_CONTEXT"),
        (contexts.default, f"default-context in {contexts.path}"),
    )
    name, source = next(((name, source) for name, source in named if name), (None, ""))
    layer = context_named(name, contexts.layers, contexts.path)
    if any(map(os.environ.get, ADDRESS_VARIABLES)) and resolve(SettingsLayer(), context).unused_context:
        name, layer = None, SettingsLayer()
    found = [SettingValue("context", name, source)] if name is not None else []
    variables = environment_layer(os.environ)
    command_config = None
    for setting in fields(SettingsLayer):
        key = key_of(setting.name)
        for value, where in (
            (getattr(variables, setting.name), f"OFFSETMGR_{key.replace('-', '_').upper()}"),
            (getattr(layer, setting.name), f"context {name!r} in {contexts.path}"),
        ):
            if value is not None:
                found.append(SettingValue(key, masked(key, value), where))
                command_config = value if key == "command-config" else command_config
                break
    if command_config is not None:
        properties = load_properties(Path(command_config))
        found += [SettingValue(key, masked(key, value), command_config) for key, value in sorted(properties.items())]
    if not any(one.name in ("timeout", "default.api.timeout.ms") for one in found):
        found.append(SettingValue("timeout", DEFAULT_TIMEOUT_MS, "default"))
    return found


def masked(key: str, value: str | int) -> str | int:
    """Returns a value for display. Asterisks replace every value that is not known to be harmless."""
    text = str(value)
    if key in ("zookeeper-auth", "zookeeper.auth"):
        scheme, _, credential = text.partition(":")
        user, colon, _ = credential.partition(":")
        return f"{scheme}:{user}" + (":***" if colon else "")
    if key in ("bootstrap-server", "bootstrap.servers", "zookeeper"):
        return redact(f"//{text}")[2:]
    return (redact(text) if isinstance(value, str) else value) if _SHOWN.fullmatch(key) else "***"
