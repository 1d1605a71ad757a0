"""JKS and PKCS12 stores that keytool made, see tests/data/key_stores/README.md."""

import random
import ssl
from pathlib import Path
from typing import Final

import pytest
from client_properties import STORES, store
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12

from offsetmgr.config.java_config import translate_properties
from offsetmgr.core.errors import ConfigError

CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"


def translated(*settings: dict[str, str], key_password: str | None = None) -> dict[str, str]:
    """The settings of librdkafka for settings of Java."""
    java = {key: value for one in settings for key, value in one.items()}
    java |= {} if key_password is None else {"ssl.key.password": key_password}
    return dict(translate_properties(java, "f.properties").kafka)


def names(pem: str) -> set[str]:
    """The subjects of the authorities in PEM text."""
    context = ssl.create_default_context(cadata=pem)
    return {"".join(pair[1] for part in ca["subject"] for pair in part) for ca in context.get_ca_certs()}


def check_key(kafka: dict[str, str], directory: Path) -> None:
    """The key belongs to the first certificate of its chain."""
    chain, key = kafka["ssl.certificate.pem"], kafka["ssl.key.pem"]
    assert chain.count(CERTIFICATE) == 2
    (directory / "chain.pem").write_text(f"{chain}\n{key}")
    ssl.create_default_context().load_cert_chain(directory / "chain.pem")


@pytest.mark.parametrize(
    ("file", "password", "authorities"),
    [
        ("trust.jks", "trust-secret", {"test-authority", "second-authority"}),
        ("trust.jks", None, {"test-authority", "second-authority"}),
        ("trust.p12", "trust-secret", {"test-authority", "second-authority"}),
        ("legacy.p12", "trust-secret", {"test-authority"}),
    ],
)
def test_a_trust_store_gives_all_of_its_certificates(file: str, password: str | None, authorities: set[str]) -> None:
    kafka = translated(store("truststore", file, password))

    assert names(kafka["ssl.ca.pem"]) == authorities
    assert len(kafka) == 1


@pytest.mark.parametrize(
    ("trust", "keys", "key_password"),
    [
        (("trust.jks", "trust-secret"), ("client.p12", "store-secret"), None),
        # Java determines the format by the content, too.
        (("trust.p12", "trust-secret", "JKS"), ("client.jks", "store-secret", "PKCS12"), "entry-secret"),
    ],
)
def test_java_stores_become_pem(trust, keys: tuple[str, ...], key_password: str | None, tmp_path: Path) -> None:
    settings = [
        store(which, file, password, **({"type": kind[0]} if kind else {}))
        for which, (file, password, *kind) in (("truststore", trust), ("keystore", keys))
    ]
    kafka = translated(*settings, key_password=key_password)

    assert set(kafka) == {"ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem"}
    assert names(kafka["ssl.ca.pem"]) == {"test-authority", "second-authority"}
    check_key(kafka, tmp_path)


@pytest.mark.parametrize("file", ["trust.jks", "client.jks", "trust.p12", "client.p12"])
def test_a_damaged_store_is_an_error_and_never_a_crash(tmp_path: Path, file: str) -> None:
    intact = (STORES / file).read_bytes()
    chance = random.Random(file)
    which, key_password = ("truststore", None) if "trust" in file else ("keystore", "entry-secret")
    refused = 0
    for _ in range(60 if file.endswith("jks") else 10):
        data = bytearray(intact[: chance.choice([len(intact), chance.randrange(4, len(intact))])])
        data[chance.randrange(4, len(data))] ^= 1 << chance.randrange(8)
        (tmp_path / file).write_bytes(data)
        for password in ("store-secret", None):
            try:
                translated(store(which, str(tmp_path / file), password), key_password=key_password)
            except ConfigError:
                refused += 1
    assert refused >= 10


def test_pem_on_one_line_gets_line_breaks(tmp_path: Path) -> None:
    """Kafka's documentation shows PEM values on a single line of the file."""
    client = translated(store("keystore", "client.p12", "store-secret"))
    java = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": " ".join((STORES / "ca.pem").read_text().split("\n")),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": " ".join(client["ssl.certificate.pem"].split("\n")),
        "ssl.keystore.key": " ".join(client["ssl.key.pem"].split("\n")),
    }

    kafka = translated(java)

    assert names(kafka["ssl.ca.pem"]) == {"test-authority"}
    check_key(kafka, tmp_path)


