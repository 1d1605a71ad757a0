"""Logins to the listener, the credentials file and the rules file."""

import asyncio
import base64
import gc
import hashlib
import hmac
import select
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from async_tests import async_test
from backend_listeners import serve_options
from confluent_kafka import KafkaError
from memory_listener import (
    BUDGET,
    MemoryListener,
    WireClient,
    commit_errors,
    default_options,
    limits,
    longest_callback,
    read_response,
    wait_until,
)

from offsetmgr import open_store, scram_verifier
from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import AuthenticationFailed, ConfigError
from offsetmgr.kafka.client.sasl import mechanism
from offsetmgr.server.manager_process import load_authentication, load_authorizer
from offsetmgr.server.network.ports import client_network
from offsetmgr.server.network.requests import ApiRequest
from offsetmgr.server.security import login_limits
from offsetmgr.server.security.login_limits import LoginLimits

HANDSHAKE, AUTHENTICATE, API_VERSIONS, METADATA = 17, 36, 18, 3
EMPTY = {"topics": []}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
ALICES_SECRET = "alices secret, with a comma = and more"


def verifier(digest: str, password: bytes) -> str:
    """The form in which Kafka stores a password (RFC 5802)."""
    salt = b"a salt of 18 bytes"
    salted = hashlib.pbkdf2_hmac(digest, password, salt, 4096)
    stored = hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest()
    parts = (salt, stored, hmac.digest(salted, b"Server Key", digest))
    return ":".join(["4096", *(base64.b64encode(part).decode() for part in parts)])


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("credentials") / "users.toml"
    file.write_text(
        f"""
        [users.alice]
        password = "{ALICES_SECRET}"
        [users."cörnelia,=x"]
        password = "pässwörd"
        [users.bob]
        scram-sha-256 = "{verifier("sha256", b"bobs secret")}"
        scram-sha-512 = "{verifier("sha512", b"bobs secret")}"
        """
    )
    return file


@pytest.fixture(scope="module")
def authentication(credentials: Path) -> Any:
    return load_authentication(replace(default_options(), credentials=str(credentials)))


def observed(authentication: Any, user: str) -> tuple[list[str], tuple[str, ...]]:
    """The salts and the iterations in the challenges of both SCRAM mechanisms."""
    first = f"n,,n={user},r=abc".encode()
    challenges = [authentication.exchange(name).step(first).reply.decode().split(",") for name in MECHANISMS[1:]]
    return [salt for _, salt, _ in challenges], tuple(iterations for _, _, iterations in challenges)


VARIED_USERS = {
    **{f"new{n}": ("scram-sha-256", scram_verifier("SCRAM-SHA-256", "secret", 8192)) for n in range(2)},
    **{f"old{n}": ("scram-sha-512", scram_verifier("SCRAM-SHA-512", "secret", 4096)) for n in range(4)},
    "other": ("password", "secret"),
}
NAMES = [f"unknown{n}" for n in range(300)]


def varied(file: Path, users: Mapping[str, tuple[str, str]] = VARIED_USERS) -> Any:
    tables = [f'[users.{user}]\n{field} = "{value}"\n' for user, (field, value) in users.items()]
    file.write_text('secret = "of this test"\n' + "".join(tables))
    return loaded(file, "credentials")


def test_challenges_do_not_tell_unknown_users_from_known_ones(tmp_path: Path) -> None:
    """Six users have verifiers, two of them with 8192 iterations. So a third of the unknown names gets such ones."""
    authentication = varied(tmp_path / "users.toml")
    unknown = Counter(observed(authentication, user)[1] for user in NAMES)
    known = Counter(observed(authentication, user)[1] for user in VARIED_USERS if user != "other")
    assert set(known) == set(unknown)
    assert all(abs(unknown[seen] / len(NAMES) - known[seen] / 6) < 0.1 for seen in known)
    salts = [salt for user in [*NAMES, *VARIED_USERS] for salt in observed(authentication, user)[0]]
    assert len({len(salt) for salt in salts}) == 1
    assert len(set(salts)) == len(salts), "also those of one user"


