"""Fixtures: a listener over an in-memory backend, and frequent checks of the time limits of connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from memory_listener import MemoryBackend, MemoryListener

from offsetmgr.server.network import socket_server


@pytest.fixture
def quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that exceed a time limit are closed within 50 ms."""
    monkeypatch.setattr(socket_server, "_SWEEP_S", 0.05)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def listening(backend: MemoryBackend) -> Iterator[MemoryListener]:
    with MemoryListener(backend) as listening:
        yield listening
