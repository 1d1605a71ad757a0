"""ZooKeeper with ACLs and with SASL.

Created nodes have the configured ACL, old consumers can write their nodes, and errors name missing credentials.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import ACL, Id, make_digest_acl, make_digest_acl_credential
from kazoo_client import connected
from old_consumers import old_member
from processes import fill, own_environment, run_command, wait_for

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import AuthenticationFailed, NotAuthorized, OffsetMgrError, PartialFailure
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.sandbox.java import QUICK_START
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, OperationState

pytestmark = pytest.mark.servers

TOOL = ("digest", "tool:hunter2")
TOOL_ID = make_digest_acl_credential("tool", "hunter2")
APP = make_digest_acl("app", "sesame", all=True)


def config(auth: tuple[str, str] | None = None, acl: str = "") -> ConnectionConfig:
    return ConnectionConfig(timeout_ms=300_000, zookeeper_auth=(auth,) if auth else (), zookeeper_acl=acl)


def committed(store: ZookeeperStore, group: str, tp: TopicPartition) -> int:
    found = store.fetch(group, [tp])[tp]
    assert isinstance(found, Committed)
    return found.offset


def plain(connect: str, *auth: tuple[str, str]) -> AbstractContextManager[KazooClient]:
    """Another program's ZooKeeper client."""
    return connected(connect, auth_data=list(auth))


def acl_of(client: KazooClient, path: str) -> list[tuple[int, str, str]]:
    return [(acl.perms, acl.id.scheme, acl.id.id) for acl in client.get_acls(path)[0]]


CREATORS_BUT_WRITABLE = [(31, "digest", TOOL_ID), (15, "world", "anyone")]
"""The creator has all permissions, and all others have all but the permission to change the ACL."""


@pytest.fixture(autouse=True)
def group_is_deleted(zookeeper: ZooKeeperServer, unique: str) -> Iterator[None]:
    """Other tests read all groups of this server."""
    yield
    with plain(zookeeper.connect, TOOL, ("digest", "app:sesame")) as client:
        if client.exists(f"/consumers/{unique}"):
            client.delete(f"/consumers/{unique}", recursive=True)


