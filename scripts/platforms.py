#!/usr/bin/env python3
"""Prints the platforms of an executable, one JSON object a line, for pex: Linux with glibc 2.28 or later on one
processor, and each Python version that the executable holds.

Usage: ``scripts/platforms.py x86_64|aarch64``
"""

from __future__ import annotations

import json
import sys

from packaging.tags import compatible_tags, cpython_tags

MINOR_VERSIONS = (11, 12, 13, 14)
"""The minor versions of Python 3 for which every dependency of offsetmgr has a wheel."""


def platform(minor: int, machine: str) -> dict[str, object]:
    """Returns the platform of a Python version: the tags of the wheels that it can install, and the markers of the
    requirements that it evaluates."""
    systems = [f"manylinux_2_{glibc}_{machine}" for glibc in range(28, 16, -1)] + [f"manylinux2014_{machine}"]
    tags = (
        *cpython_tags((3, minor), platforms=systems),
        *compatible_tags((3, minor), interpreter=f"cp3{minor}", platforms=systems),
    )
    markers = {
        "implementation_name": "cpython",
        "implementation_version": f"3.{minor}.0",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"3.{minor}.0",
        "python_version": f"3.{minor}",
        "sys_platform": "linux",
    }
    return {"marker_environment": markers, "compatible_tags": [str(tag) for tag in tags]}


if __name__ == "__main__":
    for minor in MINOR_VERSIONS:
        print(json.dumps(platform(minor, sys.argv[1])))
