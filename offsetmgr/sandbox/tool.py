"""`java_tool`, which runs Kafka's own command-line tools."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from offsetmgr.core.errors import TimedOut
from offsetmgr.sandbox import jars
from offsetmgr.sandbox.java import QUICK_START, java_command


def java_tool(
    jar_set: str | Sequence[str],
    main_class: str,
    arguments: Sequence[str],
    *,
    timeout_s: float = 120.0,
    stdin: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs one of Kafka's own command-line tools to its end and returns its exit code, stdout and stderr.

    ``jar_set`` is one name or several names that `offsetmgr.sandbox.jars.resolve` accepts. This function raises no
    error for a non-zero exit code, and Kafka's tools return 0 for many failures. Therefore the caller must check both
    the exit code and the output. Raises `TimedOut`, `SandboxError`.
    """
    sets = [jar_set] if isinstance(jar_set, str) else jar_set
    command = java_command([jars.resolve(name) for name in sets], main_class, arguments, jvm=("-Xmx512m", *QUICK_START))
    try:
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", timeout=timeout_s, check=False, input=stdin
        )
    except subprocess.TimeoutExpired as error:
        raise TimedOut(main_class, f"did not end within {timeout_s:g} s") from error