def test_challenges_stay_the_same_after_a_restart_and_when_the_file_changes(tmp_path: Path) -> None:
    def challenges(authentication: Any) -> list[Any]:
        return [observed(authentication, user) for user in [*NAMES, *VARIED_USERS, "later"]]

    before = challenges(varied(tmp_path / "a.toml"))
    assert challenges(varied(tmp_path / "b.toml")) == before, "on another manager"
    changes = {"later": ("password", "x"), **VARIED_USERS, "other": ("password", "changed")}
    assert challenges(varied(tmp_path / "a.toml", changes)) == before


def test_plain_logins_do_the_same_work_for_unknown_users_as_for_known_ones(tmp_path: Path, monkeypatch) -> None:
    work: list[tuple[str, int]] = []
    derive = hashlib.pbkdf2_hmac

    def recorded(digest: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        work.append((digest, iterations))
        return derive(digest, password, salt, 1)

    authentication = varied(tmp_path / "users.toml")
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", recorded)

    def work_of(user: str) -> tuple[tuple[str, int], ...]:
        work.clear()
        with pytest.raises(AuthenticationFailed):
            authentication.exchange("PLAIN").step(f"\0{user}\0wrong".encode())
        return tuple(work)

    known = {work_of(user) for user in VARIED_USERS}
    assert known == {(("sha256", 8192),), (("sha512", 4096),)}
    assert {work_of(user) for user in NAMES} == known


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("PLAIN", b""),
        ("PLAIN", b"\0"),
        ("PLAIN", b"\0alice"),
        ("PLAIN", b"\0\0\0\0"),
        ("PLAIN", b"\xff\xfe\0a\0b"),
        ("PLAIN", b"bob\0alice\0alices secret, with a comma = and more"),
        ("SCRAM-SHA-256", b"p=tls-unique,,n=bob,r=abc"),  # channel binding
        ("SCRAM-SHA-256", b"n,a=alice,n=bob,r=abc"),
        ("SCRAM-SHA-256", b"n,,m=x,n=bob,r=abc"),
        ("SCRAM-SHA-256", b"n,,n=bob,r="),
    ],
)
def test_malformed_messages_and_other_identities_are_rejected(authentication: Any, name: str, message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        authentication.exchange(name).step(message)


def test_a_proof_of_one_exchange_is_invalid_in_another(authentication: Any) -> None:
    """A recorded login cannot be replayed, because the server's nonce differs."""
    client = mechanism("SCRAM-SHA-256", "bob", "bobs secret")
    recorded, server = client.start(), authentication.exchange("SCRAM-SHA-256")
    final = client.answer(server.step(recorded).reply)
    assert server.step(final).principal == "bob"

    again = authentication.exchange("SCRAM-SHA-256")
    again.step(recorded)
    with pytest.raises(AuthenticationFailed):
        again.step(final)


# --- logins over a connection --------------------------------------------------------------------------------------


@pytest.fixture
def secured(credentials: Path, quick_sweeps: None) -> Iterator[MemoryListener]:
    with MemoryListener(credentials=credentials) as listening:
        yield listening


def shake(client: WireClient, name: str) -> int:
    return int(client.ask(HANDSHAKE, 1, {"mechanism": name})["error_code"])


def authenticate(client: WireClient, user: str, password: str, *, name: str = "SCRAM-SHA-256", version: int = 2) -> int:
    assert shake(client, name) == 0
    exchange = mechanism(name, user, password)
    message: bytes | None = exchange.start()
    while message is not None:
        answer = client.ask(AUTHENTICATE, version, {"auth_bytes": message})
        if answer["error_code"]:
            assert answer["error_message"] == "Authentication failed"
            return int(answer["error_code"])
        message = exchange.answer(answer["auth_bytes"])
    return 0


@pytest.mark.parametrize(
    ("user", "password"), [("alice", ALICES_SECRET), ("cörnelia,=x", "pässwörd"), ("bob", "bobs secret")]
)
@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("name", MECHANISMS)
def test_after_the_login_all_requests_are_answered(secured, name: str, version: int, user: str, password: str) -> None:
    with WireClient(secured.port) as client:
        client.ask(API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"})
        assert authenticate(client, user, password, name=name, version=version) == 0
        assert commit_errors(client.commit("g", {("t", 0): 5})) == {("t", 0): 0}
        (connection,) = secured.service.connections
        assert connection.principal == user


@pytest.mark.parametrize("api_key", [METADATA, 8, 9, 10, 16, 999])
def test_before_the_login_only_login_requests_are_answered(secured: MemoryListener, api_key: int) -> None:
    with WireClient(secured.port) as client:
        client.ask(API_VERSIONS, 0, {})
        client.send(api_key, 5, b"\0" * 30)
        assert client.is_disconnected()
    assert secured.backend.commits == 0


def test_features_are_announced_only_after_the_login(secured: MemoryListener) -> None:
    """They name the offsets topic."""
    secured.backend.announced = {"offsetmgr.conditional": 1}
    with WireClient(secured.port) as client:
        software = {"client_software_name": "a", "client_software_version": "1"}
        assert client.ask(API_VERSIONS, 3, software)["supported_features"] == []
        assert authenticate(client, "bob", "bobs secret") == 0
        assert client.ask(API_VERSIONS, 3, software)["supported_features"] != []
    login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "bob", "sasl.password": "bobs secret"}
    config = ConnectionConfig(kafka={"security.protocol": "sasl_plaintext", **login})
    with open_store(f"manager://{secured.bootstrap}", config) as store:
        assert store.capabilities.conditional == "version"


def test_a_request_sent_right_after_a_login_waits_for_its_outcome(secured: MemoryListener) -> None:
    for password, answered in (("bobs secret", True), ("wrong", False)):
        with WireClient(secured.port) as client:
            assert shake(client, "PLAIN") == 0
            client.send(AUTHENTICATE, 1, {"auth_bytes": f"\0bob\0{password}".encode()})
            client.send(METADATA, 5, EMPTY)
            client.receive()
            if answered:
                client.receive()
            else:
                assert client.is_disconnected()


@pytest.mark.parametrize(
    ("user", "password"),
    [
        *[("bob", "wrong"), ("bob", ""), ("alice", "bobs secret"), ("alice", "alices secret")],
        *[("unknown", "bobs secret"), ("", "bobs secret"), ("", ""), ("Alice", "")],
    ],
)
@pytest.mark.parametrize("name", MECHANISMS)
def test_wrong_credentials_are_an_error_and_close_the_connection(secured, name: str, user: str, password: str) -> None:
    with WireClient(secured.port) as client:
        assert authenticate(client, user, password, name=name) == 58
        assert client.is_disconnected()


def test_failed_logins_are_counted_and_no_bytes_of_clients_are_in_a_log_or_a_repr(secured, authentication, caplog):
    caplog.set_level("DEBUG")
    for user, password, name in (("bob", "hunter2", "SCRAM-SHA-256"), ("hunter2", "wrong", "SCRAM-SHA-256")):
        with WireClient(secured.port) as client:
            authenticate(client, user, password, name=name)
    with WireClient(secured.port) as client:
        assert shake(client, "hunter2") == 33
        assert client.is_disconnected()
    metrics = secured.service.metrics()
    assert metrics['logins_failed_total{mechanism="SCRAM-SHA-256"}'] == 2
    assert metrics['logins_failed_total{mechanism="unsupported"}'] == 1
    warnings = [vars(record) for record in caplog.records if record.levelname == "WARNING"]
    assert [(w["peer"], w["mechanism"], w["count"]) for w in warnings] == [("127.0.0.1", "SCRAM-SHA-256", 1)]
    with WireClient(secured.port) as client:
        authenticate(client, "bob", "hunter2", name="PLAIN")
    users = authentication.credentials
    shown = caplog.text + str(warnings) + repr(users) + repr(users.verifier("SCRAM-SHA-256", "bob"))
    assert "hunter2" not in shown
    assert "bobs secret" not in shown


# --- many logins of one address ------------------------------------------------------------------------------------


def plain_login(port: int, user: str, password: str, *, address: str | None = None) -> WireClient:
    """Sends a login and does not wait for its response."""
    client = WireClient(port, address=address)
    assert shake(client, "PLAIN") == 0
    client.send(AUTHENTICATE, 2, {"auth_bytes": f"\0{user}\0{password}".encode()})
    return client


def login_error(client: WireClient) -> int:
    with client:
        return int(read_response(AUTHENTICATE, 2, client.receive())["error_code"])


def failed_logins(listening: MemoryListener) -> float:
    return sum(value for name, value in listening.service.metrics().items() if name.startswith("logins_failed_total"))


@pytest.fixture
def stopped(credentials: Path) -> Iterator[MemoryListener]:
    """A listener whose clock only the test advances, so that no delay ends by itself."""
    allowed = limits(login_timeout_s=1)  # less than the delays, which it does not count
    with MemoryListener(credentials=credentials, limits=allowed, manual_clock=True) as listening:
        yield listening
        assert wait_until(lambda: listening.advance_time(5) is None and not asyncio.all_tasks(listening.loop))


def test_a_password_is_not_hashed_on_the_event_loop(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text(f'[users.bob]\nscram-sha-256 = "{scram_verifier("SCRAM-SHA-256", "secret", 65_536)}"\n')
    with MemoryListener(credentials=file) as listening:
        assert longest_callback(lambda: login_error(plain_login(listening.port, "bob", "wrong"))) < BUDGET


def test_the_delay_of_failed_logins_grows_with_the_failures_of_the_address(stopped: MemoryListener) -> None:
    steps: list[tuple[float, str, float]] = [(0, "127.0.0.1", s) for s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4, 4)]
    steps += [(0, "127.0.0.2", 0.1), (3600, "127.0.0.1", 0.1)]
    for number, (pause_s, address, delay_s) in enumerate(steps, 1):
        stopped.advance_time(pause_s)
        with plain_login(stopped.port, "bob", "wrong", address=address) as client:
            assert wait_until(lambda: failed_logins(stopped) == number)  # noqa: B023 - called in this turn
            stopped.advance_time(delay_s * 0.7)  # some failures are forgotten meanwhile
            assert not select.select([client.socket], [], [], 0)[0]
            stopped.advance_time(delay_s * 0.3 + 0.01)
            assert login_error(client) == 58
        assert login_error(plain_login(stopped.port, "bob", "bobs secret", address=address)) == 0, "without a delay"


@pytest.mark.parametrize("name", MECHANISMS)
def test_guesses_of_clients_that_disconnect_are_bounded_and_leave_nothing(stopped, name: str, monkeypatch) -> None:
    monkeypatch.setattr(login_limits, "_MAX_DELAYS", 32)

    def guess() -> WireClient:
        if name == "PLAIN":
            return plain_login(stopped.port, "bob", "wrong")
        client, exchange = WireClient(stopped.port), mechanism(name, "bob", "wrong")
        assert shake(client, name) == 0
        challenge = client.ask(AUTHENTICATE, 2, {"auth_bytes": exchange.start()})["auth_bytes"]
        client.send(AUTHENTICATE, 2, {"auth_bytes": exchange.answer(challenge)})
        return client

    flood = [guess() for _ in range(40)]
    assert wait_until(lambda: failed_logins(stopped) == 32)
    for client in flood:
        client.socket.close()
    assert wait_until(lambda: not stopped.service.connections and not stopped.service.held_bytes)
    assert wait_until(lambda: gc.collect() >= 0 and not [o for o in gc.get_objects() if isinstance(o, ApiRequest)])
    assert login_error(plain_login(stopped.port, "bob", "bobs secret", address="127.0.0.2")) == 0
    waiting = plain_login(stopped.port, "bob", "bobs secret")
    assert not select.select([waiting.socket], [], [], 0.1)[0], "the delays go on"
    stopped.advance_time(4.1)
    assert login_error(waiting) == 0
    assert failed_logins(stopped) == 32, "the passwords of the others were not checked"


@pytest.mark.parametrize("user", ["bob", "alice"])
def test_users_behind_the_address_of_failing_clients_log_in_without_a_delay(stopped, user: str) -> None:
    flood = [plain_login(stopped.port, name, "wrong") for name in [user, "unknown"] * 70]
    assert wait_until(lambda: failed_logins(stopped) == 140)
    clients = [plain_login(stopped.port, "bob", "bobs secret") for _ in range(100)]
    assert [login_error(client) for client in clients] == [0] * 100
    for client in flood:
        client.socket.close()


@async_test
async def test_the_memory_for_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPv6 addresses count by network, because a host may have a whole network of them."""
    monkeypatch.setattr(login_limits, "_MAX_ADDRESSES", 50)
    found = LoginLimits()
    for number in range(100):
        await found.check(client_network(f"2001:db8:0:{number:x}::1"), lambda: True)
        assert len(found.addresses) == min(number + 1, 50)
    assert {client_network(peer) for peer in ("2001:db8::1%eth0", "2001:db8::ffff:2")} == {"2001:db8::"}
    assert {client_network(peer) for peer in ("::ffff:10.0.0.1", "10.0.0.1")} == {"10.0.0.1"}


# --- limits before the login, and sessions -------------------------------------------------------------------------


def test_login_steps_out_of_order_and_large_requests_before_the_login_close_the_connection(secured) -> None:
    with WireClient(secured.port) as client:
        answer = client.ask(AUTHENTICATE, 2, {"auth_bytes": b"\0bob\0bobs secret"})
        assert answer["error_code"] == KafkaError.ILLEGAL_SASL_STATE
        assert client.is_disconnected()
    with WireClient(secured.port) as client:
        answer = client.ask(HANDSHAKE, 1, {"mechanism": "GSSAPI"})
        assert (answer["error_code"], answer["mechanisms"]) == (33, list(MECHANISMS))
        assert client.is_disconnected()
    with WireClient(secured.port) as client:
        client.socket.sendall((600 * 1024).to_bytes(4, "big"))  # too large before a login
        assert client.is_disconnected()
    with plain_login(secured.port, "bob", "x" * 10_000) as client:
        assert client.is_disconnected()
    assert failed_logins(secured) == 1


def test_requests_behind_an_unanswered_login_hold_no_memory(stopped: MemoryListener) -> None:
    client = plain_login(stopped.port, "bob", "wrong")
    assert wait_until(lambda: failed_logins(stopped) == 1)
    client.send(METADATA, 5, EMPTY)
    assert wait_until(lambda: [one.idle for one in stopped.service.connections] == [False])
    assert not select.select([client.socket], [], [], 0)[0], "the delay goes on"
    for _ in range(2):
        client.send(AUTHENTICATE, 2, {"auth_bytes": bytes(60_000)})
    assert wait_until(lambda: not stopped.service.connections and not stopped.service.held_bytes)
    assert client.is_disconnected()
    assert stopped.service.metrics()['connections_cut_total{why="memory"}'] == 1


def test_an_address_with_too_many_connections_closes_only_its_own(credentials: Path) -> None:
    allowed = limits(max_connections=3, max_connections_per_address=2)
    with MemoryListener(credentials=credentials, limits=allowed) as listening, WireClient(listening.port) as other:
        other.ask(API_VERSIONS, 0, {})
        flood = [WireClient(listening.port, address="127.0.0.2") for _ in range(6)]
        assert all(client.is_disconnected() for client in flood[:4])
        other.ask(API_VERSIONS, 0, {})
        for client in flood:
            client.socket.close()


def test_a_client_that_does_not_log_in_is_disconnected(credentials: Path, quick_sweeps: None) -> None:
    allowed = limits(login_timeout_s=10)
    with (
        MemoryListener(credentials=credentials, limits=allowed, manual_clock=True) as listening,
        WireClient(listening.port) as silent,
        WireClient(listening.port) as done,
    ):
        silent.ask(API_VERSIONS, 0, {})
        assert authenticate(done, "bob", "bobs secret") == 0
        listening.advance_time(9)
        silent.ask(API_VERSIONS, 0, {})
        listening.advance_time(2)
        assert silent.is_disconnected()
        assert listening.service.metrics()['connections_cut_total{why="no login"}'] == 1
        done.ask(METADATA, 5, EMPTY)


def test_only_the_same_user_can_authenticate_again(credentials: Path) -> None:
    alice = ("alice", ALICES_SECRET)
    with MemoryListener(credentials=credentials) as listening:
        for user, password in (alice, ("bob", "wrong")):
            with WireClient(listening.port) as client:
                assert authenticate(client, "bob", "bobs secret", name="PLAIN") == 0
                assert authenticate(client, "bob", "bobs secret", name="PLAIN") == 0
                assert authenticate(client, user, password, name="PLAIN") == 58
                assert client.is_disconnected()


# --- files --------------------------------------------------------------------------------------------


def loaded(file: Path, what: str) -> Any:
    """The settings that the manager loads from a file with ``credentials`` or ``rules``."""
    options = replace(default_options(), **{"credentials": "unused", what: str(file)})
    return load_authentication(options) if what == "credentials" else load_authorizer(options)


RULE = "[[rule]]\nprincipals = ['a']\n"
INVALID_CREDENTIALS = [
    ("[users.a\n", "line 1"),
    ("\n\nx = @", "line 3"),
    ("", "contains no [users.NAME]"),
    ("[user.a]\npassword = 'x'", "user: is an unknown field; known are users"),
    ("[users.a]\npasswort = 'hunter2'", "users.a.passwort: is an unknown field"),
    ("[users.a]\npassword = ''", "users.a.password: must be a string that is not empty"),
    ("[users.a]\npassword = 7", "users.a.password: must be a string that is not empty"),
    ("[users.a]", "users.a: has none of password"),
    ("[users]\na = 'hunter2'", "users.a: must be a table"),
    ("[users.a]\nscram-sha-256 = 'hunter2'", "users.a.scram-sha-256: must be iterations:salt"),
    ("[users.a]\nscram-sha-256 = '1:AAAA:AAAA:AAAA'", "its iterations must be between 4096 and 65536"),
    ("[users.a]\nscram-sha-256 = '4096:AAAA:AAAA:AAAA'", "its keys must have 32 bytes each"),
]
INVALID_RULES = [
    ("", "contains no [[rule]], so no client may do anything"),
    ("[rule]\nprincipals = ['a']", "rule: must be written as [[rule]]"),
    ("[[rule]]\ngroups = ['g']\noperations = ['all']", "rule 1.principals: must name a user"),
    (f"{RULE}operations = ['all']", "rule 1: names neither groups nor topics"),
    (f"{RULE}apis = ['all']", "rule 1.apis: 'all' is not one of CreateTopics, DeleteTopics"),
    (f"{RULE}apis = ['*']\noperations = ['read']", "rule 1: names neither groups nor topics"),
    (f"{RULE}groups = ['g']\napis = ['*']", "rule 1.operations: must name at least one"),
    (f"{RULE}groups = ['g']", "rule 1.operations: must name at least one"),
    (f"{RULE}groups = ['g']\noperations = ['rwx']", "'rwx' is not one of describe, read"),
    (f"{RULE}groups = ['*g']\noperations = ['all']", "a star may only stand at the end"),
    ("[[rule]]\nprincipals = 'a'\ngroups = ['g']\noperations = ['all']", "rule 1.principals: must be a list"),
    (f"{RULE}group = ['g']\noperations = ['all']", "rule 1.group: is an unknown field"),
]


@pytest.mark.parametrize(
    ("what", "text", "expected"),
    [("credentials", *row) for row in INVALID_CREDENTIALS] + [("rules", *row) for row in INVALID_RULES],
)
def test_the_error_of_an_invalid_file_names_the_place_and_no_secret(tmp_path, what, text: str, expected: str) -> None:
    file = tmp_path / "file.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        loaded(file, what)
    assert expected in str(caught.value)
    assert str(file) in str(caught.value)
    assert caught.value.hint
    assert "hunter2" not in str(caught.value)


def test_plain_without_tls_and_a_file_that_everybody_can_read_get_a_warning(credentials: Path, caplog) -> None:
    for mode, plain_allowed in ((0o640, False), (0o640, True), (0o644, False)):
        caplog.clear()
        credentials.chmod(mode)
        more = [] if plain_allowed else ["--no-sasl-plain"]
        found: Any = load_authentication(serve_options("nowhere:1", "--credentials", str(credentials), *more))
        assert [found.exchange(name) is not None for name in MECHANISMS] == [plain_allowed, True, True]
        assert ("passwords in the clear" in caplog.text, "chmod o-r" in caplog.text) == (plain_allowed, mode == 0o644)
    with pytest.raises(ConfigError, match="clients do not log in"):
        load_authentication(serve_options("nowhere:1", "--no-sasl-plain"))


@pytest.mark.parametrize("what", ["credentials", "rules"])
def test_missing_and_binary_files_are_errors(tmp_path: Path, what: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        loaded(tmp_path / "nothing.toml", what)
    assert caught.value.hint
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        loaded(tmp_path / "binary.toml", what)


def test_the_start_names_users_whose_rules_have_only_the_operations_of_offsets(tmp_path: Path, caplog) -> None:
    file = tmp_path / "rules.toml"
    rules = {"old": ["read", "write"], "new": ["read", "write", "consume"], "bob": ["all"], "monitor": ["describe"]}
    lines = "[[rule]]\nprincipals = ['{}']\ntopics = ['*']\noperations = {}\n"
    file.write_text("".join(lines.format(*rule) for rule in rules.items()))
    load_authorizer(replace(default_options(), credentials="unused", rules=str(file), relay=True))
    (record,) = caplog.records
    assert (record.levelname, record.users) == ("WARNING", "old")
    assert "neither produce nor consume" in record.message


ADMIN_RULES = """
[[rule]]
principals = ["operator"]
apis = ["*"]

[[rule]]
principals = ["orders"]
apis = ["CreateTopics", "DeleteRecords"]
topics = ["orders*"]

[[rule]]
principals = ["admin"]
groups = ["*"]
topics = ["*"]
operations = ["all"]
"""
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 19, 20, 21
SOME_APIS = (CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, 32, 74)


@pytest.mark.parametrize(
    ("principal", "api_key", "topic", "allowed"),
    [
        *[("operator", key, topic, True) for key in SOME_APIS for topic in (None, "anything")],
        ("orders", CREATE_TOPICS, "orders-eu", True),
        ("orders", DELETE_RECORDS, "orders", True),
        ("orders", CREATE_TOPICS, "billing", False),
        ("orders", CREATE_TOPICS, None, False),  # a rule with topics covers only these topics
        ("orders", DELETE_TOPICS, "orders", False),
        *[("admin", key, "orders", False) for key in SOME_APIS],  # all operations include no API
    ],
)
def test_admin_apis_need_a_rule_that_names_them(tmp_path, principal: str, api_key: int, topic, allowed: bool) -> None:
    (tmp_path / "rules.toml").write_text(ADMIN_RULES)
    assert loaded(tmp_path / "rules.toml", "rules").admin(principal, api_key, topic) is allowed
