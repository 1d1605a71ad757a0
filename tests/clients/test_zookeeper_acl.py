"""ACLs: the configuration, and the ACL of a new node. tests/clients/test_zookeeper_access.py sets them on servers."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from offsetmgr.config.connection import SettingsLayer, resolve, with_properties
from offsetmgr.core.errors import ConfigError, NotAuthorized, OffsetMgrError
from offsetmgr.zookeeper.client.connection import OPEN, Acl, AclEntry, acls_for, is_masked, parse_acl, persistent_acl

HASH = "app:kHP2v+6mzQJBv8Iqz0y6GFn2XEs="
CREATOR = (AclEntry(31, "auth", ""),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[(text, None) for text in ("", "open", " open ")],
        ("creator", CREATOR),
        (
            f"sasl:app@HOST:cdrw, digest:{HASH}:r,world:anyone:r",
            (AclEntry(15, "sasl", "app@HOST"), AclEntry(1, "digest", HASH), AclEntry(1, "world", "anyone")),
        ),
    ],
)
def test_an_acl_is_open_the_creators_or_a_list_of_entries(text: str, expected: Acl | None) -> None:
    assert parse_acl(text, authenticated=True) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *[(text, "entry 1: is not SCHEME:ID:PERMISSIONS") for text in ("closed", "sasl:app", "sasl:app:rx")],
        ("sasl:app:r,", "entry 2: is not SCHEME:ID:PERMISSIONS"),
        ("digest:app:hunter2:r", "entry 1: needs the hash that ZooKeeper stores"),
        ("auth:app:r", "entry 1: the scheme auth cannot be part of a list"),
        ("creator", "cannot own a node"),
    ],
)
def test_the_error_of_an_invalid_entry_names_its_position_and_not_its_text(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_acl(text, authenticated=text != "creator")
    assert why in str(caught.value)
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
    assert text != "creator" or "zookeeper.auth=digest:USER:PASSWORD" in caught.value.hint


def test_the_configuration_comes_from_the_file_the_environment_and_the_properties(tmp_path: Path) -> None:
    config, properties = tmp_path / "config.toml", tmp_path / "zk.properties"
    config.write_text('[context.x]\nzookeeper = "h:1"\nzookeeper-auth = "sasl:app:secret"\nzookeeper-acl = "creator"\n')
    properties.write_text("zookeeper.auth=digest:app:secret\nzookeeper.acl=sasl:app:r\n")
    environ = {"OFFSETMGR_CONFIG": str(config)}

    found = resolve(SettingsLayer(), "x", environ).connection

    assert (found.zookeeper_auth, found.zookeeper_acl) == ((("sasl", "app:secret"),), "creator")
    over = resolve(SettingsLayer(), "x", {**environ, "OFFSETMGR_ZOOKEEPER_ACL": "open"}).connection
    assert over.zookeeper_acl == "open"
    assert with_properties(found, str(properties)).zookeeper_acl == "sasl:app:r"


@pytest.mark.parametrize("auth", ["sasl:app", "sasl:", "digest::x", "sasl::x", "nothing"])
def test_invalid_credentials_are_rejected(auth: str) -> None:
    with pytest.raises(ConfigError, match="digest:USER:PASSWORD, sasl:USER:PASSWORD or kerberos:SERVICE"):
        resolve(SettingsLayer(zookeeper_auth=auth), environ={"OFFSETMGR_CONFIG": "/dev/null"})


def test_each_new_node_gets_its_acl_from_the_nearest_existing_node() -> None:
    secured = (AclEntry(31, "sasl", "kafka"),)
    hidden = NotAuthorized("ZooKeeper node /hidden", "may not be read")
    stored: dict[str, Acl | OffsetMgrError] = {"/open": OPEN, "/secured": secured, "/hidden": hidden}

    def read(paths: Sequence[str]) -> list[Acl | OffsetMgrError]:
        return [stored[path] for path in paths]

    persistent = ["/open/a/b", "/open/a", "/secured/a", "/secured/a/b", "/hidden/a"]
    acls = acls_for(CREATOR, ["/open/ids/me"], persistent, read)

    writable = (AclEntry(31, "auth", ""), AclEntry(15, "world", "anyone"))
    assert acls == {
        "/open/ids/me": (AclEntry(31, "auth", ""), AclEntry(1, "world", "anyone")),
        **dict.fromkeys(("/open/a", "/open/a/b"), writable),
        **dict.fromkeys(("/secured/a", "/secured/a/b"), secured),
        "/hidden/a": hidden,
    }
    everyone = (AclEntry(31, "sasl", "a"), AclEntry(17, "world", "anyone"))
    assert persistent_acl(everyone, OPEN) == (AclEntry(31, "sasl", "a"), AclEntry(31, "world", "anyone"))
    assert is_masked((AclEntry(1, "world", "anyone"), AclEntry(31, "digest", "app:x")))
    assert not is_masked((AclEntry(31, "digest", HASH), AclEntry(31, "sasl", "app:x")))
