"""Connection settings from the configuration file, the environment, the flags, and .properties files."""

import os
import pwd
from pathlib import Path
from typing import NoReturn

import pytest
from in_process import command

from offsetmgr.config.connection import SettingsLayer, config_path, resolve
from offsetmgr.config.java_config import translate_properties
from offsetmgr.config.properties import parse_properties
from offsetmgr.config.toml_table import TomlTable
from offsetmgr.config.user_directories import state_directory
from offsetmgr.core.errors import ConfigError
from offsetmgr.stores.uri import open_store

FILE = """
default-context = "prod"
[context.prod]
bootstrap-server = "prod:9092"
timeout = 1000
[context.old]
zookeeper = "zk:2181/chroot"
bootstrap-server = "old:9092"
command-config = "client.properties"
[store.both]
primary = "kafka://prod:9092"
secondary = "zookeeper://zk:2181"
"""

FLAGS = SettingsLayer(bootstrap_server="flag:9092", timeout_ms=3000)
VARIABLES = {"OFFSETMGR_BOOTSTRAP_SERVER": "env:9092", "OFFSETMGR_TIMEOUT": "2000"}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config.toml").write_text(FILE)
    (tmp_path / "client.properties").write_text("sasl.username=u\nsasl.password=p\nzookeeper.auth=digest:a:b\n")
    return {"OFFSETMGR_CONFIG": str(tmp_path / "config.toml")}


@pytest.mark.parametrize(
    ("flags", "context", "variables", "store", "brokers", "timeout_ms"),
    [
        (SettingsLayer(), None, {}, "kafka://prod:9092", "prod:9092", 1000),
        (SettingsLayer(), None, VARIABLES, "kafka://env:9092", "env:9092", 2000),
        (FLAGS, None, VARIABLES, "kafka://flag:9092", "flag:9092", 3000),
        # ZooKeeper has precedence over the brokers of the same context.
        (SettingsLayer(), "old", {}, "zookeeper://zk:2181/chroot", "old:9092", None),
        # A flag for the store keeps the brokers of the context.
        (SettingsLayer(store="file:x.avro"), "old", {}, "file:x.avro", "old:9092", None),
    ],
    ids=["default context", "variables", "flags", "zookeeper first", "store"],
)
def test_a_flag_overrides_a_variable_which_overrides_the_file(
    flags: SettingsLayer,
    context: str | None,
    variables: dict[str, str],
    store: str,
    brokers: str,
    timeout_ms: int | None,
    environ: dict[str, str],
) -> None:
    found = resolve(flags, context, environ | variables)
    assert (found.store, found.bootstrap_server) == (store, brokers)
    assert timeout_ms in (None, found.connection.timeout_ms)
    assert found.connection.stores == {"both": {"primary": "kafka://prod:9092", "secondary": "zookeeper://zk:2181"}}


