#!/usr/bin/env python
"""Two commits of offsetmgr against each other: the speed of this tree as a ratio to that of an earlier commit.

Both trees run the same commands on the same real servers, in alternation: old, new, old, new. The first pair warms both
up and does not count. The bench prints the ratio of the speeds (above 1: this tree is faster) with the 95 % confidence
interval of its geometric mean over the pairs.

    scripts/bench/bench_against.py REV [--pairs 7] [--groups 300] [--only NAME ...]

Exits 1 if a whole interval lies below 0.95, which is a regression.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bench_relay import fill, read
from manager_servers import manager
from migrating import Bench, servers
from offset_client import OffsetClient
from source_tree import ROOT, Tree, checkout

LEAST = 0.95
SINGLES = 500
RELAYED = "relayed"
"""The topic that is read through the relays."""
STUDENT_T = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""The quantile 0.975 of Student's distribution, by degrees of freedom."""


Measure = Callable[[Tree], float]
"""Seconds, for the same work in both trees."""


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean, and the ends of its 95 % confidence interval."""
    logs = [math.log(one) for one in ratios]
    mean = statistics.fmean(logs)
    half = STUDENT_T.get(len(logs) - 1, 2.0) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def compare(name: str, old: Tree, new: Tree, measure: Measure, pairs: int) -> bool:
    """Prints the ratio; returns whether it is no regression."""
    measured = [(measure(old), measure(new)) for _ in range(pairs + 1)][1:]
    mean, low, high = interval([before / after for before, after in measured])
    before, after = (statistics.median(column) for column in zip(*measured, strict=True))
    print(
        f"{name:<22} {before:8.3f} s {after:8.3f} s {mean:6.3f}  [{low:.3f}, {high:.3f}]"
        f"  {'REGRESSION' if high < LEAST else 'ok'}",
        flush=True,
    )
    return high >= LEAST


# --- the measured work --------------------------------------------------------------------------------


def command_measures(bench: Bench) -> dict[str, Measure]:
    """Commands on a ZooKeeper and a broker, as whole processes."""
    csv = bench.directory / "groups.csv"

    def start(tree: Tree) -> float:
        return sum(tree.seconds("--help") for _ in range(5))

    def export(tree: Tree) -> float:
        return tree.seconds("offsets", "export", "--store", bench.zk, "--all-groups", str(bench.fresh(".avro")))

    def import_(tree: Tree) -> float:
        if not csv.exists():
            tree.run("-m", "offsetmgr", "offsets", "export", "--store", bench.zk, "--all-groups", str(csv))
        bench.count += 1
        moved = bench.fresh(".csv")
        lines = (line.rpartition(",") for line in csv.read_text().splitlines() if line)
        moved.write_text("".join(f"{key},{1_000 + bench.count}\n" for key, _, _ in lines))
        return tree.seconds(
            "offsets", "import", str(moved), "--store", bench.zk, "--execute", "--yes",
            "--before-image", str(bench.fresh(".avro")),
        )  # fmt: skip

    def migrate(tree: Tree) -> float:
        bench.empty_kafka()
        plan = str(bench.fresh(".json"))
        return (
            tree.seconds("migrate", "plan", "--from", bench.zk, "--to", bench.kafka_uri, "--all-groups", "-o", plan)
            + tree.seconds("migrate", "apply", plan, "--yes")
            + tree.seconds("migrate", "verify", plan)
        )

    def audit(tree: Tree) -> float:
        output = bench.fresh("-audit")
        return tree.seconds("spark", "audit", "--bootstrap-server", bench.kafka.bootstrap, "-o", str(output))

    def lag(tree: Tree) -> float:
        return tree.seconds("offsets", "lag", "--bootstrap-server", bench.kafka.bootstrap, "--all-groups")

    def describe(tree: Tree) -> float:
        return tree.seconds("groups", "describe", "--bootstrap-server", bench.kafka.bootstrap, "--all-groups")

    def check(tree: Tree) -> float:
        return tree.seconds("zk", "check", "--store", bench.zk, "--all-groups", codes=(0, 1))

    def log_offsets(tree: Tree) -> float:
        return tree.seconds("log", "offsets", str(bench.kafka.directory / "data"), codes=(0, 1))

    return {
        "help, 5 times": start,
        "export": export,
        "migrate": migrate,
        "lag": lag,
        "describe": describe,
        "zk check": check,
        "log offsets": log_offsets,
        "spark audit": audit,
        "import": import_,  # last: it writes offsets that no log has
    }


def manager_measures(clients: dict[Tree, OffsetClient]) -> dict[str, Measure]:
    """Commits and fetches through a manager of each tree, on the same broker, with the same client."""

    def seconds(work: Callable[[OffsetClient], object], times: int = 1) -> Measure:
        def measure(tree: Tree) -> float:
            started = time.perf_counter()
            for _ in range(times):
                work(clients[tree])
            return time.perf_counter() - started

        return measure

    return {
        "manager commits": seconds(OffsetClient.commits, 3),
        "manager fetches": seconds(OffsetClient.fetches, 10),
        "manager single commits": seconds(lambda client: client.single_commits(1, SINGLES)),
    }


def relay_measure(addresses: dict[Tree, str], records: int) -> Measure:
    """Reading all records of a topic through a relay of each tree."""

    def measure(tree: Tree) -> float:
        megabytes_per_second, size = read(addresses[tree], records, RELAYED)
        return size / 1e6 / megabytes_per_second

    return measure


PERIOD_CHANGE = """
import statistics, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import bench_period
with tempfile.TemporaryDirectory() as directory, bench_period.ZooKeeperServer(Path(directory)) as server:
    print(statistics.median(bench_period.measure(server, "ours", 4, 200, 40).turns_ms))
