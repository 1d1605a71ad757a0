#!/usr/bin/env python
"""Compares the offset manager with a real broker's group coordinator, with the same confluent-kafka client.

commits   50 partitions each, 200 in flight, through the Admin client; and the CPU time of the manager
fetches   the same
singles   synchronous commits of one partition and of 50 partitions, one at a time, through a consumer

A null server that only answers is measured in the same way. Its throughput is the limit of the client. Each server is
warmed up, then all are measured in turns. All processes share the machine, so only ratios within one run are
comparable.

    scripts/bench/bench_manager.py [--rounds 3] [--groups 2000] [--only NAME ...] [--record-format avro|kafka]
        [--before REV] [--replicas 3] [--flame-graph FILE.svg]

``--before`` also measures a manager of an earlier commit. ``--replicas 3`` compares single commits on three brokers
4.4.0 with three replicas. ``--flame-graph`` records the manager under commits (with ``--only singles`` under single
commits), and prints its ten hottest functions.

Exits with 1 if a result misses its bound.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import flame_graph
from manager_servers import PARTITIONS, Server, broker, manager, null_server, replicated_brokers
from offset_client import IN_FLIGHT, OffsetClient
from source_tree import checkout

WARM_UP = 3
SINGLE_BLOCKS = 10
SINGLES_A_BLOCK = 100
COMMIT_SHARE = 0.95
"""The least throughput of commits, as a share of the broker's."""
FETCH_SHARE = 1.3
CEILING_SHARE = 0.9
"""If the null server is hardly faster than the broker, this share of the null server's throughput is enough."""
MAX_CPU_S = 0.6
"""For 100,000 offsets."""
MAX_MEDIAN_MS = 1.0
MAX_MEDIAN_RATIO = 4.0
MAX_P99_RATIO = 3.0
MAX_REPLICATED_RATIO = 2.0
FLAME_GRAPH_S = 15.0
HOTTEST = 10
BROKER, MANAGER, BEFORE, NULL = "broker", "manager", "before", "null server"


class Side(NamedTuple):
    """A server, and its client."""

    server: Server
    client: OffsetClient


Sides = Mapping[str, Side]
"""The compared servers, by name."""


def rates(kind: str, sides: Sides, rounds: int) -> bool:
    """Prints the offsets per second of every server. Returns whether the manager meets its bound."""
    run = {name: getattr(side.client, kind) for name, side in sides.items()}
    for _ in range(WARM_UP):
        for measure in run.values():
            measure()
    measured = [{name: measure() for name, measure in run.items()} for _ in range(rounds)]
    at = {name: statistics.median(one[name] for one in measured) for name in run}
    share = {"commits": COMMIT_SHARE, "fetches": FETCH_SHARE}[kind]
    bound = min(share * at[BROKER], CEILING_SHARE * at[NULL])
    spread = sorted(one[MANAGER] / one[BROKER] for one in measured)
    good = at[MANAGER] >= bound
    print(f"{kind} of {PARTITIONS}, {IN_FLIGHT} in flight")
    for name, rate in at.items():
        shares = f"{rate / at[BROKER]:5.2f} of the broker  {rate / at[NULL]:5.2f} of the null server"
        print(f"  {name:<12}{rate:>12,.0f}/s  {shares}")
    print(
        f"  {'ok' if good else 'LOW'}: bound {bound:,.0f}/s, the lower of {share:g} of the broker and"
        f" {CEILING_SHARE:g} of the null server; ratios of the pairs {spread[0]:.2f} to {spread[-1]:.2f}",
        flush=True,
    )
    return good


def cpu(sides: Sides, rounds: int) -> bool:
    """Prints the CPU time of every server for 100,000 offsets. Returns whether the manager meets its bound."""
    used = {}
    for name, (server, client) in sides.items():
        client.commits()
        before = server.cpu_seconds
        for _ in range(rounds):
            client.commits()
        used[name] = (server.cpu_seconds - before) / (rounds * client.offsets) * 100_000
    good = used[MANAGER] <= MAX_CPU_S
    print("CPU seconds for 100,000 committed offsets: " + ", ".join(f"{name} {s:.2f}" for name, s in used.items()))
    print(f"  {'ok' if good else 'HIGH'}: bound {MAX_CPU_S:g}", flush=True)
    return good


