"""The page about logs on disk: its example and its table match the output of the program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from offsetmgr.cli.app import run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "segments.md"


def test_the_example_prints_the_documented_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    table, printed = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    monkeypatch.setenv("PYTHONPATH", str(PAGE.parents[2]))

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.stdout, done.stderr) == (printed, "")
    command, shown = table.split("\n", 1)
    assert run([str(tmp_path / word) if word == "kafka-logs" else word for word in command.split()[2:]]) == 0
    assert capsys.readouterr().out == shown
