"""`Ui`: the notes and questions of a use case for its user. The base class never asks and never prints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, TypeVar

from offsetmgr.core.plurals import count_of

T = TypeVar("T")
_WATCH_NOTED_AFTER_S: Final = 3.0


class Declined(Exception):
    """Raised if the user answered no. The use case has changed nothing."""


class Interrupted(KeyboardInterrupt):
    """Raised if Ctrl-C stopped a use case before its end. ``remaining`` is a message about the unfinished work and how
    to continue it."""

    def __init__(self, remaining: str) -> None:
        super().__init__(remaining)
        self.remaining = remaining


@contextmanager
def interrupted_as(remaining: str) -> Iterator[None]:
    """Within the block, Ctrl-C raises `Interrupted` with this message."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(remaining) from error


class Ui:
    """The user of a program: agrees to every change, and sees no progress. Warnings go to the logger ``offsetmgr``. The
    command line has its own subclass."""

    wants_stop: Callable[[], bool] = staticmethod(lambda: False)
    """Once it returns True, a use case completes the groups under way, and ends."""

    def confirm(self, question: str) -> None:
        """Returns if the user agrees to the change. Raises `Declined` if not."""

    def note(self, text: str, *, warning: bool = False, repeated: bool = False) -> None:
        """Tells the user a fact. ``repeated`` notes come again and again while the use case waits; a user interface
        shows some of them."""
        if warning:
            import logging  # the command line does not need it

            logging.getLogger("offsetmgr").warning("%s", text)

    def reads(self, text: str, *, warning: bool = True) -> None:  # a user interface shows it as a note or a warning
        """Tells the user that a use case reads another store than the selected one."""
        self.note(text, warning=True)

    def progress(self, items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
        """Yields the items, and shows how many of ``total`` there were."""
        return items

    def meter(self, what: str, unit: int = 1) -> Callable[[int, int | None], None]:
        """Returns a function that shows an amount and its total, both in multiples of ``unit``."""
        return lambda _done, _total: None

    def stop(
        self,
        what: str,
        has_begun: Callable[[], bool] = lambda: True,
    ) -> AbstractContextManager[Callable[[], bool]]:
        """Returns a function that tells whether the user asked for a clean stop since the block began. ``what`` says
        what the use case completes first. Until ``has_begun`` it has changed nothing, and ends at once."""
        return nullcontext(self.wants_stop)


class Waits:
    """Tells the user for what a use case waits, and for how long at most. A call is the wait for the group locks of
    other runs of offsetmgr, including killed runs."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._watch_left_s = 0.0
        self._watch_noted_at = 0.0

    def __call__(self, groups: list[str], seconds: float) -> None:
        named = f"group {groups[0]}" if len(groups) == 1 else f"{len(groups):,} groups ({groups[0]}, ...)"
        self._note(seconds, f"for the lock of another or a killed run of offsetmgr on {named}")

    def for_members(self, members: Mapping[str, int], seconds: float) -> None:
        """The wait until groups have no members."""
        group, number = next(iter(members.items()))
        others = f" and {count_of(len(members) - 1, 'other group')}" if len(members) > 1 else ""
        self._note(seconds, f"until group {group} ({count_of(number, 'member')}){others} has no members")

    def for_commits(self, seconds: float) -> None:
        """The wait for commits. The first 3 s of each watch are not noted, because most watches end earlier."""
        if seconds > self._watch_left_s:  # a new watch
            self._watch_noted_at = time.monotonic() + _WATCH_NOTED_AFTER_S
        self._watch_left_s = seconds
        if time.monotonic() >= self._watch_noted_at:
            self._ui.note(f"watching commits for up to {max(seconds, 1):.0f} s", repeated=True)

    def _note(self, seconds: float, what: str) -> None:
        self._ui.note(f"waiting up to {max(seconds, 1):.0f} s {what}", repeated=True)
