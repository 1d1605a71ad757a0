"""Tokens for OAUTHBEARER: their output formats, expiry, renewal, and errors without secrets."""

import base64
import json
import shlex
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from offsetmgr.config.java_config import translate_properties
from offsetmgr.core.errors import AuthenticationFailed, ConfigError, OffsetMgrError, ServerError, Unreachable
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.client.oauth_tokens import TokenSource, parse_token, token_source

NOW = 1_000_000.0
PYTHON = shlex.quote(sys.executable)


def jwt(**claims: Any) -> str:
    parts = ({"alg": "none"}, claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


@pytest.mark.parametrize(
    ("output", "expires_at"),
    [
        (jwt(exp=NOW + 60) + "\n", NOW + 60),
        (jwt(sub="x"), NOW + 300),
        ("opaque", NOW + 300),
        ('{"access_token": "opaque", "expires_in": 60}', NOW + 60),
        ('{"access_token": "opaque", "expires_in": "60"}', NOW + 60),
        (json.dumps({"access_token": jwt(exp=NOW + 50), "expires_in": 60}), NOW + 50),
        ('{"accessToken": "opaque", "expires_on": 1000070}', NOW + 70),
        ('{"token": "opaque", "expiration": "1970-01-12T13:48:00+00:00"}', NOW + 80),
        ('{"access_token": "opaque", "expires_in": null, "expiry": "soon"}', NOW + 300),
    ],
)
def test_tokens_and_their_expiry_are_read(output: str, expires_at: float) -> None:
    token = parse_token(output, NOW, "source")

    assert token.expires_at == expires_at
    assert token.renew_at == NOW + (expires_at - NOW) * 0.8
    assert token.value not in repr(token)


@pytest.mark.parametrize(
    ("output", "error", "why"),
    [
        ("", ServerError, "contains no token"),
        ("two words", ServerError, "contains no token"),
        ("a\x01b", ServerError, "contains no token"),
        ("{hunter2", ServerError, "is not valid JSON"),
        ('{"error": "hunter2"}', ServerError, "contains no token"),
        ('{"access_token": {"hunter2": 1}}', ServerError, "contains no token"),
        (jwt(exp=NOW - 7, sub="hunter2"), AuthenticationFailed, "its token expired 7 s ago"),
    ],
)
def test_other_outputs_are_errors_that_quote_nothing(output: str, error: type[OffsetMgrError], why: str) -> None:
    with pytest.raises(error) as caught:
        parse_token(output, NOW, "source")
    assert why in caught.value.why
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
    if error is ServerError:
        source = token_source({"sasl.oauthbearer.token.command": f"printf '%s' {shlex.quote(output)}"})
        with pytest.raises(ServerError) as caught:
            source.token()
        hint = "sasl.oauthbearer.token.command must print the token alone, or JSON with access_token"
        assert caught.value.hint.startswith(hint) and "hunter2" not in f"{caught.value} {caught.value.hint}"


class Endpoint:
    """Answers with a new token each time, or fails."""

    def __init__(self) -> None:
        self.now = NOW
        self.calls = 0
        self.fails = False
        self.source = TokenSource("endpoint", self.fetch, {}, lambda: self.now)

    def fetch(self, _: float) -> str:
        self.calls += 1
        if self.fails:
            raise Unreachable("endpoint", "refused")
        return json.dumps({"access_token": f"token-{self.calls}", "expires_in": 100})


def test_a_token_is_renewed_after_80_percent_of_its_lifetime_and_a_failure_matters_at_its_end() -> None:
    endpoint = Endpoint()

    def value_at(seconds: float) -> str:
        endpoint.now = NOW + seconds
        return endpoint.source.token().value

    assert [value_at(seconds) for seconds in (0, 79, 80, 159, 160)] == ["token-1"] * 2 + ["token-2"] * 2 + ["token-3"]
    endpoint.fails = True
    assert value_at(259) == "token-3"
    with pytest.raises(Unreachable):
        value_at(260)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "no setting names a source"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://hunter2/"}, "needs sasl.oauthbearer.client.id"),
        ({"sasl.oauthbearer.token.endpoint.url": "file:///hunter2"}, "must begin with https"),
        ({"sasl.oauthbearer.token.command": "'hunter2"}, "is not a command line"),
    ],
)
def test_incomplete_settings_are_rejected(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Security.of({"security.protocol": "sasl_ssl", "sasl.mechanism": "oauthbearer", **settings})
    assert why in caught.value.why
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("no-such-program-7 --password hunter2", "cannot be started"),
        (f"{PYTHON} -c 'import sys; print(\"hunter2\", file=sys.stderr); sys.exit(4)'", "failed with exit code 4"),
        (f"{PYTHON} -c 'import time; time.sleep(9) # hunter2'", "did not end within 0.1 s"),
    ],
)
def test_a_failing_command_is_an_error_without_its_output(command: str, why: str) -> None:
    with pytest.raises(OffsetMgrError) as caught:
        token_source({"sasl.oauthbearer.token.command": command}).token(0.1 if "0.1" in why else 90)
    assert why in caught.value.why
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


