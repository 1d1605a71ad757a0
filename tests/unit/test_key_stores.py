"""JKS and PKCS12 stores that keytool made, see tests/data/key_stores/README.md."""

from __future__ import annotations

import random
import ssl
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12

from offsetmgr.config.java_config import translate_properties
from offsetmgr.config.key_stores import StoreError, read_store
from offsetmgr.config.tls_context import tls_context
from offsetmgr.core.errors import ConfigError

STORES: Final = Path(__file__).parent.parent / "data" / "key_stores"
CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"


def names(pem: str) -> set[str]:
    """The subjects of the authorities in PEM text."""
    context = ssl.create_default_context(cadata=pem)
    return {"".join(pair[1] for part in ca["subject"] for pair in part) for ca in context.get_ca_certs()}


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
    content = read_store(str(STORES / file), password)

    assert names(content.trusted) == authorities
    assert (content.chain, content.private_key) == ("", "")


@pytest.mark.parametrize(("file", "key_password"), [("client.jks", "entry-secret"), ("client.p12", None)])
def test_a_key_store_gives_the_key_with_its_chain(tmp_path: Path, file: str, key_password: str | None) -> None:
    content = read_store(str(STORES / file), "store-secret", key_password)

    assert content.chain.count(CERTIFICATE) == 2
    assert "PRIVATE KEY" not in repr(content)
    (tmp_path / "chain.pem").write_text(content.chain + content.private_key)
    ssl.create_default_context().load_cert_chain(tmp_path / "chain.pem")  # the key belongs to the first certificate


@pytest.mark.parametrize(
    ("file", "password", "why"),
    [
        ("trust.jks", "guess", "its password is wrong"),
        ("trust.p12", "guess", "its password is wrong"),
        ("trust.p12", None, "a PKCS12 file needs its password"),
        ("client.jks", "store-secret", "the password of its private key is wrong: set ssl.key.password"),
        ("secret.jceks", "store-secret", "convert it with keytool"),
        ("ca.pem", None, "neither a JKS nor a PKCS12 file"),
    ],
)
def test_an_unreadable_store_is_an_error_with_its_reason(file: str, password: str | None, why: str) -> None:
    with pytest.raises(StoreError) as caught:
        read_store(str(STORES / file), password)
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("file", ["trust.jks", "client.jks", "trust.p12", "client.p12"])
def test_a_damaged_store_is_an_error_and_never_a_crash(tmp_path: Path, file: str) -> None:
    intact = (STORES / file).read_bytes()
    chance = random.Random(file)
    for _ in range(60 if file.endswith("jks") else 10):
        data = bytearray(intact[: chance.choice([len(intact), chance.randrange(4, len(intact))])])
        data[chance.randrange(4, len(data))] ^= 1 << chance.randrange(8)
        (tmp_path / file).write_bytes(data)
        for password in ("store-secret", None):
            try:
                read_store(str(tmp_path / file), password, "entry-secret")
            except StoreError:
                continue


def store(which: str, file: str, password: str, **more: str) -> dict[str, str]:
    given = {"location": str(STORES / file), "password": password, **more}
    return {f"ssl.{which}.{key}": value for key, value in given.items()}


@pytest.mark.parametrize(
    ("trust", "keys"),
    [
        (store("truststore", "trust.jks", "trust-secret"), store("keystore", "client.p12", "store-secret")),
        # Java determines the format by the content, too.
        (
            store("truststore", "trust.p12", "trust-secret", type="JKS"),
            store("keystore", "client.jks", "store-secret", type="PKCS12") | {"ssl.key.password": "entry-secret"},
        ),
    ],
)
def test_java_stores_become_pem_for_both_clients(trust: dict[str, str], keys: dict[str, str]) -> None:
    kafka = translate_properties({**trust, **keys}, "f").kafka

    assert set(kafka) == {"ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem"}
    assert len(tls_context(kafka).get_ca_certs()) == 2


def test_pem_on_one_line_gets_line_breaks() -> None:
    """Kafka's documentation shows PEM values on a single line of the file."""
    content = read_store(str(STORES / "client.p12"), "store-secret")
    java = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": " ".join((STORES / "ca.pem").read_text().split("\n")),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": " ".join(content.chain.split("\n")),
        "ssl.keystore.key": " ".join(content.private_key.split("\n")),
    }

    kafka = translate_properties(java, "f").kafka

    assert names(kafka["ssl.ca.pem"]) == {"test-authority"}
    assert len(tls_context(kafka).get_ca_certs()) == 1


def test_a_pem_file_without_a_suffix_is_recognized(tmp_path: Path) -> None:
    location = tmp_path / "authorities"
    location.write_bytes((STORES / "ca.pem").read_bytes())

    assert translate_properties({"ssl.truststore.location": str(location)}, "f").kafka == {
        "ssl.ca.location": str(location)
    }


@pytest.mark.parametrize(
    ("java", "key", "why"),
    [
        ({"ssl.truststore.location": "missing.jks"}, "ssl.truststore.location", "No such file"),
        (store("truststore", "trust.jks", "guess"), "ssl.truststore.location", "its password is wrong"),
        (store("keystore", "trust.jks", "trust-secret"), "ssl.keystore.location", "no private key"),
        ({"ssl.keystore.location": str(STORES / "client.jks")}, "ssl.keystore.location", "no private key"),
        ({"ssl.keystore.password": "guess"}, "ssl.keystore.password", "no effect"),
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.type", "only PEM"),
        (
            store("truststore", "trust.jks", "trust-secret") | {"ssl.truststore.certificates": "x"},
            "ssl.truststore.certificates",
            "together",
        ),
        (
            store("keystore", "client.jks", "store-secret") | {"ssl.keystore.key": "x"},
            "ssl.keystore.location",
            "together",
        ),
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
        translate_properties(
            {
                "ssl.keystore.location": str(file),
                "ssl.keystore.password": "store-secret",
                "ssl.keystore.type": "PKCS12",
            },
            "f.properties",
        )


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
def test_tls_towards_zookeeper_has_the_names_of_kafkas_tools(
    java: dict[str, str], expected: dict[str, str] | None
) -> None:
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
