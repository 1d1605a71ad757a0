"""``migrate mirror --translate auto``: two real clusters; groups of A are kept at the same records of B."""

import pytest
from committed_offsets import committed
from in_process import rows
from two_clusters import TwoClusters

pytestmark = pytest.mark.servers


def test_thin(clusters: TwoClusters, unique: str) -> None:
    topic = clusters.topic(unique, 2)
    clusters.foreign(topic, 7)
    clusters.copy(topic)
    clusters.copy(topic, partition=1)
    clusters.commit(unique, topic, {0: 50, 1: 60})
    sides = ("--from", f"kafka://{clusters.a}", "--to", f"kafka://{clusters.b}", "--translate", "auto")
    print(rows("migrate", "mirror", "--yes", *sides, "--group", unique, "--once"))
    assert committed(f"kafka://{clusters.b}", unique) == {0: 57, 1: 60}