def singles(sides: Sides, partitions: int, *, replicated: bool) -> bool:
    """Prints percentiles of synchronous commits. Returns whether those of the manager meet their bounds."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for block in range(1 + SINGLE_BLOCKS):
        for name, side in sides.items():
            durations = side.client.single_commits(partitions, SINGLES_A_BLOCK)
            found[name] += durations if block else []
    print(f"single commits of {partitions}, {SINGLE_BLOCKS * SINGLES_A_BLOCK} each")
    at = {name: _percentiles(durations) for name, durations in found.items()}
    for name, (median, p90, p99) in at.items():
        print(f"  {name:<12} p50 {median:6.3f} ms  p90 {p90:6.3f} ms  p99 {p99:6.3f} ms")
    median, _, p99 = (own / peer for own, peer in zip(at[MANAGER], at[BROKER], strict=True))
    print(f"  manager to broker: p50 {median:.2f}, p99 {p99:.2f}")
    if replicated:
        good = median <= MAX_REPLICATED_RATIO
        print(f"  {'ok' if good else 'SLOW'}: bound {MAX_REPLICATED_RATIO:g} times the broker's p50", flush=True)
        return good
    good = median <= MAX_MEDIAN_RATIO and at[MANAGER][0] < MAX_MEDIAN_MS and p99 <= MAX_P99_RATIO
    print(
        f"  {'ok' if good else 'SLOW'}: bounds {MAX_MEDIAN_RATIO:g} times the broker's p50 and {MAX_MEDIAN_MS:g} ms,"
        f" {MAX_P99_RATIO:g} times its p99",
        flush=True,
    )
    return good


def _percentiles(durations: Sequence[float]) -> tuple[float, float, float]:
    ranked = sorted(durations)
    return statistics.median(ranked), ranked[int(len(ranked) * 0.9)], ranked[int(len(ranked) * 0.99)]


def draw(side: Side, image: Path, *, single: bool) -> None:
    """Writes a flame graph of the manager while it commits, and prints the functions that take the most time."""
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            if single:
                side.client.single_commits(1, SINGLES_A_BLOCK)
            else:
                side.client.commits()

    thread = threading.Thread(target=load)
    assert side.server.pid is not None
    with flame_graph.sampler() as py_spy:
        thread.start()
        try:
            stacks = flame_graph.record(py_spy, side.server.pid, FLAME_GRAPH_S, image)
        finally:
            stop.set()
            thread.join()
    print(f"flame graph of the manager: {image}; its {HOTTEST} hottest functions")
    for name, inside, own in flame_graph.hottest(stacks, HOTTEST):
        print(f"  {own:6.1%} in it, {inside:6.1%} with its calls  {name}")


def run_all(stack: ExitStack, args: argparse.Namespace) -> bool:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="offsetmgr-bench-")))
    replicated = args.replicas == 3
    servers = {BROKER: stack.enter_context((replicated_brokers if replicated else broker)(directory))}
    bootstrap, form = servers[BROKER].address, ("--record-format", args.record_format)
    if args.before:
        tree = stack.enter_context(checkout(args.before, directory))
        tree.compile()
        (directory / BEFORE).mkdir()
        options = (*form, "--offsets-topic", "offsets-before")
        servers[BEFORE] = stack.enter_context(
            manager(bootstrap, directory / BEFORE, *options, environment=tree.environment)
        )
    servers[MANAGER] = stack.enter_context(manager(bootstrap, directory, *form))
    servers[NULL] = stack.enter_context(null_server(directory))
    sides = {name: Side(one, OffsetClient(one.address, args.groups)) for name, one in servers.items()}
    chosen = args.only or (["singles"] if replicated else ["commits", "fetches", "singles"])
    print(f"{args.groups} groups, medians of {args.rounds} rounds, load of the machine {os.getloadavg()[0]:.1f}")
    good = [rates(kind, sides, args.rounds) for kind in ("commits", "fetches") if kind in chosen]
    if "commits" in chosen:
        processes = {name: side for name, side in sides.items() if side.server.pid is not None}
        good.append(cpu(processes, args.rounds))
    if "singles" in chosen:
        good += [singles(sides, number, replicated=replicated) for number in (1, PARTITIONS)]
    if args.flame_graph:
        draw(sides[MANAGER], args.flame_graph, single=args.only == ["singles"])
    print(f"load of the machine {os.getloadavg()[0]:.1f}")
    return all(good)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--groups", type=int, default=2000)
    parser.add_argument("--only", nargs="+", choices=["commits", "fetches", "singles"])
    parser.add_argument("--record-format", default="avro")
    parser.add_argument("--before", metavar="REV")
    parser.add_argument("--replicas", type=int, choices=[1, 3], default=1)
    parser.add_argument("--flame-graph", type=Path, metavar="FILE.svg")
    args = parser.parse_args()
    with ExitStack() as stack:
        return 0 if run_all(stack, args) else 1


if __name__ == "__main__":
    sys.exit(main())