@pytest.mark.parametrize(
    ("flags", "variables", "context"),
    [
        (SettingsLayer(bootstrap_server="flag:9092"), {}, None),
        (SettingsLayer(bootstrap_server="k2:9092,OLD:9092"), {}, "old"),
        (SettingsLayer(zookeeper="zk:2181/other"), {}, None),
        (SettingsLayer(store="zookeeper://zk:2181/chroot?layout=0.7"), {}, "old"),
        (SettingsLayer(store="manager://flag:9092"), {}, None),
        (SettingsLayer(store="dual:both"), {}, None),
        (SettingsLayer(store="dual:?primary=kafka%3A%2F%2Fflag%3A9092&secondary=file%3Aa"), {}, None),
        (SettingsLayer(store="file:x.avro"), {}, "old"),
        (SettingsLayer(), {"OFFSETMGR_STORE": "kafka://env:9092"}, None),
        (SettingsLayer(), {"OFFSETMGR_BOOTSTRAP_SERVER": "env:9092", "OFFSETMGR_CONTEXT": "old"}, "old"),
        (SettingsLayer(bootstrap_server="flag:9092"), {"OFFSETMGR_CONTEXT": "old"}, None),
        (SettingsLayer(bootstrap_server="flag:9092"), {"OFFSETMGR_CONTEXT": "login"}, None),
        (SettingsLayer(zookeeper="zk:2181/chroot"), {"OFFSETMGR_CONTEXT": "prod"}, None),
        (SettingsLayer(bootstrap_server="flag:9092"), {"OFFSETMGR_CONTEXT": "zk"}, None),
        (SettingsLayer(bootstrap_server="L.:9092"), {"OFFSETMGR_CONTEXT": "zk"}, "zk"),
        (SettingsLayer(zookeeper="y, z/A/"), {"OFFSETMGR_CONTEXT": "zk"}, "zk"),
        (SettingsLayer(zookeeper="z.:2181/a"), {"OFFSETMGR_CONTEXT": "zk"}, None),
    ],
)
def test_servers_that_the_default_context_does_not_name_get_neither_its_login_nor_its_name(
    flags: SettingsLayer, variables: dict[str, str], context: str | None, environ: dict[str, str]
) -> None:
    config = Path(environ["OFFSETMGR_CONFIG"])
    config.write_text(FILE.replace('"prod"', '"old"', 1) + '[context.login]\ncommand-config = "l.properties"\n')
    config.write_text(f"{config.read_text()}[context.zk]\nzookeeper = 'Z.:2181/A'\ncommand-config = 'l.properties'\n")
    (config.parent / "l.properties").write_text("bootstrap.servers=l:9092\n")
    found = resolve(flags, environ=environ | variables)
    assert (found.context, "sasl.password" in found.connection.kafka) == (context, context == "old")
    assert found.unused_context == (None if context else variables.get("OFFSETMGR_CONTEXT", "old"))
    assert resolve(flags, "old", environ | variables).context == "old"


def test_a_store_of_another_option_is_not_reached_with_the_default_context(environ, monkeypatch) -> None:
    monkeypatch.setenv("OFFSETMGR_CONFIG", environ["OFFSETMGR_CONFIG"])
    sides = ("--from", "zookeeper://z:1", "--to", "kafka")
    for words in (
        ("offsets", "diff", *sides),
        ("migrate", "plan", "--all-groups", "-o", "p.plan", *sides),
        ("groups", "copy", "a", "b", "--to", "kafka://other:9092", "--execute"),
    ):
        assert "context prod is not used" in command(*words, code=2).stderr


def test_command_config_of_a_context_is_relative_to_the_config_file(environ: dict[str, str]) -> None:
    found = resolve(SettingsLayer(), "old", environ)
    assert dict(found.connection.kafka) == {"sasl.username": "u", "sasl.password": "p"}
    assert found.connection.zookeeper_auth == (("digest", "a:b"),)


def test_secrets_are_in_no_repr(environ: dict[str, str]) -> None:
    environ["OFFSETMGR_ZOOKEEPER_AUTH"] = "digest:user:hunter2"
    found = resolve(SettingsLayer(zookeeper_auth="digest:user:hunter2"), "old", environ)
    assert found.connection.zookeeper_auth == (("digest", "user:hunter2"),)
    assert "hunter2" not in repr(found)
    assert "hunter2" not in repr(SettingsLayer(zookeeper_auth="digest:user:hunter2"))
    assert "hunter2" not in repr(TomlTable({"password": "hunter2"}, "file"))
    assert os.environ not in (resolve.__defaults__ or ())


