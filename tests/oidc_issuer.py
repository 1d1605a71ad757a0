"""An OIDC issuer: a token endpoint for client credentials, and the keys with which brokers check the tokens."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.parse
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

CLIENT = "offsetmgr-client"
CLIENT_SECRET = "client-7-secret"
AUDIENCE = "kafka"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class OidcIssuer:
    """Serves on a free port. ``lifetime_s`` may be changed, ``requests`` counts the answers by their kind."""

    def __init__(self, lifetime_s: float = 300) -> None:
        self.lifetime_s = lifetime_s
        self.audience = AUDIENCE
        self.requests: Counter[str] = Counter()
        self.tokens: list[str] = []
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(200, issuer.keys())

            def do_POST(self) -> None:
                form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.answer(*issuer.grant(self.headers["Authorization"] or "", form))

            def answer(self, status: int, body: dict[str, Any]) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        n = _base64(numbers.n.to_bytes(256, "big"))
        return {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "k", "n": n, "e": "AQAB"}]}

    def grant(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        expected = base64.b64encode(f"{CLIENT}:{CLIENT_SECRET}".encode()).decode()
        if authorization != f"Basic {expected}":
            self.requests["rejected"] += 1
            return 401, {"error": "invalid_client", "error_description": "no such client"}
        if form.get("grant_type") != ["client_credentials"]:
            return 400, {"error": "unsupported_grant_type"}
        self.requests["granted"] += 1
        scope = form.get("scope", [""])[0]
        return 200, {"access_token": self.token(scope), "token_type": "Bearer", "expires_in": int(self.lifetime_s)}

    def token(self, scope: str = "") -> str:
        now = int(time.time())
        claims = {"iss": self.url, "sub": "alice", "aud": self.audience, "iat": now, "exp": now + int(self.lifetime_s)}
        parts = ({"alg": "RS256", "kid": "k", "typ": "JWT"}, claims | ({"scope": scope} if scope else {}))
        signed = ".".join(_base64(json.dumps(part).encode()) for part in parts)
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        self.tokens.append(f"{signed}.{_base64(signature)}")
        return self.tokens[-1]
