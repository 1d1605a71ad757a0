"""The directories of a user's files, by the XDG base directory specification."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.core.errors import FileFailure, os_error_as

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


STATE_VOLUME: Final = "OFFSETMGR_STATE_VOLUME"
"""The variable that the container image sets: the directory at which a volume belongs."""


def lost_with_container(file: Path) -> FileFailure | None:
    """Returns an error if ``file`` would not outlive the container in which the process runs: only a volume keeps it
    that is neither in memory nor an emptyDir of Kubernetes, and that this user can write to. Without the variable
    `STATE_VOLUME`, which the container image sets, there is nothing to check. Raises `FileFailure` if the mounts cannot
    be read."""
    volume = os.environ.get(STATE_VOLUME)
    if not volume:
        return None
    file, volume = Path(os.path.realpath(file)), os.path.realpath(volume)
    point, kind, source = _mount_of(file)
    there = next(one for one in (file, *file.parents) if os.path.isdir(one))  # noqa: PTH112, Path.is_dir can raise
    hint = f"mount a volume that remains, as in -v NAME:{volume}"
    if not file.is_relative_to(volume):
        hint = f"choose a file below {volume}, where a volume belongs"
    if point == Path("/"):
        why = "no volume holds this file, so it would be lost with the container"
    elif kind == "tmpfs":
        why = f"{point} is in memory (tmpfs), so the file would be lost with the container"
    elif "kubernetes.io~empty-dir" in source:
        why = f"{point} is an emptyDir, which Kubernetes deletes with the pod"
        hint = f"mount a persistentVolumeClaim at {volume}"
    elif not os.access(there, os.W_OK):
        why = f"user {os.getuid()} cannot write to {there}, or it is read-only"
        hint = "change the owner of the volume's directory, or set fsGroup in Kubernetes"
    else:
        return None
    return FileFailure(f"file {file}", why, hint)


def require_kept(file: Path, option: str = "") -> None:
    """Raises `FileFailure` if ``file``, which an edit needs for its undo, would be lost with the container. The hint
    ends with the ``option`` that names the file."""
    if error := lost_with_container(file):
        error.hint = f"nothing was changed; {error.hint}{option}"
        raise error


def _mount_of(path: Path) -> tuple[Path, str, str]:
    """Returns the mount point of ``path``, the type of its file system, and the directory of that file system that is
    mounted there. `os.path.ismount` misses directories of the same file system. Raises `FileFailure`."""
    with os_error_as(FileFailure, "the mounts of this process"):
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = {Path("/"): ("", "")}
    for line in lines:
        fields, _, rest = line.partition(" - ")
        # The kernel writes blanks, tabs, line ends and backslashes as octal numbers.
        source, point = (re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), one) for one in fields.split()[3:5])
        mounts[Path(point)] = rest.split()[0], source
    found = next(parent for parent in (path, *path.parents) if parent in mounts)
    return found, *mounts[found]


_MIB: Final = 1024 * 1024
_LOW_DISK_BYTES: Final = 1024 * _MIB
"""Below this free space, the check warns."""
_FULL_DISK_BYTES: Final = 50 * _MIB
"""Below this free space, the check fails."""


def check_state_directory() -> Iterator[CheckResult]:
    """Checks the state directory, which gets the before-images and the operation log, and the disk space there."""
    from offsetmgr.core.check_result import CheckResult, CheckStatus

    directory = state_directory()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    fix = "change its owner or permissions, or set XDG_STATE_HOME to a writable directory"
    if error := lost_with_container(directory):
        yield CheckResult("state directory", str(directory), CheckStatus.WARNING, f"no edits: {error.why}", error.hint)
    elif not existing.is_dir():
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
