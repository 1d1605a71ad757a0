"""Records what a Python process does: a flame graph (SVG), and the functions that take the most time.

The sampler is py-spy, which is installed into a temporary environment of its own.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import venv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PY_SPY = "py-spy==0.4.1"
SAMPLES_PER_SECOND = 250


@contextmanager
def sampler() -> Iterator[Path]:
    """Installs py-spy, and yields its command."""
    with tempfile.TemporaryDirectory(prefix="offsetmgr-py-spy-") as name:
        venv.create(name, with_pip=True)
        python = Path(name) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", PY_SPY], check=True)
        yield Path(name) / "bin" / "py-spy"


def record(py_spy: Path, pid: int, seconds: float, image: Path) -> Sequence[str]:
    """Samples a process twice for ``seconds`` seconds, writes the flame graph to ``image``, and returns the collapsed
    stacks: one line for each stack, with its functions from the outermost to the innermost and its number of
    samples."""
    stacks = image.with_suffix(".txt")
    for form, file in (("flamegraph", image), ("raw", stacks)):
        subprocess.run(
            [py_spy, "record", "--pid", str(pid), "--duration", str(round(seconds)), "--format", form,
             "--rate", str(SAMPLES_PER_SECOND), "--output", str(file), "--nonblocking"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    title = f"{SAMPLES_PER_SECOND} samples a second; the width of a function is its share of them"
    drawn = re.sub(r'(<text id="title"[^>]*>)[^<]*', rf"\g<1>{title}", image.read_text(encoding="utf-8"))
    image.write_text(drawn, encoding="utf-8")
    return stacks.read_text(encoding="utf-8").splitlines()


def hottest(stacks: Sequence[str], number: int) -> list[tuple[str, float, float]]:
    """Returns the functions on most of the stacks: name and file, the share of samples with the function on the stack,
    and the share with the function innermost."""
    inside: Counter[str] = Counter()
    innermost: Counter[str] = Counter()
    total = 0
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        functions = [_without_line(frame) for frame in stack.split(";")]
        total += int(count)
        innermost[functions[-1]] += int(count)
        for function in set(functions):
            inside[function] += int(count)
    return [(name, inside[name] / total, own / total) for name, own in innermost.most_common(number)]


def _without_line(frame: str) -> str:
    """Returns a frame without its line number: ``name (file:line)`` becomes ``name (file)``."""
    name, colon, line = frame.rpartition(":")
    return f"{name})" if colon and line.rstrip(")").isdigit() else frame
