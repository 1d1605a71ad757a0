"""Files with client properties, and searches for their secrets in other files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

STORES: Final = Path(__file__).parent / "data" / "key_stores"


def command_config(directory: Path, settings: Mapping[str, str]) -> list[str]:
    """Writes a file with these properties, and returns the option for it. Java reads such files as ISO 8859-1."""
    lines = "".join(f"{key}={value}\n" for key, value in settings.items())
    (directory / "client.properties").write_text(lines, "latin-1")
    return ["--command-config", "client.properties"]


def store(which: str, file: str, password: str | None, **more: str) -> dict[str, str]:
    """The settings of a ``truststore`` or ``keystore``."""
    given = {"location": str(STORES / file), **({} if password is None else {"password": password}), **more}
    return {f"ssl.{which}.{key}": value for key, value in given.items()}


def secrets_in(directory: Path, secrets: Iterable[str], *texts: str) -> list[str]:
    """Files and texts that contain a secret. The files with the credentials are left out."""
    files = [file for file in directory.rglob("*") if file.is_file() and not file.name.startswith("client.properties")]
    contents = {**{str(file): file.read_bytes() for file in files}, **{text: text.encode() for text in texts}}
    return [name for name, content in contents.items() if any(secret.encode() in content for secret in secrets)]