"""


def period_change(tree: Tree) -> float:
    """The median duration of a change of period, from the tree's own bench of four member processes."""
    return float(tree.run("-c", PERIOD_CHANGE, str(tree.path / "scripts" / "bench"))) / 1000


def measures(stack: ExitStack, bench: Bench, trees: tuple[Tree, Tree], records: int) -> Iterator[tuple[str, Measure]]:
    """All comparisons, by name. A manager runs only while the comparisons that need it are made."""
    yield from command_measures(bench).items()
    yield "period change", period_change
    bootstrap = bench.kafka.bootstrap
    with ExitStack() as managers:
        addresses = {}
        for name, tree in zip(("old", "new"), trees, strict=True):
            directory = bench.fresh("-manager")
            directory.mkdir()
            topic = ("--offsets-topic", f"offsets-{name}")
            running = managers.enter_context(manager(bootstrap, directory, *topic, environment=tree.environment))
            addresses[tree] = running.address
        clients = {tree: OffsetClient(address, len(bench.groups)) for tree, address in addresses.items()}
        yield from manager_measures(clients).items()
    fill(bootstrap, records, RELAYED)
    addresses = {}
    for name, tree in zip(("old", "new"), trees, strict=True):
        directory = bench.fresh("-relay")
        directory.mkdir()
        options = ("--offsets-topic", f"relayed-{name}", "--relay")
        running = stack.enter_context(manager(bootstrap, directory, *options, environment=tree.environment))
        addresses[tree] = running.address
    yield "relay", relay_measure(addresses, records)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", metavar="REV")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--groups", type=int, default=300)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    args = parser.parse_args()
    good = True
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="offsetmgr-bench-")))
        trees = stack.enter_context(checkout(args.revision, directory)), Tree(ROOT)
        for tree in trees:
            tree.compile()
        bench = stack.enter_context(servers(args.groups, 50))
        print(f"{args.pairs} pairs; {args.revision} and this tree; medians; ratio of the speeds with its 95 % interval")
        for name, measure in measures(stack, bench, trees, args.records):
            if not args.only or name in args.only:
                good &= compare(name, *trees, measure, args.pairs)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
