"""``migrate plan --translate auto``: groups move to another cluster, where the same records have other offsets."""

from pathlib import Path
from typing import Any

import pytest
from committed_offsets import committed
from in_process import command, rows
from two_clusters import RECORDS, TwoClusters

pytestmark = pytest.mark.servers


class Planned:
    """Commands of a plan between the two clusters."""

    def __init__(self, clusters: TwoClusters, path: Path) -> None:
        self.clusters, self.path = clusters, path
        self.sides = ("--from", f"kafka://{clusters.a}", "--to", f"kafka://{clusters.b}")

    def plan(self, *words: str, code: int = 0) -> list[tuple[Any, ...]]:
        self.path.unlink(missing_ok=True)
        found = rows("migrate", "plan", *words, *self.sides, "--translate", "auto", "-o", self.path, code=code)
        names = ("group", "partition", "action", "source", "after", "verdict", "repeats", "skips")
        return [tuple(row[name] for name in names) for row in found]


@pytest.fixture
def planned(clusters: TwoClusters, tmp_path: Path) -> Planned:
    return Planned(clusters, tmp_path / "shop.plan")


def test_groups_are_written_at_the_records_that_they_have_committed(
    clusters: TwoClusters, planned: Planned, unique: str
) -> None:
    # Given a copy behind 7 foreign records, and one in which the copier wrote 40 to 59 twice after a restart
    topic = clusters.topic(unique, 2)
    clusters.foreign(topic, 7)
    clusters.copy(topic)
    clusters.copy(topic, 0, 60, partition=1)
    clusters.copy(topic, 40, RECORDS, partition=1)
    clusters.commit(unique, topic, {0: 50, 1: 50})
    assert planned.plan(unique) == [
        (unique, 0, "copy", 50, 57, "seen", 0, 0),
        (unique, 1, "copy", 50, 70, "seen", 0, 0),
    ]
    command("migrate", "apply", planned.path, "--yes")
    assert committed(f"kafka://{clusters.b}", unique) == {0: 57, 1: 70}
