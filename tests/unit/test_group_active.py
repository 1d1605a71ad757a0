"""What an operator reads where a group cannot be edited because it has members."""

from __future__ import annotations

from offsetmgr.core.errors import GroupActive

LOCK = "offsetmgr at /10.0.0.7 (offsetmgr-0b6f)"
CONSUMER = "shop at /10.0.0.8 (shop-41aa)"


def test_consumers_are_to_be_stopped() -> None:
    error = GroupActive("group g", "has active members", "stop its consumers first", members=(CONSUMER,))
    assert error.hint == "stop its consumers first"


def test_a_lock_that_a_killed_command_left_ends_by_itself() -> None:
    error = GroupActive("group g", "has active members", "stop its consumers first", members=(LOCK,))
    assert error.hint == (
        "another offsetmgr command is editing this group: try again when it has finished; if it was killed, its"
        " lock expires within 10 s"
    )


def test_with_a_consumer_with_the_lock_the_consumer_decides() -> None:
    error = GroupActive("group g", "has active members", "stop its consumers first", members=(LOCK, CONSUMER))
    assert error.hint == "stop its consumers first"
