"""Checks one server of a ZooKeeper ensemble for ``offsetmgr doctor``: reachability, release, mode, session and clock.
The check creates no node; like every command, it opens a session."""

from __future__ import annotations

import contextlib
import re
from typing import Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.config.tls_context import tls_context
from offsetmgr.core.check_result import CheckResult, CheckStatus, clock_check, failed_check
from offsetmgr.core.clock import Clock, ClockDifference
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.zookeeper.client.connection import admin_command
from offsetmgr.zookeeper.client.session import ZookeeperSession

SOURCE: Final = "the time at which the server accepted this session, from its command cons"
_VERSION: Final = re.compile(r"^Zookeeper version: ([0-9][^-,\s]*)", re.MULTILINE)
_MODE: Final = re.compile(r"^Mode: (\S+)", re.MULTILINE)
_ESTABLISHED: Final = r"sid=0x{:x},.*?est=([0-9]+)"
_NOT_ALLOWED: Final = "4lw.commands.whitelist"


def check_server(hosts: str, config: ConnectionConfig, clock: Clock) -> list[CheckResult]:
    """Checks the server ``hosts`` (``host:port``)."""
    before_ms = clock.now_ms()
    with ZookeeperSession(hosts, config) as session:
        try:
            session.get("/")
        except OffsetMgrError as error:
            return [failed_check("zookeeper", hosts, error)]
        after_ms = clock.now_ms()
        rows = [_server_row(hosts, config)]
        difference = _clock(hosts, config, session.session_id, before_ms, after_ms)
        if difference is None:
            why = "the server reports no time: it does not allow the command cons"
            fix = f"add cons to {_NOT_ALLOWED} of the server, or compare the clocks with ntpq or chronyc"
            rows.append(CheckResult("clock", hosts, CheckStatus.UNKNOWN, why, fix))
        else:
            rows.append(clock_check(hosts, difference))
    return rows


def _server_row(hosts: str, config: ConnectionConfig) -> CheckResult:
    answer = _ask(hosts, config, "srvr")
    version, mode = _VERSION.search(answer), _MODE.search(answer)
    if version is None:
        why = "serves requests; its release is not known, because it does not allow the command srvr"
        return CheckResult("zookeeper", hosts, CheckStatus.OK, why)
    shown = f"ZooKeeper {version[1]}, {mode[1] if mode else 'unknown mode'}, session opened"
    if mode is not None and mode[1] == "read-only":
        fix = "restore the majority of the ensemble: this server rejects every write"
        return CheckResult("zookeeper", hosts, CheckStatus.FAILED, shown, fix)
    return CheckResult("zookeeper", hosts, CheckStatus.OK, shown)


def server_clock(hosts: str, config: ConnectionConfig, clock: Clock) -> ClockDifference | None:
    """Returns the difference of the clock of the server ``hosts``; None if the server does not report its time."""
    before_ms = clock.now_ms()
    with ZookeeperSession(hosts, config) as session:
        session.get("/")
        return _clock(hosts, config, session.session_id, before_ms, clock.now_ms())


def _clock(
    hosts: str, config: ConnectionConfig, session_id: int | None, before_ms: int, after_ms: int
) -> ClockDifference | None:
    """Returns the difference of the server's clock from the time at which it accepted the session's connection, between
    ``before_ms`` and ``after_ms``; None if the server does not report this time."""
    if session_id is None:
        return None
    found = re.search(_ESTABLISHED.format(session_id), _ask(hosts, config, "cons"))
    return None if found is None else ClockDifference.measured(int(found[1]), before_ms, after_ms, SOURCE)


def _ask(hosts: str, config: ConnectionConfig, command: str) -> str:
    """Returns the answer to an administrative command; empty if the server does not answer."""
    tls = None if config.zookeeper_tls is None else tls_context(config.zookeeper_tls)
    with contextlib.suppress(OSError):
        return admin_command(hosts, tls, command)
    return ""
