"""A manager and a real broker under the floods of `hostile_client`, with a canary whose answers are checked.

A canary commits and fetches. It must never get a wrong response, and its commits must survive a restart of the
manager. The manager's memory must stay within a bound. `scripts/soak` also floods the broker: the 99th percentile of
the canary's latency may grow by at most the same factor at the manager as at the broker.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from certificates import self_signed
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificate
from hostile_client import KINDS, logged_in
from manager_cluster import Manager
from memory_listener import ConnectionClosedByBroker, WireClient, commit_errors
from processes import DEADLINE_S, OFFSETMGR, create_topic, own_environment, start_command, wait_for

from offsetmgr import scram_verifier
from offsetmgr.sandbox import KraftBroker
from offsetmgr.sandbox.broker import BROKER_JVM
from offsetmgr.sandbox.ports import free_port

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
SEED = int(os.environ.get("OFFSETMGR_SEED") or 20261130)
FLOOD_S = 15.0
GROUPS = 20
INTERVAL_S = 0.02
"""The time between two commits of a canary."""
MAX_RESIDENT_MB = 768
"""256 MiB of requests and 256 MiB of unread responses (`ManagerSettings.max_held_bytes`), and as much for all else."""
JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20") if SOAK else BROKER_JVM
"""The soak compares the manager with a broker that has the JVM flags of Kafka's own scripts."""
USERS = """
[users.canary]
password = "canary-secret"
[users.mallory]
password = "mallory-secret"
[users.operator]
scram-sha-256 = "{verifier}"
"""
RULES = """
[[rule]]
principals = ["canary"]
groups = ["canary*"]
topics = ["canary"]
operations = ["read", "write"]
[[rule]]
principals = ["mallory"]
groups = ["mallory"]
topics = ["mallory"]
operations = ["all"]
"""


class Canary:
    """A client that commits to its groups in turn at fixed times, and fetches each offset that it committed."""

    def __init__(self, port: int, certificate: Path) -> None:
        self.port, self._certificate = port, certificate
        self._possible: dict[str, set[int]] = {}
        """The last acknowledged value of each group, or -1, and later ones whose commit had no response or an error."""
        self.wrong: list[object] = []
        self._client: WireClient | None = None

    def run(self, seconds: float, acknowledged: int = 0) -> list[float]:
        """Commits for this time, and then until this number of commits is acknowledged. Returns the latencies in
        milliseconds, from the time at which a commit was due, so that a stall delays every commit that was due during
        the stall. The latency of a failed commit is infinite. The client stays connected until the next call."""
        latencies: list[float] = []
        due = time.monotonic()
        end = due + seconds
        while time.monotonic() < end or len(latencies) - latencies.count(math.inf) < acknowledged:
            assert time.monotonic() < end + DEADLINE_S, "the server acknowledges no commits"
            try:
                self._client = self._client or logged_in(self.port, self._certificate, "canary")
                time.sleep(max(0.0, due - time.monotonic()))
                latencies.append(self._round(self._client, f"canary-{len(latencies) % GROUPS}", due))
            except (ConnectionClosedByBroker, OSError):
                self._client = None
                latencies.append(math.inf)
            due += INTERVAL_S
        return latencies

    def _round(self, client: WireClient, group: str, due: float) -> float:
        possible = self._possible.setdefault(group, {-1})
        value = max(possible) + 1
        possible.add(value)
        errors = set(commit_errors(client.commit(group, {("canary", p): value for p in range(3)})).values())
        if errors != {0}:
            time.sleep(0.1)
            return math.inf
        self._possible[group] = {value}
        self._check(client, group)
        return 1000 * (time.monotonic() - due)

    def _check(self, client: WireClient, group: str) -> None:
        message = {"group_id": group, "topics": [{"name": "canary", "partition_indexes": [0, 1, 2]}]}
        (topic,) = client.ask(9, 5, message)["topics"]
        found = {(p["error_code"], p["committed_offset"]) for p in topic["partitions"]}
        if len(found) > 1 or not found <= {(0, value) for value in self._possible[group]}:
            self.wrong.append((group, self._possible[group], found))

    def check_all(self) -> bool:
        """Checks the offsets of all groups. Returns whether the server answered."""
        try:
            with logged_in(self.port, self._certificate, "canary") as client:
                errors = [commit_errors(client.commit(group, {("canary", 9): 0})) for group in self._possible]
                if any(code for answer in errors for code in answer.values()):
                    return False
                for group in self._possible:
                    self._check(client, group)
        except (ConnectionClosedByBroker, OSError):
            return False
        return True


