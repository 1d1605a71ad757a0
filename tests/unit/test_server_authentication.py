"""Logins to the listener, the credentials file and the rules file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_listener import MemoryBackend, MemoryListener, WireClient, commit_errors

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import AuthenticationFailed, ConfigError, UsageError
from offsetmgr.kafka.client.sasl import mechanism
from offsetmgr.server.network import socket_server
from offsetmgr.server.network.limits import ServerLimits
from offsetmgr.server.security import credentials as credentials_module
from offsetmgr.server.security.authentication import MECHANISMS, Authentication, Exchange, ScramExchange
from offsetmgr.server.security.authorization import (
    ADMIN_APIS,
    AllowAllAuthorizer,
    Operation,
    ReservedGroups,
    ReservedGroupsAuthorizer,
    load_rules,
)
from offsetmgr.server.security.credentials import (
    DIGESTS,
    Credentials,
    CredentialVerifier,
    load_credentials,
    scram_verifier,
)

HANDSHAKE, AUTHENTICATE, API_VERSIONS, METADATA = 17, 36, 18, 3
EMPTY = {"topics": []}


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    file = tmp_path_factory.mktemp("credentials") / "users.toml"
    verifiers = {name: scram_verifier(name, "bobs secret") for name in DIGESTS}
    file.write_text(
        f"""
        [users.alice]
        password = "alices secret, with a comma = and more"
        [users."cörnelia,=x"]
        password = "pässwörd"
        [users.bob]
        scram-sha-256 = "{verifiers["SCRAM-SHA-256"]}"
        scram-sha-512 = "{verifiers["SCRAM-SHA-512"]}"
        """
    )
    return load_credentials(file)


@pytest.fixture
def authentication(credentials: Credentials) -> Authentication:
    return Authentication(credentials)


def log_in(authentication: Authentication, name: str, user: str, password: str) -> str | None:
    """Performs a login between offsetmgr's client, which brokers accept, and its server. Returns the principal."""
    client = mechanism(name, user, password)
    server = authentication.exchange(name)
    assert server is not None
    message: bytes | None = client.start()
    principal = None
    while message is not None:
        reply, principal = server.step(message)
        message = client.answer(reply)
    return principal


USERS = [
    ("alice", "alices secret, with a comma = and more"),
    ("cörnelia,=x", "pässwörd"),
    ("bob", "bobs secret"),
]


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), USERS)
def test_a_login_with_the_right_password_succeeds(
    authentication: Authentication, name: str, user: str, password: str
) -> None:
    assert log_in(authentication, name, user, password) == user


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("alice", "bobs secret"),
        ("bob", ""),
        ("unknown", "bobs secret"),
        ("", ""),
        ("alice", "alices secret"),
        ("Alice", ""),
    ],
)
def test_all_failed_logins_get_the_same_error(
    authentication: Authentication, name: str, user: str, password: str
) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        log_in(authentication, name, user, password)
    assert str(caught.value) == "login: the credentials are not valid"


@pytest.mark.parametrize("name", list(DIGESTS))
def test_unknown_users_get_a_repeatable_challenge_like_that_of_known_users(
    authentication: Authentication, name: str
) -> None:
    def challenge(user: str) -> tuple[str, str]:
        exchange = authentication.exchange(name)
        assert exchange is not None
        fields = dict(
            part.split("=", 1) for part in exchange.step(f"n,,n={user},r=abc".encode()).reply.decode().split(",")
        )
        return fields["s"], fields["i"]

    assert challenge("unknown") == challenge("unknown")
    assert challenge("unknown") != challenge("another")
    assert {(len(salt), rounds) for salt, rounds in map(challenge, ("alice", "bob", "unknown"))} == {(24, "4096")}