def test_a_pem_file_without_a_suffix_is_recognized(tmp_path: Path) -> None:
    location = tmp_path / "authorities"
    location.write_bytes((STORES / "ca.pem").read_bytes())

    assert translate_properties({"ssl.truststore.location": str(location)}, "f").kafka == {
        "ssl.ca.location": str(location)
    }


TRUST, KEYS = "ssl.truststore.location", "ssl.keystore.location"
TRUSTED, CLIENT = store("truststore", "trust.jks", "trust-secret"), store("keystore", "client.jks", "store-secret")


@pytest.mark.parametrize(
    ("java", "key", "why"),
    [
        ({TRUST: "missing.jks"}, TRUST, "No such file"),
        (store("truststore", "trust.jks", "guess"), TRUST, "its password is wrong"),
        (store("truststore", "trust.p12", "guess"), TRUST, "its password is wrong"),
        (store("truststore", "trust.p12", None), TRUST, "a PKCS12 file needs its password"),
        (CLIENT, KEYS, "the password of its private key is wrong: set ssl.key.password"),
        (store("truststore", "secret.jceks", "store-secret"), TRUST, "convert it with keytool"),
        (store("truststore", "ca.pem", None, type="JKS"), TRUST, "neither a JKS nor a PKCS12 file"),
        (store("keystore", "trust.jks", "trust-secret"), KEYS, "no private key"),
        ({KEYS: str(STORES / "client.jks")}, KEYS, "no private key"),
        ({"ssl.keystore.password": "guess"}, "ssl.keystore.password", "no effect"),
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.type", "only PEM"),
        (TRUSTED | {"ssl.truststore.certificates": "x"}, "ssl.truststore.certificates", "together"),
        (CLIENT | {"ssl.keystore.key": "x"}, KEYS, "together"),
    ],
)
def test_invalid_stores_are_named_by_their_key(java: dict[str, str], key: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        translate_properties(java, "f.properties")
    assert caught.value.what == f"f.properties: {key}"
    assert why in caught.value.why
    assert "guess" not in f"{caught.value} {caught.value.hint}"
    assert "-secret" not in f"{caught.value} {caught.value.hint}"


def test_a_key_without_a_certificate_is_named(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    encryption = serialization.BestAvailableEncryption(b"store-secret")
    file = tmp_path / "key.p12"
    file.write_bytes(pkcs12.serialize_key_and_certificates(None, key, None, None, encryption))
    with pytest.raises(ConfigError, match="contains no certificate of the private key"):
        translated(store("keystore", str(file), "store-secret", type="PKCS12"))


ZOOKEEPER = {"zookeeper.ssl.client.enable": "true"}


@pytest.mark.parametrize(
    ("java", "expected"),
    [
        ({}, None),
        ({"zookeeper.ssl.client.enable": "false"}, None),
        (ZOOKEEPER, {}),
        (
            ZOOKEEPER
            | {
                "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
                "zookeeper.ssl.truststore.location": "ca.pem",
                "zookeeper.ssl.endpoint.identification.algorithm": "",
            },
            {"ssl.ca.location": "ca.pem", "ssl.endpoint.identification.algorithm": "none"},
        ),
        (ZOOKEEPER | {"zookeeper.ssl.trustStore.location": "ca.pem"}, {"ssl.ca.location": "ca.pem"}),
    ],
)
def test_tls_towards_zookeeper_has_the_names_of_kafkas_tools(java: dict[str, str], expected) -> None:
    translated = translate_properties(java, "f")

    assert translated.zookeeper_tls == expected
    assert translated.kafka == {}


@pytest.mark.parametrize(
    ("java", "key"),
    [
        ({"zookeeper.ssl.client.enable": "maybe"}, "zookeeper.ssl.client.enable"),
        ({"zookeeper.ssl.truststore.location": "ca.pem"}, "zookeeper.ssl.truststore.location"),
        (ZOOKEEPER | {"zookeeper.clientCnxnSocket": "ClientCnxnSocketNIO"}, "zookeeper.clientCnxnSocket"),
        (ZOOKEEPER | {"zookeeper.ssl.protocol": "TLSv1.3"}, "zookeeper.ssl.protocol"),
        (ZOOKEEPER | {"zookeeper.ssl.truststore.location": "missing.jks"}, "zookeeper.ssl.truststore.location"),
    ],
)
def test_invalid_tls_settings_of_zookeeper_are_named(java: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        translate_properties(java, "f")
    assert caught.value.what == f"f: {key}"
