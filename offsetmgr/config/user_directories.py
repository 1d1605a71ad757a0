"""The directories of a user's files, by the XDG base directory specification."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from offsetmgr.core.check_result import CheckResult


def home_directory(environ: Mapping[str, str]) -> Path:
    """Returns the user's home directory. For a user without one, such as an unknown user id in a container without
    ``HOME``, returns ``/nonexistent``: offsetmgr then reads no file there, and reports that it cannot write one."""
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def user_directory(environ: Mapping[str, str] | None, own: str, xdg: str, below_home: str, name: str) -> Path:
    """Returns the directory that the variable ``own`` names, else ``name`` in the directory that the variable ``xdg``
    names, else ``name`` in the directory ``below_home`` of the user's home."""
    environ = os.environ if environ is None else environ
    if environ.get(own):
        return Path(environ[own]).absolute()
    # The XDG base directory specification requires programs to ignore relative values.
    if environ.get(xdg) and Path(environ[xdg]).is_absolute():
        return Path(environ[xdg]) / name
    return home_directory(environ) / below_home / name


def downloads_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the directory of downloaded jars: ``OFFSETMGR_CACHE``, else ``$XDG_CACHE_HOME/offsetmgr``, else
    ``~/.cache/offsetmgr``. The function does not create the directory."""
    return user_directory(environ, "OFFSETMGR_CACHE", "XDG_CACHE_HOME", ".cache", "offsetmgr")


def state_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the directory for before-images, ``offsetmgr`` in the XDG state directory. The function does not create
    the directory."""
    environ = os.environ if environ is None else environ
    return Path(environ.get("XDG_STATE_HOME") or home_directory(environ) / ".local" / "state") / "offsetmgr"


_MIB: Final = 1024 * 1024
_LOW_DISK_BYTES: Final = 1024 * _MIB
"""Below this free space, the check warns."""
_FULL_DISK_BYTES: Final = 50 * _MIB
"""Below this free space, the check fails."""


def check_state_directory() -> list[CheckResult]:
    """Checks the state directory, which gets the before-images and the operation log, and the disk space there."""
    return [*_check_state_directory(state_directory())]


def _check_state_directory(directory: Path) -> Iterator[CheckResult]:
    from offsetmgr.core.check_result import CheckResult, CheckStatus

    existing = next(path for path in (directory, *directory.parents) if path.exists())
    fix = "change its owner or permissions, or set XDG_STATE_HOME to a writable directory"
    if not existing.is_dir():
        why = f"{existing} is not a directory"
        yield CheckResult("state directory", str(directory), CheckStatus.FAILED, why, fix)
    elif not os.access(existing, os.W_OK | os.X_OK):
        why = f"{existing} is not writable, so no edit could save its before-image"
        yield CheckResult("state directory", str(directory), CheckStatus.FAILED, why, fix)
    else:
        detail = "writable" if existing == directory else f"the first edit creates it in {existing}"
        yield CheckResult("state directory", str(directory), CheckStatus.OK, detail)
    free = shutil.disk_usage(existing).free
    shown = f"{free // _MIB:,} MiB free"
    if free >= _LOW_DISK_BYTES:
        yield CheckResult("disk space", str(directory), CheckStatus.OK, shown)
        return
    status = CheckStatus.FAILED if free < _FULL_DISK_BYTES else CheckStatus.WARNING
    why = f"{shown}; before-images, journals and exports of many groups need more"
    yield CheckResult("disk space", str(directory), status, why, "free space, or set XDG_STATE_HOME to another disk")
