"""Examples from documents: the corrected text is read, and invalid text as printed is rejected with its path."""

from __future__ import annotations

import pytest
from zookeeper_examples import EXAMPLES, Example

from offsetmgr.core.errors import CorruptData


def name(example: Example) -> str:
    return example.name


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_the_corrected_example_is_read(example: Example) -> None:
    assert example.parse(example.path, example.corrected.encode()) == example.value


@pytest.mark.parametrize("example", [one for one in EXAMPLES if one.printed is not None], ids=name)
def test_the_invalid_example_as_printed_is_rejected_with_its_path(example: Example) -> None:
    assert example.printed is not None

    with pytest.raises(CorruptData) as caught:
        example.parse(example.path, example.printed.encode())

    assert caught.value.what == f"ZooKeeper node {example.path}"
    assert caught.value.why


def test_every_directory_of_the_documents_has_an_example() -> None:
    directories = {
        "/brokers/ids/",
        "/brokers/topics/orders",
        "/brokers/topics/orders/0",
        "/brokers/topics/orders/partitions/",
        "/consumers/foobar/ids/",
        "/consumers/foobar/offsets/topic1/",
        "/consumers/foobar/owners/topic1/",
        "/consumers/push/ids/",
        "/consumers/push/offsets/orders/",
        "/consumers/push/owners/orders/",
        "/cluster/id",
        "/controller",
        "/controller_epoch",
        "/config/topics/",
        "/admin/reassign_partitions",
        "/admin/preferred_replica_election",
        "/admin/delete_topics",
    }

    assert [one for one in sorted(directories) if not any(e.path.startswith(one) for e in EXAMPLES)] == []
