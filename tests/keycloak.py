"""Keycloak, an OIDC issuer, with its token endpoint on HTTPS. The first start fetches its distribution."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

from maven_artifact import Artifact, Downloader
from processes import wait_for

from offsetmgr.sandbox.paths import cache_directory
from offsetmgr.sandbox.ports import free_port

VERSION: Final = "26.5.6"
REALM: Final = "kafka"
AUDIENCE: Final = "kafka"
STORES: Final = Path(__file__).parent / "data" / "key_stores"
"""The certificate of the server is that of the tests' brokers."""


def distribution() -> Path:
    """Returns the archive in the cache directory, and fetches it first if needed."""
    archive = cache_directory() / f"keycloak-{VERSION}.tar.gz"
    if not archive.exists():
        with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            fetched = Path(scratch) / archive.name
            artifact = Artifact("org.keycloak", "keycloak-quarkus-dist", VERSION, extension="tar.gz")
            Downloader().download(artifact, filename=str(fetched))
            fetched.replace(archive)
    return archive


def client(name: str, secret: str, lifetime_s: int) -> dict[str, Any]:
    """A client with a service account. Its tokens are for `AUDIENCE`."""
    audience = {"included.custom.audience": AUDIENCE, "access.token.claim": "true"}
    mapper = {"name": "audience", "protocol": "openid-connect", "protocolMapper": "oidc-audience-mapper"}
    return {
        "clientId": name,
        "secret": secret,
        "publicClient": False,
        "serviceAccountsEnabled": True,
        "standardFlowEnabled": False,
        "attributes": {"access.token.lifespan": str(lifetime_s)},
        "protocolMappers": [{**mapper, "config": audience}],
    }


class Keycloak:
    """A server with one realm. ``clients`` come from `client`."""

    def __init__(self, directory: Path, *clients: dict[str, Any]) -> None:
        self._directory = directory
        self._clients = clients
        self.port = free_port()
        self.issuer = f"https://127.0.0.1:{self.port}/realms/{REALM}"
        self.token_endpoint = f"{self.issuer}/protocol/openid-connect/token"
        self.keys_endpoint = f"{self.issuer}/protocol/openid-connect/certs"

    def __enter__(self) -> Self:
        with tarfile.open(distribution()) as archive:
            archive.extractall(self._directory, filter="data")
        home = self._directory / f"keycloak-{VERSION}"
        imported = home / "data" / "import" / "realm.json"
        imported.parent.mkdir(parents=True)
        imported.write_text(json.dumps({"realm": REALM, "enabled": True, "clients": self._clients}))
        options = {
            "http-host": "127.0.0.1",
            "http-port": free_port(),
            "https-port": self.port,
            "https-key-store-file": STORES / "server.p12",
            "https-key-store-password": "store-secret",
            "cache": "local",
        }
        command = [
            str(home / "bin" / "kc.sh"),
            "start-dev",
            "--import-realm",
            *(f"--{k}={v}" for k, v in options.items()),
        ]
        with (home / "keycloak.log").open("w") as log:
            # kc.sh replaces itself by Java, so the id of the process stays.
            environ = {**os.environ, "JAVA_OPTS_APPEND": "-XX:TieredStopAtLevel=1"}
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home, env=environ
            )
        try:
            wait_for(self._responds, "Keycloak responds", 600)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # it has no data to keep, and its orderly end takes up to a minute
        self._process.wait(60)
        shutil.rmtree(self._directory / f"keycloak-{VERSION}")

    def _responds(self) -> bool:
        assert self._process.poll() is None, "Keycloak has ended"
        trusted = ssl.create_default_context(cafile=str(STORES / "ca.pem"))
        try:
            with urllib.request.urlopen(self.keys_endpoint, context=trusted, timeout=60) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