class TestCreatedNodes:
    def test_without_a_configured_acl_nodes_are_open_as_in_kafka(self, zookeeper: ZooKeeperServer, unique: str) -> None:
        with ZookeeperStore(zookeeper.connect, config=config(TOOL)) as store, plain(zookeeper.connect) as client:
            store.commit(unique, {TopicPartition("t", 0): OffsetAndMetadata(5)})

            assert acl_of(client, f"/consumers/{unique}/offsets/t/0") == [(31, "world", "anyone")]

    def test_the_creator_owns_nodes_and_old_consumers_can_write_them(self, zookeeper, unique) -> None:
        tp = TopicPartition("t", 0)
        with (
            ZookeeperStore(zookeeper.connect, config=config(TOOL, "creator")) as store,
            ZookeeperStore(zookeeper.connect, config=config()) as old,
            plain(zookeeper.connect, TOOL) as client,
            plain(zookeeper.connect) as foreign_owner,
        ):
            store.commit(unique, {tp: OffsetAndMetadata(5)})

            for node in ("", "/offsets", "/offsets/t", "/offsets/t/0"):
                assert acl_of(client, f"/consumers/{unique}{node}") == CREATORS_BUT_WRITABLE, node
            old.commit(unique, {tp: OffsetAndMetadata(6), TopicPartition("t", 1): OffsetAndMetadata(1)})
            old.delete(unique, [TopicPartition("t", 1)])
            assert committed(store, unique, tp) == 6
            with pytest.raises(NoAuthError):
                foreign_owner.set_acls(f"/consumers/{unique}/offsets/t/0", [ACL(31, Id("world", "anyone"))])

    def test_a_configured_acl_is_applied(self, zookeeper: ZooKeeperServer, unique: str) -> None:
        acl = f"digest:{TOOL_ID}:cdrwa,ip:127.0.0.1:r"
        with (
            ZookeeperStore(zookeeper.connect, "storm", config(None, acl), root=f"/{unique}/storm") as store,
            plain(zookeeper.connect, TOOL) as client,
        ):
            store.commit("spout", {TopicPartition("t", 0): OffsetAndMetadata(5)})

            assert acl_of(client, f"/{unique}/storm/spout/partition_0") == [
                (31, "digest", TOOL_ID),
                (1, "ip", "127.0.0.1"),
                (15, "world", "anyone"),
            ]

    def test_the_acl_of_a_restricted_parent_is_copied(self, zookeeper: ZooKeeperServer, unique: str) -> None:
        """The clients that may write the group's other offsets may write the new ones, and no other client may."""
        tool = make_digest_acl("tool", "hunter2", all=True)
        with (
            ZookeeperStore(zookeeper.connect, config=config(TOOL, "creator")) as store,
            plain(zookeeper.connect, ("digest", "app:sesame")) as app,
        ):
            app.create(f"/consumers/{unique}/offsets", makepath=True)
            app.set_acls(f"/consumers/{unique}/offsets", [APP, tool])

            store.commit(unique, {TopicPartition("t", 0): OffsetAndMetadata(5)})

            restricted = [(31, "digest", APP.id.id), (31, "digest", TOOL_ID)]
            assert acl_of(app, f"/consumers/{unique}/offsets/t") == restricted
            assert acl_of(app, f"/consumers/{unique}/offsets/t/0") == restricted

    def test_the_acl_of_a_parent_is_not_copied_without_permission_to_see_all_of_it(self, zookeeper, unique) -> None:
        """Without the admin permission the server hides the digests, so a copy of the ACL would admit no client."""
        tool = make_digest_acl("tool", "hunter2", read=True, write=True, create=True)
        with (
            ZookeeperStore(zookeeper.connect, config=config(TOOL, "creator")) as store,
            plain(zookeeper.connect, ("digest", "app:sesame")) as app,
        ):
            app.create(f"/consumers/{unique}/offsets", makepath=True)
            app.set_acls(f"/consumers/{unique}/offsets", [APP, tool])

            edits = [
                GroupEdit(group, {TopicPartition("t", 0): Change(OffsetAndMetadata(5))})
                for group in (unique, f"{unique}-2")
            ]
            refused, written = store.edit(edits)

            (error,) = refused.failures.values()
            assert "digest:tool may not read its whole ACL (permission a)" in str(error)
            assert not written.failures

            assert app.get_children(f"/consumers/{unique}/offsets") == []

    def test_ephemeral_nodes_are_writable_by_their_creator_and_readable_by_all(self, zookeeper, unique) -> None:
        with ZookeeperSession(zookeeper.connect, config(TOOL, "creator")) as session, plain(zookeeper.connect) as other:
            assert session.transaction([Create(f"/{unique}", b"me", ephemeral=True)]).state is OperationState.COMMITTED

            assert other.get(f"/{unique}")[0] == b"me"
            with pytest.raises(NoAuthError):
                other.set(f"/{unique}", b"you")

    def test_a_real_old_consumer_commits_to_nodes_that_offsetmgr_owns(self, kafka, make_topic, unique, tmp_path):
        topic = make_topic(unique, 2)
        with ZookeeperStore(kafka.zookeeper, config=config(TOOL, "creator")) as store:
            partitions = [TopicPartition(topic, n) for n in range(2)]
            store.commit(unique, dict.fromkeys(partitions, OffsetAndMetadata(0)))
            fill(kafka.bootstrap, topic, 10, 10)

            with old_member(tmp_path / "member", kafka.zookeeper, unique, topic):
                wait_for(lambda: [committed(store, unique, tp) for tp in partitions] == [10, 10], "its commits")