@contextlib.contextmanager
def flood(port: int, certificate: Path, kinds: Sequence[str] = KINDS) -> Iterator[Counter[str]]:
    """Runs the block under a flood from two processes, which share one core. Afterwards the result is the number of
    requests and connections of each kind."""
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, str(Path(__file__).with_name("hostile_client.py")), str(port), str(certificate)]
    environ = {**own_environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    processes: list[Any] = [
        start_command(str(SEED + n), str(core), *kinds, program=command, environ=environ, stdin=subprocess.PIPE)
        for n in (0, 100)
    ]
    outcomes: Counter[str] = Counter()
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        yield outcomes
        for process in processes:
            outcomes += Counter(json.loads(process.communicate(timeout=90)[0]))
    finally:
        for process in processes:
            process.kill()
            process.wait()


def peak_resident_mb(pid: int) -> int:
    """The kernel's maximum of the process's resident memory since the last call."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate, with ``key.pem`` and ``keys.p12`` in the same directory."""
    directory = tmp_path_factory.mktemp("tls")
    self_signed(directory)
    key = load_pem_private_key((directory / "key.pem").read_bytes(), None)
    assert isinstance(key, RSAPrivateKey)
    chain = load_pem_x509_certificate((directory / "cert.pem").read_bytes())
    store = pkcs12.serialize_key_and_certificates(b"broker", key, chain, None, BestAvailableEncryption(b"changeit"))
    (directory / "keys.p12").write_bytes(store)
    return directory / "cert.pem"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[tuple[KraftBroker, int]]:
    """A broker, and its port with TLS and logins."""
    plain, login, controller = free_port(), free_port(), free_port()
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    users = " ".join(f'user_{name}="{name}-secret"' for name in ("canary", "mallory", "operator"))
    listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{login}"
    config = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{module} required {users};",
        "ssl.keystore.location": certificate.with_name("keys.p12"),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": "changeit",
        "log.retention.bytes": 1 << 25,
        "log.segment.bytes": 1 << 23,
        "log.retention.check.interval.ms": 1000,
        "log.segment.delete.delay.ms": 100,
    }
    directory = tmp_path_factory.mktemp("broker")
    with KraftBroker(directory, port=plain, controller_port=controller, config=config, jvm=JVM) as broker:
        create_topic(broker.bootstrap, "canary", 3)
        create_topic(broker.bootstrap, "mallory", 50)
        yield broker, login


@pytest.fixture
def manager(broker: tuple[KraftBroker, int], certificate: Path, tmp_path: Path) -> Iterator[Manager]:
    (tmp_path / "users.toml").write_text(
        USERS.format(verifier=scram_verifier("SCRAM-SHA-256", "operator-secret", 65_536))
    )
    (tmp_path / "rules.toml").write_text(RULES)
    tls = ["--tls-certificate", str(certificate), "--tls-key", str(certificate.with_name("key.pem"))]
    secured = ["--credentials", "users.toml", "--rules", "rules.toml", "--relay"]
    manager = Manager(tmp_path, "manager", broker[0].bootstrap, *tls, *secured, program=OFFSETMGR)
    manager.start()
    yield manager
    manager.kill()


def percentile_99(latencies: list[float]) -> float:
    return sorted(latencies)[len(latencies) * 99 // 100]


def test_a_manager_under_a_flood_answers_correctly_within_its_memory(manager, certificate: Path, broker) -> None:
    canary = Canary(manager.port, certificate)
    wait_for(canary.check_all, "the manager answers")
    canary.run(0.5)
    peak_resident_mb(manager.pid)

    with flood(manager.port, certificate) as outcomes:
        latencies = canary.run(60.0 if SOAK else 6.0, acknowledged=5)

    peak = peak_resident_mb(manager.pid)
    sys.stdout.write(f"\n{dict(outcomes)}\n{len(latencies)} rounds, {peak} MB\n")
    assert peak < MAX_RESIDENT_MB
    manager.kill()
    manager.start()
    wait_for(canary.check_all, "the manager answers after its restart")
    assert canary.wrong == []
    assert "defect" not in manager.log.read_text()
    assert "Traceback" not in manager.log.read_text()


@pytest.mark.soak
@pytest.mark.parametrize(
    "kinds", [*((one,) for one in KINDS), KINDS], ids=lambda kinds: kinds[0] if len(kinds) == 1 else "all"
)
def test_floods_slow_a_manager_no_more_than_a_broker(manager, broker, certificate: Path, kinds: Sequence[str]) -> None:
    canaries = {"manager": Canary(manager.port, certificate), "broker": Canary(broker[1], certificate)}
    quiet: dict[str, list[float]] = {}
    flooded: dict[str, list[float]] = {}
    for canary in canaries.values():
        wait_for(canary.check_all, "the server answers")
    peak_resident_mb(manager.pid)
    for _ in range(3 if kinds == KINDS else 1):
        for name, canary in canaries.items():
            canary.run(2)
            quiet.setdefault(name, []).extend(canary.run(FLOOD_S))
            with flood(canary.port, certificate, kinds) as outcomes:
                flooded.setdefault(name, []).extend(canary.run(FLOOD_S))
            sys.stdout.write(f"{name}: {dict(outcomes)}\n")
            if name == "manager":
                peak = peak_resident_mb(manager.pid)
    factors = {}
    for name in canaries:
        before, after = percentile_99(quiet[name]), percentile_99(flooded[name])
        factors[name] = after / before
        sys.stdout.write(f"{name}: 99th percentile {before:.1f} ms -> {after:.1f} ms, factor {factors[name]:.1f}, ")
        sys.stdout.write(f"{len(flooded[name])} rounds, {flooded[name].count(math.inf)} failed, {peak} MB\n")
    assert [canary.wrong for canary in canaries.values()] == [[], []]
    assert peak < MAX_RESIDENT_MB
    if kinds == KINDS:
        assert factors["manager"] <= factors["broker"]
