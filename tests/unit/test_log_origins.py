"""The messages about the relation between the logs of two stores."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from offsetmgr.core.log_origin import UNNAMED, LogOrigin, OffsetTranslation, Relation, compare_origins
from offsetmgr.stores.snapshot import SnapshotStore

HERE, THERE = LogOrigin("A" * 22, "cluster id"), LogOrigin("B" * 22, "cluster id")


def test_a_file_that_does_not_exist_yet_takes_the_sources_cluster(tmp_path: Path) -> None:
    file = SnapshotStore(tmp_path / "new.avro")
    compared = compare_origins(HERE, file.log_origin())
    assert compared.relation is Relation.NEW
    assert compared.text() == f"the source's: file:{quote(str(tmp_path))}/new.avro is a new file"
    assert compared.keeps_epochs
    assert compare_origins(UNNAMED, file.log_origin()).relation is Relation.UNKNOWN


def test_another_cluster_that_was_accepted_does_not_read_as_an_error() -> None:
    compared = compare_origins(HERE, THERE)
    named = f"the source belongs to cluster {HERE.cluster_id}, the target to {THERE.cluster_id}"
    assert compared.text() == f"not the same on both sides: {named}"
    assert compared.text(OffsetTranslation.NONE) == (
        f"accepted by --translate none: {named}; offsets are written unchanged, without leader epochs"
    )
