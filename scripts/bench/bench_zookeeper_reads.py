#!/usr/bin/env python
"""Compares bulk reads of ZooKeeper: many nodes per request (3.6 and later), and one node per request, pipelined.

The same nodes are read by the same session class from a real 3.8 server, from the same server with the fallback
forced, and from a real 3.4.9 server, which has no multi-read, as the session detects.  All three must read the same.
The three take turns; the first round warms them up, and the median of the others counts.

    scripts/bench/bench_zookeeper_reads.py [--nodes 50000] [--rounds 3]

Exits with 1 if multi-read is less than 15 times as fast as the fallback on the same server, or the old server's
fallback is less than half as fast as the new one's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.client.session import Node, ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, OperationState

MIN_GAIN = 15.0
MIN_OF_OLD = 0.5
JVM = ("-Xmx1g", "-XX:+UseG1GC")


@dataclass
class Way:
    """One of the three kinds of reads, its session, and the seconds of each round."""

    name: str
    session: ZookeeperSession
    seconds: list[float] = field(default_factory=list)

    def read(self, paths: list[str]) -> list[Node]:
        started = time.perf_counter()
        found = self.session.get_many(paths)
        self.seconds.append(time.perf_counter() - started)
        return found

    def rate(self, nodes: int) -> float:
        """Nodes per second, as the median of all rounds but the first."""
        return nodes / statistics.median(self.seconds[1:])


def fill(session: ZookeeperSession, paths: list[str]) -> None:
    creations = [Create("/bench"), *(Create(path, f"{number}".encode()) for number, path in enumerate(paths))]
    batches = [creations[at : at + 500] for at in range(0, len(creations), 500)]
    if any(outcome.state is not OperationState.COMMITTED for outcome in session.transactions(batches)):
        sys.exit("the nodes could not be written")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    paths = [f"/bench/{number:06}" for number in range(args.nodes)]
    with (
        tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as directory,
        ZooKeeperServer(Path(directory) / "3.8", jvm=JVM) as new,
        ZooKeeperServer(Path(directory) / "3.4", version="3.4", jvm=JVM) as old,
        ZookeeperSession(new.connect) as many,
        ZookeeperSession(new.connect) as forced,
        ZookeeperSession(old.connect) as single,
    ):
        fill(many, paths)
        fill(single, paths)
        forced._multi_read = False  # as if the server had rejected it; there is no public setting for that
        ways = [Way("3.8, multi-read", many), Way("3.8, fall-back forced", forced), Way("3.4.9, fall-back", single)]
        expected = [f"{number}".encode() for number in range(args.nodes)]
        for _ in range(args.rounds + 1):
            for way in ways:
                read = way.read(paths)
                if [getattr(node, "data", node) for node in read] != expected:
                    sys.exit(f"{way.name}: the read offsets differ from the written ones")
        chosen = [way.session._multi_read for way in ways]
    if chosen != [True, False, False]:
        sys.exit(f"multi-read was to be used by the first session alone, but: {chosen}")
    multi, fall_back, old_rate = (way.rate(args.nodes) for way in ways)
    print(f"{args.nodes} nodes; medians of {args.rounds} rounds after one discarded")
    for way in ways:
        print(f"{way.name:<24} {way.rate(args.nodes):10,.0f} nodes/s  {way.rate(args.nodes) / fall_back:6.1f}x")
    good = multi >= MIN_GAIN * fall_back and old_rate >= MIN_OF_OLD * fall_back
    bounds = f"multi-read {MIN_GAIN:g}x, 3.4.9 {MIN_OF_OLD:g}x of the forced fall-back"
    print(f"bounds: {bounds}: {'ok' if good else 'TOO SLOW'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