def test_an_invalid_zookeeper_credential_is_blamed_on_its_source(environ: dict[str, str]) -> None:
    path = Path(environ["OFFSETMGR_CONFIG"])
    path.write_text(FILE.replace("[context.old]\n", "[context.old]\nzookeeper-auth = 'digest:hunter2'\n"))
    with pytest.raises(ConfigError, match=r"config file .*: zookeeper-auth") as raised:
        resolve(SettingsLayer(), "old", environ)
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ConfigError, match=r"^OFFSETMGR_ZOOKEEPER_AUTH"):
        resolve(SettingsLayer(), "old", environ | {"OFFSETMGR_ZOOKEEPER_AUTH": "digest:hunter2"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[context.a]\nbootstrap = 'x'\n", "unknown key 'bootstrap'"),
        ("[context.a]\ntimeout = 'x'\n", "'x' is not a number of milliseconds or a duration"),
        ("[context.a]\ntimeout = true\n", "timeout must be milliseconds, or a duration"),
        ("[context.a]\ntimeout = 0\n", "0 is not allowed"),
        ("context = 3\n", "must consist of tables"),
        ("default-context = 'b'\n[context.a]\n", "not in"),
        ("nonsense", "is not TOML"),
        ("colour = 'red'\n", "unknown key 'colour'"),
    ],
)
def test_a_broken_config_file_is_named_with_the_reason(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "c.toml").write_text("default-context = 'a'\n" + text if "[context.a]\n" in text[:13] else text)
    with pytest.raises(ConfigError, match=why):
        resolve(SettingsLayer(), environ={"OFFSETMGR_CONFIG": str(tmp_path / "c.toml")})


@pytest.mark.parametrize(("text", "why"), [("third = 'x'", "unknown key 'third'"), ("primary = 1", "must be strings")])
def test_an_error_of_one_store_does_not_block_the_others(tmp_path: Path, text: str, why: str) -> None:
    sound = "[store.b]\nprimary = 'kafka://k:9092'\nsecondary = 'zookeeper://z:2181'\n"
    (tmp_path / "c.toml").write_text(f"[store.a]\n{text}\n{sound}")
    found = resolve(SettingsLayer(), environ={"OFFSETMGR_CONFIG": str(tmp_path / "c.toml")}).connection
    with open_store("dual:b", found) as store:
        assert store.uri == "dual:?primary=kafka%3A%2F%2Fk%3A9092&secondary=zookeeper%3A%2F%2Fz%3A2181%3Flayout%3D0.8"
    with pytest.raises(ConfigError, match=why):
        open_store("dual:a", found)