@pytest.fixture
def endpoint_url() -> Any:
    """A function that starts an HTTP server, which answers every request with this status and body."""
    servers = []

    def start(status: int, body: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/token?key=hunter2"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "error", "why"),
    [
        (
            401,
            '{"error": "invalid_client", "error_description": "hunter2"}',
            AuthenticationFailed,
            "401, invalid_client",
        ),
        (400, '{"error": "<b>hunter2</b>"}', AuthenticationFailed, "(HTTP 400)"),
        (403, "hunter2", AuthenticationFailed, "(HTTP 403)"),
        (503, "hunter2", Unreachable, "(HTTP 503)"),
        (200, "hunter2 hunter2", ServerError, "contains no token"),
    ],
)
def test_an_endpoint_that_gives_no_token_is_an_error_with_its_reason(endpoint_url, status, body, error, why) -> None:
    settings = {
        "sasl.oauthbearer.token.endpoint.url": endpoint_url(status, body),
        "sasl.oauthbearer.client.id": "hunter2",
        "sasl.oauthbearer.client.secret": "hunter2",
    }
    with pytest.raises(error) as caught:
        token_source(settings).token()
    assert why in caught.value.why
    assert "hunter2" not in f"{caught.value} {caught.value.hint} {caught.value.args}"


MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
PEM = ' ssl.truststore.type="PEM"'


@pytest.mark.parametrize(
    ("java", "librdkafka"),
    [
        (
            {"sasl.jaas.config": f'{MODULE} required clientId="i" clientSecret="s" scope="x" extension_a="b";'},
            {"client.id": "i", "client.secret": "s", "scope": "x", "extensions": "a=b"},
        ),
        (
            {
                "sasl.oauthbearer.client.credentials.client.id": "i",
                "sasl.oauthbearer.client.credentials.client.secret": "s",
                "sasl.login.callback.handler.class": MODULE.replace("Module", "CallbackHandler"),
            },
            {"client.id": "i", "client.secret": "s"},
        ),
        (
            {
                "sasl.oauthbearer.method": "OIDC",
                "sasl.oauthbearer.client.id": "i",
                "sasl.jaas.config": f"{MODULE} required;",
            },
            {"client.id": "i"},
        ),
        ({"sasl.oauthbearer.token.command": "get-token"}, {"token.command": "get-token"}),
        (
            {"sasl.jaas.config": f'{MODULE} required clientId="i" ssl.truststore.location="ca.pem"{PEM};'},
            {"client.id": "i", "https.ca.location": "ca.pem"},
        ),
    ],
)
def test_the_settings_of_java_clients_are_translated(java: dict[str, str], librdkafka: dict[str, str]) -> None:
    found = translate_properties(java, "f").kafka
    assert {key.removeprefix("sasl.oauthbearer."): value for key, value in found.items()} == librdkafka
