"""`BatchCommitter.commit_last_batch` after the query has ended: an unreadable checkpoint is not an empty one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from offsetmgr.core.model import TopicPartition
from offsetmgr.spark import BatchCommitter
from offsetmgr.testing.memory import MemoryStore

T0 = TopicPartition("t", 0)


def checkpoint(root: Path, offsets: str = 'v1\n{}\n{"t":{"0":9}}') -> Path:
    for directory in ("offsets", "commits"):
        (root / directory).mkdir(parents=True)
    (root / "metadata").write_text('{"id":"q"}')
    (root / "offsets" / "0").write_text(offsets)
    (root / "commits" / "0").write_text("v1\n{}")
    return root


def committer(store: MemoryStore, root: str) -> BatchCommitter:
    return BatchCommitter(store, "g", lambda _frame, _number: None, checkpoint=root)


def test_a_finished_batch_is_committed_and_an_unfinished_one_is_not(tmp_path: Path) -> None:
    store, root = MemoryStore(), checkpoint(tmp_path / "c")
    (root / "commits" / "0").unlink()
    assert committer(store, str(root)).commit_last_batch()
    assert store.data == {}

    (root / "commits" / "0").write_text("v1\n{}")
    assert committer(store, f"file:{root}").commit_last_batch()
    assert store.data["g"][T0].offset == 9


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("missing", "c"),
        ("empty directory", "c"),
        ("on another file system", "c"),
        ("no commits", "c"),
        ("not a directory", "c/commits"),
        ('v1\n{}\n{"t":{"0":9', "c/offsets/0"),
        ('v1\n{}\n{"t":{"0":-9}}', "c/offsets/0"),
        ('v1\n{}\n{"t":{"0":9}}\n\n', "c/offsets/0"),
        ('v2\n{}\norders:{"t":{"0":9', "c/offsets/0"),
        ("v2\n{}\norders", "c/offsets/0"),
        ("v1\n{}\n6", "c"),
        ("v1\n{}", "c/offsets/0"),
        ("v4\n{}\n{}", "c/offsets/0"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_named_and_does_not_count_as_committed(
    case: str, named: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, root = MemoryStore(), checkpoint(tmp_path / "c", case)
    where = str(root)
    match case:
        case "missing":
            shutil.rmtree(root)
        case "empty directory":
            shutil.rmtree(root)
            root.mkdir()
        case "on another file system":
            where = f"hdfs://name:8020{root}"
        case "no commits":
            shutil.rmtree(root / "commits")
            (root / "offsets" / "1").write_text("v1\n{}\n{}")
        case "not a directory":
            shutil.rmtree(root / "commits")
            (root / "commits").write_text("")

    batches = committer(store, where)

    assert not batches.commit_last_batch()
    assert store.data == {}
    assert f"checkpoint {where.removesuffix('c')}{named}: " in f"{batches.state.failing}: "
    assert [str(batches.state.failing) in record.message for record in caplog.records] == [True]
