"""A self-signed certificate of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(directory: Path) -> Path:
    """Writes ``key.pem`` and ``cert.pem``, for localhost and 127.0.0.1. Returns ``both.pem``, which has both."""
    options = ["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *options, *names]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=120)
    both = directory / "both.pem"
    both.write_text((directory / "cert.pem").read_text() + (directory / "key.pem").read_text())
    return both
