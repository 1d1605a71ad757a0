"""The hint of the error for an edit of a group that has members."""

from __future__ import annotations

from offsetmgr.core.errors import GroupActive

LOCK = "offsetmgr at /10.0.0.7 (offsetmgr-0b6f)"
CONSUMER = "shop at /10.0.0.8 (shop-41aa)"


def test_the_hint_says_to_stop_consumers() -> None:
    error = GroupActive("group g", "has active members", "stop its consumers first", members=(CONSUMER,))
    assert error.hint == "stop its consumers first"


def test_the_hint_says_that_the_lock_of_a_killed_command_expires() -> None:
    error = GroupActive("group g", "has active members", "stop its consumers first", members=(LOCK,))
    assert error.hint == (
        "another offsetmgr command is editing this group: try again when it has finished; if it was killed, its"
        " lock expires within 10 s"
    )


def test_the_hint_says_to_stop_consumers_even_if_a_lock_is_a_member() -> None:
    error = GroupActive("group g", "has active members", "stop its consumers first", members=(LOCK, CONSUMER))
    assert error.hint == "stop its consumers first"
