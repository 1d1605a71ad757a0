"""The directories of the sandbox: the cache of fetched jars, and the state of running servers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from offsetmgr.config.user_directories import downloads_directory, user_directory
from offsetmgr.core.errors import SandboxError, os_error_as


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the directory of fetched jars and creates it if needed: ``OFFSETMGR_CACHE``, else
    ``$XDG_CACHE_HOME/offsetmgr``, else ``~/.cache/offsetmgr``. Raises `SandboxError` if it cannot be written."""
    directory, hint = downloads_directory(environ), "set OFFSETMGR_CACHE to a writable directory"
    with os_error_as(SandboxError, f"cannot create {directory}", hint):
        directory.mkdir(parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise SandboxError(f"cannot write into {directory}", "no permission", hint)
    return directory


def state_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the directory of the sandbox's state without creating it: ``OFFSETMGR_SANDBOX``, else
    ``$XDG_STATE_HOME/offsetmgr/sandbox``, else ``~/.local/state/offsetmgr/sandbox``."""
    return user_directory(environ, "OFFSETMGR_SANDBOX", "XDG_STATE_HOME", ".local/state", "offsetmgr/sandbox")