def test_failed_logins_of_unknown_users_do_the_same_work(
    authentication: Authentication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key derivation takes nearly all of the time. A login without it would take a hundredth."""
    derived: list[tuple[str, int, int]] = []
    derive = credentials_module.derive

    def counted(mechanism: str, password: bytes, salt: bytes, iterations: int) -> CredentialVerifier:
        derived.append((mechanism, len(salt), iterations))
        return derive(mechanism, password, salt, iterations)

    monkeypatch.setattr(credentials_module, "derive", counted)

    for user in ("alice", "bob", "unknown"):
        derived.clear()
        with pytest.raises(AuthenticationFailed):
            log_in(authentication, "PLAIN", user, "wrong")
        assert derived == [("SCRAM-SHA-256", 18, 4096)]


def test_failed_logins_of_unknown_users_take_as_long(authentication: Authentication) -> None:
    """Compares processor time, which other processes do not lengthen: the least of many, within a generous factor."""

    def seconds(user: str) -> float:
        taken = []
        for _ in range(25):
            began = time.thread_time()
            with pytest.raises(AuthenticationFailed):
                log_in(authentication, "PLAIN", user, "wrong")
            taken.append(time.thread_time() - began)
        return min(taken)

    times = [seconds(user) for user in ("alice", "bob", "unknown")]
    assert max(times) < 5 * min(times)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0",
        b"\0alice",
        b"\0\0\0\0",
        b"\xff\xfe\0a\0b",
        b"bob\0alice\0alices secret, with a comma = and more",
        b"\0alice\0" + b"x" * 10_000,
    ],
)
def test_malformed_plain_messages_are_rejected(authentication: Authentication, message: bytes) -> None:
    exchange = authentication.exchange("PLAIN")
    assert exchange is not None
    with pytest.raises(AuthenticationFailed):
        exchange.step(message)


@given(first=st.binary(max_size=60), second=st.binary(max_size=60), honest=st.booleans())
def test_random_messages_raise_only_authentication_errors(
    credentials: Credentials, first: bytes, second: bytes, honest: bool
) -> None:
    for name in MECHANISMS:
        exchange: Exchange | None = Authentication(credentials).exchange(name)
        assert exchange is not None
        try:
            exchange.step(b"n,,n=alice,r=abc" if honest else first)
            assert exchange.step(second).principal is None
        except AuthenticationFailed:
            pass


def test_a_proof_of_one_exchange_is_invalid_in_another(credentials: Credentials) -> None:
    """A recorded login cannot be replayed, because the server's nonce differs."""
    name, user, password = "SCRAM-SHA-256", "bob", "bobs secret"
    client = mechanism(name, user, password)
    recorded = [client.start()]
    server = ScramExchange(name, credentials)
    final = client.answer(server.step(recorded[0]).reply)
    assert final is not None
    assert server.step(final).principal == "bob"

    again = ScramExchange(name, credentials)
    again.step(recorded[0])
    with pytest.raises(AuthenticationFailed):
        again.step(final)


def test_channel_binding_and_other_identities_are_rejected(credentials: Credentials) -> None:
    for first in (b"p=tls-unique,,n=bob,r=abc", b"n,a=alice,n=bob,r=abc", b"n,,m=x,n=bob,r=abc", b"n,,n=bob,r="):
        with pytest.raises(AuthenticationFailed):
            ScramExchange("SCRAM-SHA-256", credentials).step(first)


# --- logins over a connection --------------------------------------------------------------------------------------


@pytest.fixture
def secured(authentication: Authentication, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryListener]:
    monkeypatch.setattr(socket_server, "_SWEEP_S", 0.05)
    with MemoryListener(MemoryBackend(), authentication=authentication) as listening:
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


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("name", MECHANISMS)
def test_after_the_login_all_requests_are_answered(secured: MemoryListener, name: str, version: int) -> None:
    with WireClient(secured.port) as client:
        client.ask(API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"})
        assert authenticate(client, "bob", "bobs secret", name=name, version=version) == 0
        assert commit_errors(client.commit("g", {("t", 0): 5})) == {("t", 0): 0}
        (connection,) = secured.service.connections
        assert connection.principal == "bob"


@pytest.mark.parametrize("api_key", [METADATA, 8, 9, 10, 16, 999])
def test_before_the_login_only_login_requests_are_answered(secured: MemoryListener, api_key: int) -> None:
    with WireClient(secured.port) as client:
        client.ask(API_VERSIONS, 0, {})
        client.send(api_key, 5, b"\0" * 30)
        assert client.is_disconnected()
    assert secured.backend.commits == 0


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


@pytest.mark.parametrize(("user", "password"), [("bob", "wrong"), ("unknown", "wrong"), ("", "")])
@pytest.mark.parametrize("name", MECHANISMS)
def test_wrong_credentials_are_an_error_and_close_the_connection(
    secured: MemoryListener, name: str, user: str, password: str
) -> None:
    with WireClient(secured.port) as client:
        assert authenticate(client, user, password, name=name) == 58
        assert client.is_disconnected()


def test_failed_logins_are_counted_and_logged_without_the_user_name(
    secured: MemoryListener, caplog: pytest.LogCaptureFixture
) -> None:
    for user in ("bob", "hunter2"):
        with WireClient(secured.port) as client:
            authenticate(client, user, "wrong")
    with WireClient(secured.port) as client:
        assert shake(client, "hunter2") == 33
        assert client.is_disconnected()
    metrics = secured.service.metrics()
    assert metrics['logins_failed_total{mechanism="SCRAM-SHA-256"}'] == 2
    assert metrics['logins_failed_total{mechanism="unsupported"}'] == 1
    warnings = [vars(record) for record in caplog.records if record.levelname == "WARNING"]
    assert [(w["peer"], w["mechanism"], w["failed"]) for w in warnings] == [("127.0.0.1", "SCRAM-SHA-256", 1)]
    assert "hunter2" not in str(warnings)


def test_login_steps_out_of_order_close_the_connection(secured: MemoryListener) -> None:
    with WireClient(secured.port) as client:
        assert (
            client.ask(AUTHENTICATE, 2, {"auth_bytes": b"\0bob\0bobs secret"})["error_code"]
            == ErrorCode.ILLEGAL_SASL_STATE
        )
        assert client.is_disconnected()
    with WireClient(secured.port) as client:
        answer = client.ask(HANDSHAKE, 1, {"mechanism": "GSSAPI"})
        assert (answer["error_code"], answer["mechanisms"]) == (33, list(MECHANISMS))
        assert client.is_disconnected()


def test_a_client_that_does_not_log_in_is_disconnected(authentication: Authentication, secured: MemoryListener) -> None:
    limits = ServerLimits(authentication_seconds=10)
    with (
        MemoryListener(MemoryBackend(), authentication=authentication, limits=limits, manual_clock=True) as listening,
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


def test_large_requests_before_the_login_close_the_connection(secured: MemoryListener) -> None:
    with WireClient(secured.port) as client:
        client.socket.sendall((600 * 1024).to_bytes(4, "big"))
        assert client.is_disconnected()


def test_a_session_expires_and_only_the_same_user_can_extend_it(credentials: Credentials) -> None:
    authentication = Authentication(credentials, session_seconds=60)
    with (
        MemoryListener(MemoryBackend(), authentication=authentication, manual_clock=True) as listening,
        WireClient(listening.port) as client,
    ):
        assert shake(client, "PLAIN") == 0
        answer = client.ask(AUTHENTICATE, 1, {"auth_bytes": b"\0bob\0bobs secret"})
        assert (answer["error_code"], answer["session_lifetime"]) == (0, 60_000)
        for _ in range(4):
            listening.advance_time(59)
            client.ask(METADATA, 5, EMPTY)
            assert authenticate(client, "bob", "bobs secret", name="PLAIN") == 0
        listening.advance_time(61)
        client.send(METADATA, 5, EMPTY)
        assert client.is_disconnected()
    with MemoryListener(MemoryBackend(), authentication=authentication) as listening:
        for user, password, name in (("alice", USERS[0][1], "PLAIN"), ("bob", "wrong", "PLAIN")):
            with WireClient(listening.port) as client:
                assert authenticate(client, "bob", "bobs secret", name="PLAIN") == 0
                assert authenticate(client, user, password, name=name) == 58
                assert client.is_disconnected()


def test_no_bytes_that_a_client_sent_are_in_a_log_or_a_repr(
    secured: MemoryListener, credentials: Credentials, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with WireClient(secured.port) as client:
        authenticate(client, "bob", "hunter2", name="PLAIN")
    shown = caplog.text + repr(credentials) + repr(credentials.verifier("SCRAM-SHA-256", "bob"))
    assert "hunter2" not in shown
    assert "bobs secret" not in shown


# --- files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
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
    ],
)
def test_the_error_of_an_invalid_credentials_file_names_the_place_and_no_secret(
    tmp_path: Path, text: str, expected: str
) -> None:
    file = tmp_path / "users.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_credentials(file)
    assert expected in str(caught.value)
    assert str(file) in str(caught.value)
    assert caught.value.hint
    assert "hunter2" not in str(caught.value)


def test_missing_and_binary_files_are_errors(tmp_path: Path) -> None:
    for load in (load_credentials, load_rules):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            load(tmp_path / "nothing.toml")
        assert caught.value.hint
        (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
        with pytest.raises(ConfigError, match="is not UTF-8"):
            load(tmp_path / "binary.toml")


def test_only_known_mechanisms_can_be_offered(credentials: Credentials) -> None:
    with pytest.raises(UsageError):
        Authentication(credentials, ["GSSAPI"])
    assert Authentication(credentials, ["SCRAM-SHA-512"]).exchange("PLAIN") is None
    with pytest.raises(UsageError):
        scram_verifier("PLAIN", "x")
    with pytest.raises(UsageError):
        scram_verifier("SCRAM-SHA-256", "x", 1)


def test_rules_allow_exactly_the_listed_operations(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(
        """
        [[rule]]
        principals = ["billing"]
        groups = ["billing", "billing-*"]
        topics = ["orders*"]
        operations = ["read", "write"]

        [[rule]]
        principals = ["*"]
        groups = ["*"]
        operations = ["describe"]

        [[rule]]
        principals = ["admin"]
        groups = ["*"]
        topics = ["*"]
        operations = ["all"]
        """
    )
    rules = load_rules(file)
    read, write, delete, describe = Operation.READ, Operation.WRITE, Operation.DELETE, Operation.DESCRIBE

    assert rules.group("billing", read, "billing")
    assert rules.group("billing", write, "billing-eu")
    assert not rules.group("billing", write, "billing2"), "a name without a star matches only itself"
    assert not rules.group("billing", delete, "billing")
    assert rules.group("billing", describe, "anything"), "every user may describe groups"
    assert not rules.group("billing", read, "anything")
    assert rules.topic("billing", read, "orders-eu")
    assert not rules.topic("billing", read, "order")
    assert not rules.topic("someone", describe, "orders"), "no rule allows it"
    assert rules.group("admin", delete, "anything")
    assert rules.topic("admin", delete, "")


def test_admin_apis_need_a_rule_that_names_them(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(
        """
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
    )
    rules = load_rules(file)
    create, delete_topics, delete_records = 19, 20, 21
    assert all(rules.admin("operator", key, topic) for key in ADMIN_APIS for topic in (None, "anything"))
    assert not rules.topic("operator", Operation.DESCRIBE, "anything"), "a rule with APIs alone allows no operation"
    assert rules.admin("orders", create, "orders-eu")
    assert rules.admin("orders", delete_records, "orders")
    assert not rules.admin("orders", create, "billing")
    assert not rules.admin("orders", create, None), "a rule with topics covers only these topics"
    assert not rules.admin("orders", delete_topics, "orders")
    assert not rules.topic("orders", Operation.DESCRIBE, "orders"), "a rule without operations allows none"
    assert not any(rules.admin("admin", key, "orders") for key in ADMIN_APIS), "all operations include no API"


def test_no_rule_allows_reserved_names() -> None:
    reserved = ReservedGroups("offsets", "offsets.managers", "offsets-partition-")
    allowed = ReservedGroupsAuthorizer(AllowAllAuthorizer(), reserved)
    assert not any(allowed.topic("a", operation, "offsets") for operation in Operation)
    assert not any(allowed.group("a", operation, "offsets.managers") for operation in Operation)
    assert not allowed.admin("a", 20, "offsets")
    assert allowed.topic("a", Operation.WRITE, "offsets2")
    assert allowed.group("a", Operation.DELETE, "offsets")
    assert allowed.admin("a", 20, "orders")
    assert [reserved.has_transactional_id(name) for name in ("offsets-partition-7", "offsets-partitio", "x")] == [
        True,
        False,
        False,
    ]
    assert not ReservedGroups().has_transactional_id("anything")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "contains no [[rule]], so no client may do anything"),
        ("[rule]\nprincipals = ['a']", "rule: must be written as [[rule]]"),
        ("[[rule]]\ngroups = ['g']\noperations = ['all']", "rule 1.principals: must name a user"),
        ("[[rule]]\nprincipals = ['a']\noperations = ['all']", "rule 1: names neither groups nor topics"),
        (
            "[[rule]]\nprincipals = ['a']\napis = ['all']",
            "rule 1.apis: 'all' is not one of CreateTopics, DeleteTopics",
        ),
        (
            "[[rule]]\nprincipals = ['a']\napis = ['*']\noperations = ['read']",
            "rule 1: names neither groups nor topics",
        ),
        ("[[rule]]\nprincipals = ['a']\ngroups = ['g']\napis = ['*']", "rule 1.operations: must name at least one"),
        ("[[rule]]\nprincipals = ['a']\ngroups = ['g']", "rule 1.operations: must name at least one"),
        ("[[rule]]\nprincipals = ['a']\ngroups = ['g']\noperations = ['rwx']", "'rwx' is not one of describe, read"),
        ("[[rule]]\nprincipals = ['a']\ngroups = ['*g']\noperations = ['all']", "a star may only stand at the end"),
        ("[[rule]]\nprincipals = 'a'\ngroups = ['g']\noperations = ['all']", "rule 1.principals: must be a list"),
        ("[[rule]]\nprincipals = ['a']\ngroup = ['g']\noperations = ['all']", "rule 1.group: is an unknown field"),
    ],
)
def test_the_error_of_an_invalid_rules_file_names_the_place(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_rules(file)
    assert expected in str(caught.value)
