"""The files and offsets that the shell blocks of single pages of the documentation use.

Call `prepare` before the blocks of a page run.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from doc_blocks import blocks, with_addresses

from offsetmgr import OffsetAdmin, TopicPartition
from offsetmgr.period import PeriodCoordinator, PeriodSchedule
from offsetmgr.period import TopicPartition as PeriodPartition
from offsetmgr.segments.batch_builder import batch
from offsetmgr.segments.batch_reader import Record

FIRST_MS: Final = 1_700_006_400_000
HOUR_MS: Final = 3_600_000
ORDERS: Final = TopicPartition("orders", 0)
SEGMENT: Final = "00000000000000000000.log"


class Scene(NamedTuple):
    """The page, the directory in which its blocks run, the directory that its broker's ``log_dir`` is, and the
    addresses of `doc_blocks.ADDRESSES`."""

    page: Path
    directory: Path
    log_dir: Path
    addresses: dict[str, str]

    def toml(self, number: int) -> str:
        """The ``toml`` block of the page with this number."""
        text = [block.text for block in blocks(self.page) if block.language == "toml"][number]
        return with_addresses(text, self.addresses)


@contextmanager
def offsets(uri: str, state: Path, *groups: str) -> Iterator[None]:
    """Groups that are at ``orders:0``, offset 4, and that are deleted at the end."""
    with OffsetAdmin(uri) as admin:
        for group in groups:
            plan = admin.plan_set(group, {ORDERS: 4}, create=True)
            assert plan.execute(state / f"{group}.avro").written == 1
        yield
        assert admin.plan_delete(list(groups)).execute(state / "deleted.avro").ok


def copy_logs(scene: Scene) -> None:
    for pattern in ("__consumer_offsets-*", "orders-*"):
        for log in scene.log_dir.glob(pattern):
            shutil.copytree(log, Path(scene.addresses["logs"]) / log.name)


def lost_cluster(scene: Scene) -> None:
    """The lost cluster has the group ``shop``. The new cluster does not."""
    state = scene.directory.parent / "lost"
    with offsets(f"kafka://{scene.addresses['kafka']}", state, "shop"):
        copy_logs(scene)


def damaged_logs(scene: Scene) -> None:
    """Three partitions with damaged logs, and one that is intact."""

    def entries(count: int, size: int) -> list[bytes]:
        return [batch([Record(offset, FIRST_MS, b"key", bytes(size))]) for offset in range(count)]

    damaged = {
        "orders-0": entries(60, 500),
        "orders-1": [*entries(60, 500), bytes(1000)],  # an invalid entry
        "orders-2": [b"".join(entries(60, 500))[:-77]],  # a missing tail
        "orders-3": [*entries(50, 4200), *entries(4, 4200)],  # entries in doubt
    }
    for name, parts in damaged.items():
        log = Path(scene.addresses["logs"]) / name
        log.mkdir(parents=True)
        (log / SEGMENT).write_bytes(b"".join(parts))


def security(scene: Scene) -> None:
    """A certificate, its key, and the files that the page shows."""
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "chain.pem", *names],
        cwd=scene.directory,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (scene.directory / "credentials.toml").write_text(scene.toml(0))
    (scene.directory / "rules.toml").write_text(scene.toml(1))
    (scene.directory / "managers.toml").write_text(scene.toml(2))
    (scene.directory / "manager.properties").write_text("security.protocol=PLAINTEXT\n")
    (scene.directory / "admin.properties").write_text("security.protocol=PLAINTEXT\n")


def relay(scene: Scene) -> None:
    (scene.directory / "admin.properties").write_text("security.protocol=PLAINTEXT\n")


def commits_in_manager(scene: Scene) -> None:
    with OffsetAdmin(f"manager://{scene.addresses['manager']}") as admin:
        plan = admin.plan_set("shop-new", {ORDERS: 20}, create=True)
        assert plan.execute(scene.directory / "commits.avro").written == 1


def store_section(scene: Scene) -> None:
    """The section of the config file that the page shows."""
    config = scene.directory.parent / "config" / "offsetmgr" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(scene.toml(0))


def daily_periods(scene: Scene) -> None:
    """A run of daily periods, which began on 2025-07-02 and has no members any more."""
    mine = PeriodPartition("orders", 0)
    schedule = PeriodSchedule(first_ms=1_751_414_400_000, length_ms=24 * HOUR_MS)
    periods = "/offsetmgr/periods/daily"
    with PeriodCoordinator(
        scene.addresses["zookeeper"], periods, "worker-1", schedule, lambda: [mine], owned=[mine]
    ) as coordinator:
        coordinator.open_period()


PREPARE: Final[dict[str, Callable[[Scene], None]]] = {
    "log-recovery": damaged_logs,
    "lost-cluster": lost_cluster,
    "manager-relay": relay,
    "manager-store": store_section,
    "monitor-an-offset-manager": commits_in_manager,
    "periods": daily_periods,
    "secure-an-offset-manager": security,
    "segments": copy_logs,
}


def prepare(scene: Scene) -> None:
    if scene.page.stem in PREPARE:
        PREPARE[scene.page.stem](scene)


def serves(page: Path) -> bool:
    """Whether a block of the page that runs starts a manager."""
    return any("manager serve" in block.text for block in blocks(page) if block.runs)
