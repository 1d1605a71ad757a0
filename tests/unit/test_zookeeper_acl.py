"""ACLs: the configuration, and the ACL of a new node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from kazoo.protocol import serialization as kazoo
from kazoo.security import ACL, Id

from offsetmgr.config.connection import ConnectionConfig, SettingsLayer, resolve, with_properties
from offsetmgr.core.errors import ConfigError, NotAuthorized, OffsetMgrError
from offsetmgr.zookeeper.client.acl import OPEN, Acl, AclEntry, AclPolicy, acls_for, encode, is_masked, parse_acl
from offsetmgr.zookeeper.client.connection import KazooConnection
from offsetmgr.zookeeper.client.transactions import Create, encode_operation

HASH = "app:kHP2v+6mzQJBv8Iqz0y6GFn2XEs="
EVERYONE_BUT_ADMIN = AclEntry(15, "world", "anyone")
CREATOR = AclPolicy((AclEntry(31, "auth", ""),))


class TestConfiguration:
    @pytest.mark.parametrize("text", ["", "open", " open "])
    def test_open_means_no_policy(self, text: str) -> None:
        assert parse_acl(text, authenticated=False) is None

    def test_creator_grants_all_permissions_to_the_creator(self) -> None:
        assert parse_acl("creator", authenticated=True) == CREATOR

    def test_creator_without_credentials_names_the_missing_setting(self) -> None:
        with pytest.raises(ConfigError, match="cannot own a node") as caught:
            parse_acl("creator", authenticated=False)
        assert "zookeeper.auth=digest:USER:PASSWORD" in caught.value.hint

    def test_a_list_of_entries(self) -> None:
        assert parse_acl(f"sasl:app@HOST:cdrw, digest:{HASH}:r,world:anyone:r", authenticated=False) == AclPolicy(
            (AclEntry(15, "sasl", "app@HOST"), AclEntry(1, "digest", HASH), AclEntry(1, "world", "anyone"))
        )

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("closed", "entry 1: is not SCHEME:ID:PERMISSIONS"),
            ("sasl:app", "entry 1: is not SCHEME:ID:PERMISSIONS"),
            ("sasl:app:rx", "entry 1: is not SCHEME:ID:PERMISSIONS"),
            ("sasl:app:r,", "entry 2: is not SCHEME:ID:PERMISSIONS"),
            ("digest:app:hunter2:r", "entry 1: needs the hash that ZooKeeper stores"),
            ("auth:app:r", "entry 1: the scheme auth cannot be part of a list"),
        ],
    )
    def test_the_error_of_an_invalid_entry_names_its_position_and_not_its_text(self, text: str, why: str) -> None:
        with pytest.raises(ConfigError) as caught:
            parse_acl(text, authenticated=True)
        assert why in str(caught.value)
        assert "hunter2" not in f"{caught.value} {caught.value.hint}"

    def test_the_configuration_comes_from_the_file_the_environment_and_the_properties(self, tmp_path: Path) -> None:
        config = tmp_path / "config.toml"
        config.write_text(
            '[context.x]\nzookeeper = "h:1"\nzookeeper-auth = "sasl:app:secret"\nzookeeper-acl = "creator"\n'
        )
        properties = tmp_path / "zk.properties"
        properties.write_text("zookeeper.auth=digest:app:secret\nzookeeper.acl=sasl:app:r\n")

        found = resolve(SettingsLayer(), "x", {"OFFSETMGR_CONFIG": str(config)}).connection
        over = resolve(
            SettingsLayer(), "x", {"OFFSETMGR_CONFIG": str(config), "OFFSETMGR_ZOOKEEPER_ACL": "open"}
        ).connection

        assert (found.zookeeper_auth, found.zookeeper_acl) == ((("sasl", "app:secret"),), "creator")
        assert over.zookeeper_acl == "open"
        assert with_properties(found, str(properties)).zookeeper_acl == "sasl:app:r"

    @pytest.mark.parametrize("auth", ["sasl:app", "sasl:", "digest::x", "sasl::x", "nothing"])
    def test_invalid_credentials_are_rejected(self, auth: str) -> None:
        with pytest.raises(ConfigError, match="digest:USER:PASSWORD, sasl:USER:PASSWORD or kerberos:SERVICE"):
            resolve(SettingsLayer(zookeeper_auth=auth), environ={"OFFSETMGR_CONFIG": "/dev/null"})

    def test_the_identity_is_reported_without_the_password(self) -> None:
        config = ConnectionConfig(zookeeper_auth=(("sasl", "app:hunter2"), ("digest", "me:hunter2")))

        assert KazooConnection("h:1", config).identity == "sasl:app, digest:me"
        assert KazooConnection("h:1", ConnectionConfig()).identity == "a session without credentials"


class TestNewNodes:
    def test_below_a_node_that_everyone_may_write_everyone_may_do_all_but_change_the_acl(self) -> None:
        assert CREATOR.persistent(OPEN) == (AclEntry(31, "auth", ""), EVERYONE_BUT_ADMIN)

    def test_below_a_node_that_not_everyone_may_write_the_parents_acl_is_copied(self) -> None:
        secured = (AclEntry(31, "sasl", "kafka"), AclEntry(1, "world", "anyone"))

        assert CREATOR.persistent(secured) == secured

    def test_an_acl_that_names_everyone_keeps_one_entry_for_everyone(self) -> None:
        policy = AclPolicy((AclEntry(31, "sasl", "a"), AclEntry(17, "world", "anyone")))

        assert policy.persistent(OPEN) == (AclEntry(31, "sasl", "a"), AclEntry(31, "world", "anyone"))

    def test_ephemeral_nodes_can_be_read_by_everyone(self) -> None:
        assert CREATOR.ephemeral() == (AclEntry(31, "auth", ""), AclEntry(1, "world", "anyone"))

    def test_an_acl_is_encoded_as_by_kazoo(self) -> None:
        acl = (AclEntry(31, "sasl", "ä"), AclEntry(1, "world", "anyone"))
        theirs = [ACL(31, Id("sasl", "ä")), ACL(1, Id("world", "anyone"))]

        ours = encode_operation(Create("/a", b"x", ephemeral=True), "", encode(acl))

        assert ours == bytes(kazoo.Transaction([kazoo.Create("/a", b"x", theirs, 1)]).serialize())[: len(ours)]

    def test_each_new_node_gets_its_acl_from_the_nearest_existing_node(self) -> None:
        secured = (AclEntry(31, "sasl", "kafka"),)
        hidden = NotAuthorized("ZooKeeper node /hidden", "may not be read")
        stored: dict[str, Acl | OffsetMgrError] = {"/open": OPEN, "/secured": secured, "/hidden": hidden}
        requested: list[str] = []

        def read(paths: Sequence[str]) -> list[Acl | OffsetMgrError]:
            requested.extend(paths)
            return [stored[path] for path in paths]

        persistent = ["/open/a/b", "/open/a", "/secured/a", "/secured/a/b", "/hidden/a"]
        acls = acls_for(CREATOR, ["/open/ids/me"], persistent, read)

        writable = (AclEntry(31, "auth", ""), EVERYONE_BUT_ADMIN)
        assert acls == {
            "/open/ids/me": (AclEntry(31, "auth", ""), AclEntry(1, "world", "anyone")),
            "/open/a": writable,
            "/open/a/b": writable,
            "/secured/a": secured,
            "/secured/a/b": secured,
            "/hidden/a": hidden,
        }
        assert sorted(requested) == ["/hidden", "/open", "/secured"]

    def test_an_acl_with_masked_hashes_is_recognized(self) -> None:
        assert is_masked((AclEntry(1, "world", "anyone"), AclEntry(31, "digest", "app:x")))
        assert not is_masked((AclEntry(31, "digest", HASH), AclEntry(31, "sasl", "app:x")))
