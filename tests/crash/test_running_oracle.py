"""The oracle of the tests that edit running groups reports inexact edits, and allows for a busy machine."""

from running_consumers import Assigned, Commit, Deliveries, Delivery, Edited, anomalies

EDIT = Edited("edit-0", {0: 40}, 100.0, 120.0)
WRITTEN = Commit(0, 40, "edit-0", 110.0)
END = 130.0


def found(deliveries: list[Delivery], *commits: Commit, member: str = "a") -> list[str]:
    assigned = [Assigned(115.0, 0, member)]
    return anomalies([EDIT], Deliveries(deliveries, assigned), [Commit(0, 90, "", 109.0), WRITTEN, *commits], END)


def records(begin: float, first: int, count: int, member: str = "a") -> list[Delivery]:
    return [Delivery(begin + 0.1 * number, 0, first + number, member) for number in range(count)]


def test_an_exact_edit_has_no_anomaly() -> None:
    assert found([*records(105, 90, 5), *records(116, 40, 5)], Commit(0, 43, "", 117), Commit(0, 45, "", 118)) == []


def test_an_old_position_and_an_earlier_commit_are_anomalies() -> None:
    assert found(records(116, 95, 5)) == ["edit-0: partition 0 went on at 95, not 40"]
    kept = found(records(116, 40, 5), Commit(0, 95, "", 112))
    assert kept == ["edit-0: partition 0 was committed at 95, edited to 40"]


def test_a_record_that_a_delayed_consumer_reports_late_is_no_anomaly() -> None:
    # The record at 44 is committed before the end, and reported after it.
    late = [*records(116, 40, 4), Delivery(131.0, 0, 44, "a")]
    assert found(late, Commit(0, 45, "", 129)) == []
    # Another consumer reports a record of its earlier assignment after the partition has a new owner.
    assert found([Delivery(115.5, 0, 95, "b"), *records(116, 40, 5)], Commit(0, 45, "", 118)) == []
