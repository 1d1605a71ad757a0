"""Store URIs: their parts, and errors that name the wrong part."""

from functools import partial
from time import process_time
from timeit import repeat

import pytest

from offsetmgr import ConnectionConfig, open_store
from offsetmgr.core import redact
from offsetmgr.core.errors import InvalidUri
from offsetmgr.stores.uri import StoreUri, bootstrap_of, parse_uri, zookeeper_of

DUAL = "dual:?primary=kafka%3A%2F%2Fh%3A9092&secondary=zookeeper%3A%2F%2Fz%3A2181%2Fc"
NAMED = ConnectionConfig(stores={"x": {"primary": "kafka://h:9092", "secondary": "zookeeper://z:2181/c"}})


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("kafka://h1:9092,h2:9093", StoreUri("kafka", "h1:9092,h2:9093")),
        ("kafka://[::1]:9092", StoreUri("kafka", "[::1]:9092")),
        ("zookeeper://h1:2181,h2/chroot/deep/", StoreUri("zookeeper", "h1:2181,h2", "/chroot/deep")),
        ("zookeeper://h1:2181, h2:2181/chroot", StoreUri("zookeeper", "h1:2181,h2:2181", "/chroot")),
        ("kafka://h1:9092, h2:9093", StoreUri("kafka", "h1:9092,h2:9093")),
        ("zookeeper://h:2181?layout=0.7", StoreUri("zookeeper", "h:2181", "", {"layout": "0.7"})),
        ("file:a%20b.avro", StoreUri("file", "a b.avro")),
        ("file:///abs/x?format=csv&group=g", StoreUri("file", "/abs/x", "", {"format": "csv", "group": "g"})),
        ("dual:name", StoreUri("dual", "name")),
        ("manager://h:9192", StoreUri("manager", "h:9192")),
    ],
)
def test_a_uri_is_parsed(uri: str, expected: StoreUri) -> None:
    assert parse_uri(uri) == expected


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("h:9092", "unknown kind 'h'"),
        ("nonsense", "no kind"),
        ("kafka:h:9092", "must be followed by //HOST:PORT"),
        ("kafka://", "a host is missing"),
        ("kafka://h", "'h' has no port"),
        ("kafka://h:9092,", "a host is missing"),
        ("kafka://h:0", "0 is not a port"),
        ("kafka://h:99999", "99999 is not a port"),
        ("kafka://h:9092/x", "kafka: URIs have no path, but '/x' was given"),
        ("kafka://h h:1", "'h h:1' is not HOST:PORT"),
        ("zookeeper://h:2181//x", "has an empty part"),
        ("zookeeper://h:2181?layout=0.9", "unknown layout '0.9'"),
        ("zookeeper://h:2181?colour=red", "unknown option 'colour'"),
        ("zookeeper://h:2181?layout", "NAME=VALUE"),
        ("zookeeper://h:2181?layout=0.8&layout=0.7", "given twice"),
        ("zookeeper://h:2181?layout=storm", "layout storm needs root=/PATH"),
        ("zookeeper://h:2181?layout=0.7&root=/storm", "layout 0.7 has no root"),
        ("zookeeper://h:2181?layout=storm&root=storm", "root 'storm' is not an absolute path"),
        ("zookeeper://h:2181?layout=storm&root=/", "root '/' is not an absolute path"),
        ("zookeeper://h:2181?layout=storm&root=/a//b", "root '/a//b' is not an absolute path"),
        ("zookeeper://h:2181?layout=storm&root=/a/", "root '/a/' is not an absolute path"),
        ("zookeeper://h:2181?layout=storm&root=/a/../b", "root '/a/../b' is not an absolute path"),
        ("h:2181/kafka", "unknown kind 'h'"),
        ("file:", "no path after file:"),
        ("dual:", "needs either the name"),
        ("dual:x?primary=kafka%3A%2F%2Fh%3A1", "needs either the name"),
        ("dual:?primary=kafka%3A%2F%2Fh%3A1", "needs either the name"),
    ],
)
def test_the_wrong_part_of_a_uri_is_named(uri: str, why: str) -> None:
    with pytest.raises(InvalidUri) as caught:
        parse_uri(uri)
    assert why in caught.value.why
    hints = {"h:9092": "as in kafka://h:9092", "h:2181/kafka": "as in zookeeper://h:2181/kafka"}
    assert caught.value.hint == hints.get(uri, caught.value.hint)


@pytest.mark.parametrize(
    "uri",
    [
        "zookeeper://user:hunter2@h:2181",
        "kafka://user:hunter2@h:9092",
        "kafka://user:p&hunter2\t@h:9092",
        "dual:?primary=kafka%3A%2F%2Fu%3Ahunter2%40h%3A9092&secondary=zookeeper%3A%2F%2Fz%3A2181",
    ],
)
def test_credentials_in_a_uri_are_rejected_and_not_repeated(uri: str) -> None:
    with pytest.raises(InvalidUri) as caught:
        open_store(uri)
    assert caught.value.why == "credentials do not belong in a URI"
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


def test_a_long_uri_is_redacted_in_linear_time() -> None:
    runs = (repeat(partial(redact, "/" * n), timer=process_time, number=1) for n in (1_000, 16_000))
    short, long = map(min, runs)
    assert long < 64 * short


def test_a_dual_store_has_the_servers_of_two_stores() -> None:
    for uri, config in ((DUAL, ConnectionConfig()), ("dual:x", NAMED)):
        assert (bootstrap_of(uri, config), zookeeper_of(uri, config)) == ("h:9092", "z:2181/c")
    assert bootstrap_of("zookeeper://z:2181", NAMED) is None


def test_a_dual_store_must_be_configured_and_cannot_be_nested() -> None:
    with pytest.raises(InvalidUri, match=r"no \[store.y\]"):
        open_store("dual:y", NAMED)
    nested = ConnectionConfig(stores={"x": {"primary": "dual:x", "secondary": "kafka://h:1"}})
    with pytest.raises(InvalidUri, match="cannot be part of another pair of stores"):
        open_store("dual:x", nested)
    half = ConnectionConfig(stores={"x": {"primary": "kafka://h:1"}})
    with pytest.raises(InvalidUri, match="needs both"):
        open_store("dual:x", half)


def test_a_dual_store_does_not_pair_byte_positions_with_offsets() -> None:
    uri = "dual:?primary=kafka%3A%2F%2Fh%3A1&secondary=zookeeper%3A%2F%2Fz%3A1%3Flayout%3D0.7"
    with pytest.raises(InvalidUri, match=r"byte positions of Kafka 0\.7 and the other one holds offsets"):
        open_store(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "kafka://127.0.0.1:1",
        "manager://127.0.0.1:1",
        "zookeeper://127.0.0.1:1/c",
        "zookeeper://127.0.0.1:1/c?layout=0.7",
        "zookeeper://127.0.0.1:1/c?layout=storm&root=/s/t",
        "file:none.avro",
        DUAL.replace("h%3A", "127.0.0.1%3A"),
    ],
)
def test_opening_a_store_does_no_io(uri: str) -> None:
    with open_store(uri) as store:
        assert store.uri.partition(":")[0] == uri.partition(":")[0]
