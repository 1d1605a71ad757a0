"""``--watch``: repeats a command's output until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

DEFAULT_WATCH: Final = "5"

Watch = Annotated[
    float | None,
    typer.Option(
        "--watch",
        metavar="[SECONDS]",
        min=0.1,
        help=f"Repeat the output at this interval (default: {DEFAULT_WATCH} s) until Ctrl-C.",
        show_default=False,
    ),
]
Count = Annotated[
    int | None, typer.Option("--count", min=1, help="End --watch after this many outputs.", show_default=False)
]


class WatchCommand(typer.core.TyperCommand):
    """A command whose option ``--watch`` may be given without a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        remaining_args: list[str] = []
        for at, argument in enumerate(args):
            remaining_args.append(argument)
            if argument == "--watch" and not _is_number(args[at + 1] if at + 1 < len(args) else ""):
                remaining_args.append(DEFAULT_WATCH)
        return super().parse_args(ctx, remaining_args)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def watch_command(once: Callable[[], int], seconds: float | None, count: int | None) -> int:
    """Calls ``once`` every ``seconds`` seconds, and at most ``count`` times if ``count`` is given. If ``seconds`` is
    None, calls ``once`` only one time. Returns the exit code of the last call."""
    if seconds is None:
        return once()
    code = 0
    done = 0
    try:
        while True:
            if sys.stdout.isatty():
                sys.stdout.write("\x1b[2J\x1b[H")
            code = once()
            done += 1
            if count is not None and done >= count:
                return code
            time.sleep(seconds)
    except KeyboardInterrupt:
        return code
