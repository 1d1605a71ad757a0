"""The directories of a user's files, by the XDG base directory specification."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def home_directory(environ: Mapping[str, str]) -> Path:
    """Returns the user's home directory. For a user without one, such as an unknown user id in a container without
    ``HOME``, returns ``/nonexistent``: offsetmgr then reads no file there, and reports that it cannot write one."""
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def user_directory(environ: Mapping[str, str], own: str, xdg: str, below_home: str, name: str) -> Path:
    """Returns the directory that the variable ``own`` names, else ``name`` in the directory that the variable ``xdg``
    names, else ``name`` in the directory ``below_home`` of the user's home."""
    if environ.get(own):
        return Path(environ[own]).absolute()
    # The XDG base directory specification requires programs to ignore relative values.
    if environ.get(xdg) and Path(environ[xdg]).is_absolute():
        return Path(environ[xdg]) / name
    return home_directory(environ) / below_home / name


def downloads_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the directory of downloaded jars: ``OFFSETMGR_CACHE``, else ``$XDG_CACHE_HOME/offsetmgr``, else
    ``~/.cache/offsetmgr``. The function does not create the directory."""
    env = os.environ if environ is None else environ
    return user_directory(env, "OFFSETMGR_CACHE", "XDG_CACHE_HOME", ".cache", "offsetmgr")