class TestWithoutTheRightCredentials:
    @pytest.fixture
    def secret(self, zookeeper: ZooKeeperServer, unique: str) -> str:
        """A group whose offsets only ``app`` may read or write."""
        with plain(zookeeper.connect, ("digest", "app:sesame")) as app:
            app.create(f"/consumers/{unique}/offsets/t/0", b"5", makepath=True)
            for node in ("/t/0", "/t", ""):
                app.set_acls(f"/consumers/{unique}/offsets{node}", [APP])
        return unique

    def test_a_write_error_names_the_missing_permission(self, zookeeper: ZooKeeperServer, unique: str) -> None:
        read_only = make_digest_acl("tool", "hunter2", read=True)
        with (
            ZookeeperStore(zookeeper.connect, config=config(TOOL)) as store,
            plain(zookeeper.connect, ("digest", "app:sesame")) as app,
        ):
            app.create(f"/consumers/{unique}/offsets/t/0", b"5", makepath=True)
            for node in ("/t/0", "/t"):
                app.set_acls(f"/consumers/{unique}/offsets{node}", [APP, read_only])

            commits = {TopicPartition("t", n): OffsetAndMetadata(6) for n in range(2)}
            with pytest.raises(PartialFailure) as caught:
                store.commit(unique, commits)
            failed = [caught.value.failures[tp] for tp in commits]

        assert isinstance(failed[0], NotAuthorized)
        assert isinstance(failed[1], NotAuthorized)
        assert "digest:tool may not write it (w)" in str(failed[0])
        assert "digest:tool may not create it (permission c of its parent)" in str(failed[1])

    @pytest.mark.parametrize(
        ("auth", "user"),
        [
            ("", "a session without credentials"),
            *[(f"digest:{one}:hunter2", f"digest:{one}") for one in ("eve", "app")],
        ],
    )
    def test_the_command_prints_one_error_line_and_a_hint(self, zookeeper, secret, auth, user: str, tmp_path) -> None:
        environ = {**own_environment(tmp_path), **({"OFFSETMGR_ZOOKEEPER_AUTH": auth} if auth else {})}

        done = run_command(
            "offsets", "get", "--group", secret, "--zookeeper", zookeeper.connect, code=1, environ=environ
        )

        error, hint = done.stderr.splitlines()
        assert error == (
            f"error: ZooKeeper node /consumers/{secret}/offsets: its ACL does not allow this (NO_AUTH):"
            f" {user} may not read this node"
        )
        assert hint.startswith(
            "hint: set zookeeper.auth=digest:USER:PASSWORD (or sasl:USER:PASSWORD) in the --command-config file"
        )
        assert "hunter2" not in done.stderr


@pytest.fixture(scope="module")
def sasl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper that rejects sessions without SASL."""
    directory = tmp_path_factory.mktemp("sasl")
    jaas = directory / "jaas.conf"
    login = "org.apache.zookeeper.server.auth.DigestLoginModule"
    jaas.write_text(f'Server {{ {login} required user_tool="hunter2" user_app="sesame"; }};\n')
    provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    flags = (
        f"-Djava.security.auth.login.config={jaas}",
        f"-Dzookeeper.authProvider.1={provider}",
        "-Dzookeeper.sessionRequireClientSASLAuth=true",
    )
    with ZooKeeperServer(directory / "server", jvm=("-Xmx256m", *QUICK_START, *flags)) as server:
        yield server


class TestSasl:
    def test_a_known_user_reads_writes_and_owns_nodes(self, sasl: ZooKeeperServer, unique: str) -> None:
        tp = TopicPartition("t", 0)
        with (
            ZookeeperStore(sasl.connect, config=config(("sasl", "tool:hunter2"), "creator")) as store,
            ZookeeperStore(sasl.connect, config=config(("sasl", "app:sesame"))) as other,
        ):
            store.commit(unique, {tp: OffsetAndMetadata(5)})
            other.commit(unique, {tp: OffsetAndMetadata(6)})

            assert committed(store, unique, tp) == 6
            (acl,) = store.session._read_acls([f"/consumers/{unique}/offsets/t/0"])
            assert isinstance(acl, tuple)
            assert [tuple(entry) for entry in acl] == [(31, "sasl", "tool"), (15, "world", "anyone")]

    @pytest.mark.parametrize(
        ("auth", "why"),
        [
            (("sasl", "tool:wrong"), "the server refused the credentials of sasl:tool"),
            (("sasl", "eve:nothing"), "the server refused the credentials of sasl:eve"),
            (None, "the server rejects sessions without credentials"),
        ],
    )
    def test_wrong_or_missing_credentials_are_reported(self, sasl, auth: tuple[str, str] | None, why: str) -> None:
        began = time.monotonic()
        with ZookeeperStore(sasl.connect, config=config(auth)) as store, pytest.raises(OffsetMgrError) as caught:
            store.fetch("g")

        assert isinstance(caught.value, AuthenticationFailed)
        assert (caught.value.what, caught.value.why) == (f"ZooKeeper at {sasl.connect}", why)
        assert "zookeeper.auth" in caught.value.hint
        assert time.monotonic() - began < 150