def test_timeouts_of_the_environment_and_the_file_can_be_durations(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("default-context = 'a'\n[context.a]\ntimeout = '1m30s'\n")
    environ = {"OFFSETMGR_CONFIG": str(tmp_path / "c.toml")}
    assert resolve(SettingsLayer(), environ=environ).connection.timeout_ms == 90_000
    for text, expected in (("2000", 2_000), ("2s", 2_000), ("1m30s", 90_000), ("PT0.5S", 500)):
        environ["OFFSETMGR_TIMEOUT"] = text
        assert resolve(SettingsLayer(), environ=environ).connection.timeout_ms == expected
    environ["OFFSETMGR_TIMEOUT"] = "soon"
    with pytest.raises(ConfigError, match="OFFSETMGR_TIMEOUT: 'soon' is not a number of milliseconds or a duration"):
        resolve(SettingsLayer(), environ=environ)


def test_a_config_file_that_is_named_must_exist_and_the_default_one_need_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        resolve(SettingsLayer(), environ={"OFFSETMGR_CONFIG": str(tmp_path / "none.toml")})
    assert resolve(SettingsLayer(), environ={"XDG_CONFIG_HOME": str(tmp_path)}).store is None


def test_files_are_in_the_xdg_directories() -> None:
    environ = {"XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s"}
    assert config_path(environ) == Path("/c/offsetmgr/config.toml")
    assert state_directory(environ) == Path("/s/offsetmgr")


def test_a_user_without_a_home_directory_needs_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> NoReturn:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME", raising=False)
    assert resolve(SettingsLayer(), environ={}).store is None
    assert state_directory({}) == Path("/nonexistent/.local/state/offsetmgr")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a: b", {"a": "b"}),
        ("a b=c", {"a": "b=c"}),
        ("a\t:\tb", {"a": "b"}),
        ("  # no\n! no\na=1", {"a": "1"}),
        ("a=1\\\n   2", {"a": "12"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=x\\\n# not a comment", {"a": "x# not a comment"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a=\\u00e9\\t\\q", {"a": "é\tq"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a\n\nb=\n", {"a": "", "b": ""}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\\", {"a": "1"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text, "f") == expected


def test_a_bad_escape_is_named_by_its_line_and_never_quoted() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_properties("a=1\nsasl.password=secret\\u12", "f")
    assert str(caught.value) == "f line 2: a \\u escape needs four hexadecimal digits"


PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p\\"q;r" ;'
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required username='u' password=pq;"


@pytest.mark.parametrize(
    ("java", "librdkafka"),
    [
        ({"security.protocol": "SASL_SSL"}, {"security.protocol": "SASL_SSL"}),
        ({"sasl.jaas.config": PLAIN}, {"sasl.username": "u", "sasl.password": 'p"q;r'}),
        ({"sasl.jaas.config": SCRAM}, {"sasl.username": "u", "sasl.password": "pq"}),
        ({"ssl.truststore.location": "ca.pem"}, {"ssl.ca.location": "ca.pem"}),
        ({"ssl.truststore.location": "ca", "ssl.truststore.type": "PEM"}, {"ssl.ca.location": "ca"}),
        (
            {"ssl.keystore.location": "k", "ssl.keystore.type": "pem", "ssl.key.password": "s"},
            {"ssl.certificate.location": "k", "ssl.key.location": "k", "ssl.key.password": "s"},
        ),
        ({"ssl.key.location": "k"}, {"ssl.key.location": "k"}),
        ({"ssl.truststore.certificates": "x"}, {"ssl.ca.pem": "x"}),
        ({"ssl.endpoint.identification.algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
        ({"request.timeout.ms": "5"}, {"socket.timeout.ms": "5"}),
    ],
)
def test_java_settings_are_translated(java: dict[str, str], librdkafka: dict[str, str]) -> None:
    assert dict(translate_properties(java, "f").kafka) == librdkafka


@pytest.mark.parametrize(
    ("java", "key", "hint"),
    [
        ({"ssl.truststore.location": "t", "ssl.truststore.type": "BCFKS"}, "ssl.truststore.type", "PKCS12"),
        ({"ssl.enabled.protocols": "TLSv1.3"}, "ssl.enabled.protocols", "remove it"),
        ({"sasl.client.callback.handler.class": "X"}, "sasl.client.callback.handler.class", "token.command"),
        ({"sasl.jaas.config": "com.acme.MyModule required a=b;"}, "sasl.jaas.config", "MyModule"),
        ({"bootstrap.server": "h:9092"}, "bootstrap.server", "is it bootstrap.servers?"),
        ({"zookeeper.connect": "h:2181"}, "zookeeper.connect", "with zookeeper="),
        ({"bootstrap.controllers": "h:9093"}, "bootstrap.controllers", "bootstrap.servers"),
        ({"what.is.this": "x"}, "what.is.this", "not a setting"),
        ({"sasl.password": "${file:/x:y}"}, "sasl.password", "providers"),
    ],
)
def test_an_unsupported_key_is_an_error_with_its_replacement(java: dict[str, str], key: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        translate_properties(java, "f.properties")
    assert caught.value.what == f"f.properties: {key}"
    assert hint in caught.value.hint


def test_all_unsupported_keys_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        translate_properties(
            {"bootstrap.server": "h:1", "group.id": "g", "ssl.enabled.protocols": "TLSv1.3", "x": "y"}, "f"
        )
    assert str(caught.value) == "f: these settings are not supported: bootstrap.server, ssl.enabled.protocols, x"
    assert caught.value.hint.startswith(
        "bootstrap.server: is it bootstrap.servers?; ssl.enabled.protocols: OpenSSL negotiates"
    )


CLIENT_PROPERTIES = """\
bootstrap.servers=h:9092
security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
group.id=shop
key.deserializer=org.apache.kafka.common.serialization.StringDeserializer
acks=all
interceptor.classes=${env:CLASSES}
sasl.login.refresh.window.factor=0.8
offsets.storage=zookeeper
ssl.enabled.protocols=TLSv1.3,TLSv1.2
"""


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_settings_of_java_that_do_not_concern_the_connection_are_ignored_with_one_note(tmp_path, mark: str) -> None:
    (tmp_path / "client.properties").write_text(mark + CLIENT_PROPERTIES, "utf-8")
    (tmp_path / "saved.csv").write_text("g,t,0,5\n")
    read = ("offsets", "get", "g", "--store", f"file:{tmp_path}/saved.csv")
    assert command(*read, "--command-config", tmp_path / "client.properties").stderr == (
        f"{tmp_path}/client.properties: offsetmgr ignores 7 settings that do not concern the connection: "
        "acks, group.id, interceptor.classes, key.deserializer, offsets.storage, sasl.login.refresh.window.factor, "
        "ssl.enabled.protocols\n"
    )
    kafka = resolve(SettingsLayer(command_config=str(tmp_path / "client.properties")), environ={}).connection.kafka
    assert dict(kafka) == {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}


def test_values_are_trimmed_and_old_producers_are_known_as_in_kafkas_clients(tmp_path: Path) -> None:
    text = "metadata.broker.list=h:9092 \nsecurity.protocol = PLAINTEXT \nrequest.required.acks=1\nproducer.type=sync\n"
    (tmp_path / "producer.properties").write_text(text)
    resolved = resolve(SettingsLayer(command_config=str(tmp_path / "producer.properties")), environ={})
    assert resolved.bootstrap_server == "h:9092"
    assert dict(resolved.connection.kafka) == {"security.protocol": "PLAINTEXT"}


def test_files_with_settings_in_other_encodings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.properties").write_text("client.id=a\n", "utf-16")
    with pytest.raises(ConfigError, match="is UTF-16 text"):
        resolve(SettingsLayer(command_config=str(tmp_path / "c.properties")), environ={})
    (tmp_path / "c.toml").write_text("[context.a]\nzookeeper = 'h:2181'\n", "utf-8-sig")
    environ = {"OFFSETMGR_CONFIG": str(tmp_path / "c.toml")}
    assert resolve(SettingsLayer(), "a", environ).zookeeper == "h:2181"
    monkeypatch.setenv("OFFSETMGR_CONFIG", environ["OFFSETMGR_CONFIG"])
    command("context", "use", "a")
    assert resolve(SettingsLayer(), environ=environ).context == "a"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sasl.jaas.config", "org.apache.kafka.common.security.plain.PlainLoginModule required hunter2 hunter2;"),
        ("sasl.jaas.config", 'PlainLoginModule required username="hunter2";'),
        *((key, "hunter2") for key in ("sasl.jaas.config", "zookeeper.auth", "default.api.timeout.ms", "unknown.key")),
        ("zookeeper.auth", "digest:hunter2"),
    ],
)
def test_no_error_ever_quotes_a_value(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        translate_properties({key: value}, "f")
    assert "hunter2" not in f"{caught.value} {caught.value.hint} {caught.value.args}"


def test_addresses_and_timeouts_of_a_properties_file_are_the_fallback(tmp_path: Path) -> None:
    file = tmp_path / "c.properties"
    file.write_text("bootstrap.servers=h:9092\ndefault.api.timeout.ms=7000\n")
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    found = resolve(SettingsLayer(command_config=str(file)), environ=environ)
    assert (found.store, found.connection.timeout_ms) == ("kafka://h:9092", 7000)
    assert dict(found.connection.kafka) == {}
    over = resolve(SettingsLayer(command_config=str(file), bootstrap_server="i:1", timeout_ms=5), environ=environ)
    assert (over.store, over.connection.timeout_ms) == ("kafka://i:1", 5)


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("store = 'dual:?primary=kafka%3A%2F%2Fu%3Ahun%2540ter2%40h%3A9&secondary=file%3Aa%40b'", "file%3Aa%40b"),
        ("store = 'dual:?primary=kafka%3a%2f%2fu%3Ahunter2%3Aa%40h&secondary=file%3Aa'", "%2f%2f***%40h&secondary="),
        ("store = 'zookeeper://user%3Ahunter2%40h:1/x'", "zookeeper://***%40h:1/x"),
        ("store = 'kafka://u:hun/ter2?@h:1'", "kafka://***@h:1"),
        ("store = 'kafka:u:hunter2@h:9092'", "kafka:***@h:9092"),
        ("store = 'dual:?primary=kafka:/%2Fu:hun&ter2@h&secondary=file:a@b'", "kafka:/%2F***@h&secondary=file:a@b"),
        ("store = 'dual:?primary=kafka%253A%252F%252Fu%253Ahunter2%2540h'", "kafka%253A%252F%252F***%2540h"),
        ("store = 'file:///backups/team@example.org/a.csv'", "file:///backups/team@example.org/a.csv"),
        ("zookeeper = 'u:hun&ter2@h:1/x'", '"***@h:1/x'),
        ("bootstrap-server = 'u:hun\tter &2@h:1'", '"***@h:1'),
        ("zookeeper = 'u:hunter2@h:1/x'", "***@h:1/x"),
        ("bootstrap-server = 'u:hun@ter2@h:1,i:1'", "***@h:1,i:1"),
    ],
)
def test_a_context_shows_no_password_of_an_address(setting: str, shown: str, tmp_path, monkeypatch) -> None:
    (tmp_path / "c.toml").write_text(f"[context.a]\n{setting}\ncommand-config = 'p'\n")
    (tmp_path / "p").write_text("bootstrap.servers=u:hunter2@p:9\n")
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(tmp_path / "c.toml"))
    for words in ("list",), ("show", "a"):
        listed = command("context", *words, "--format", "json").stdout
        assert shown in listed and "hun" not in listed
    assert '"***@p:9"' in listed


@pytest.mark.parametrize(
    "before", [None, "\ufeff# mine\r\n[context.b]  # kept\r\nstore = 'file:b'\r\n", FILE + "# end"]
)
def test_a_context_is_added_at_the_end_and_nothing_else_changes(before: str | None, tmp_path, monkeypatch) -> None:
    config, properties = tmp_path / "new" / "c.toml", tmp_path / "client.properties"
    properties.write_text("security.protocol=PLAINTEXT\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(config))
    if before is not None:
        config.parent.mkdir()
        config.write_bytes(before.encode())
    servers = ("--bootstrap-server", "h:1", "--zookeeper", "z:1/k", "--command-config", properties.name)
    done = command("context", "add", 'a"b', *servers, "--timeout", "5s")
    after = config.read_bytes().decode()
    assert after.startswith(before or "") and done.stdout in after.replace("\r\n", "\n")
    assert (before is not None) or config.stat().st_mode & 0o777 == 0o600
    command("context", "use", 'a"b')
    found = resolve(SettingsLayer())
    assert (found.store, found.bootstrap_server, found.command_config) == ("zookeeper://z:1/k", "h:1", str(properties))
    command("context", "add", "f", "--store", "file:a%20b.csv?format=csv")
    assert resolve(SettingsLayer(), "f").store == f"file:{tmp_path}/a%20b.csv?format=csv"
    after = config.read_bytes().decode()
    properties.write_text("zookeeper.auth=digest:secret\n")
    for words, why in (
        (('a"b', "--store", "file:x"), "is already in"),
        (
            ("a,b", "--store", "file:x"),
            "is not a name, but empty, a list, a glob, or not printable\nhint: as in prod-1",
        ),
        (("c",), "has no settings\nhint: add --bootstrap-server, --zookeeper or --store"),
        (("c", "--store", "ftp://h:1"), "unknown kind 'ftp'"),
        (("c", "--store", "dual:none"), "has no [store.none]"),
        (("c", "--bootstrap-server", "h:1,i"), "'i' has no port"),
        (("c", "--zookeeper", "u:secret@h:1"), "zookeeper://***@h:1"),
        (("c", "--store", "file:x", "--command-config", properties.name), "zookeeper.auth"),
    ):
        done = command("context", "add", *words, code=2)
        assert why in done.stderr and "secret" not in done.stdout + done.stderr
    assert config.read_bytes().decode() == after
    config.write_text("context = {}\n")
    assert "by hand" in command("context", "add", "c", "--store", "file:x", code=2).stderr
    assert config.read_text() == "context = {}\n"
