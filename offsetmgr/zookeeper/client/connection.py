"""`KazooConnection`: a kazoo client with its request queue. The client connects when it is first used.

This module manages only the life cycle of the connection; `session` defines the requests. It works around three
properties of kazoo. kazoo logs credentials at level DEBUG and prints warnings to stderr. kazoo's ``start`` and ``stop``
can take far longer than their timeout. kazoo allocates a condition variable for each result, which is slow for
thousands of requests.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, SessionClosedRequireSaslError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from offsetmgr.config.connection import ConnectionConfig, split_connect
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import (
    AuthenticationFailed,
    ConfigError,
    InvalidUri,
    OffsetMgrError,
    SessionExpired,
    TimedOut,
    Unreachable,
    install_hint,
)
from offsetmgr.zookeeper.client.jute import ustring

# Computes the ACL of each node that offsetmgr creates, from ``zookeeper.acl`` and the ACL of the node's parent. In
# ZooKeeper a node does not inherit its parent's ACL. Therefore the client sends an ACL for each node that it creates.
# This part performs no I/O. Source: ZooDefs.Perms and ZooDefs.Ids of ZooKeeper; kafka.utils.ZkUtils.defaultAcls for
# the ACLs that a secured broker sets.

_PERMISSIONS: Final = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}
_ALL: Final = 31
_ALL_BUT_ADMIN: Final = 15
_READ: Final = 1
_WRITE: Final = 2
_DIGEST: Final = re.compile("[^:]+:[A-Za-z0-9+/]{27}=")
_INT: Final = struct.Struct("!i")


class AclEntry(NamedTuple):
    """One entry of an ACL; ``permissions`` is a sum of read 1, write 2, create 4, delete 8, admin 16."""

    permissions: int
    scheme: str
    id: str


Acl = tuple[AclEntry, ...]

OPEN: Final[Acl] = (AclEntry(_ALL, "world", "anyone"),)
"""All permissions for every client. Kafka sets this ACL on the nodes under ``/consumers``."""


def persistent_acl(configured: Acl, parent: Acl) -> Acl:
    """Returns the ACL of a persistent node below a node with the ACL ``parent``, because old consumers that do not have
    offsetmgr's credentials may have to write the node.

    If only some clients may write the parent, the new node gets the parent's ACL, so that the same clients may write
    both nodes. If every client may write the parent, the new node gets the configured ACL and an entry that gives every
    client all permissions except admin. With these permissions, an old consumer can write the node but cannot change
    the node's ACL.
    """
    if not any(entry.scheme == "world" and entry.permissions & _WRITE for entry in parent):
        return parent
    return _grant_to_everybody(configured, _ALL_BUT_ADMIN)


def parse_acl(text: str, authenticated: bool) -> Acl | None:
    """Parses ``zookeeper.acl``: ``open``, ``creator``, or a list such as ``sasl:app:cdrw,digest:USER:HASH:r``.

    Returns None for ``open``, which means that new nodes get the ACL `OPEN`, as in Kafka. Raises `ConfigError`, which
    never quotes text that may be a password.
    """
    text = text.strip()
    if text in ("", "open"):
        return None
    if text == "creator":
        if not authenticated:
            raise ConfigError(
                "zookeeper.acl=creator",
                "a session without credentials cannot own a node",
                "also set zookeeper.auth=digest:USER:PASSWORD or sasl:USER:PASSWORD",
            )
        return (AclEntry(_ALL, "auth", ""),)
    return tuple(_parse_entry(number, part.strip()) for number, part in enumerate(text.split(","), 1))


def _parse_entry(number: int, text: str) -> AclEntry:
    where = f"zookeeper.acl: entry {number}"
    scheme, _, rest = text.partition(":")
    who, _, letters = rest.rpartition(":")
    if not (scheme and who and letters) or not set(letters) <= _PERMISSIONS.keys():
        raise ConfigError(
            where,
            "is not SCHEME:ID:PERMISSIONS, where PERMISSIONS are letters of cdrwa",
            "for example: zookeeper.acl=sasl:app:cdrwa,world:anyone:r; or open; or creator",
        )
    if scheme == "digest" and not _DIGEST.fullmatch(who):
        raise ConfigError(
            where,
            "needs the hash that ZooKeeper stores instead of the password",
            "use the output of ZooKeeper's DigestAuthenticationProvider: USER:BASE64",
        )
    if scheme == "auth":
        raise ConfigError(where, "the scheme auth cannot be part of a list", "write zookeeper.acl=creator")
    return AclEntry(sum(_PERMISSIONS[letter] for letter in set(letters)), scheme, who)


def acls_for(
    configured: Acl,
    ephemeral: Iterable[str],
    persistent: Iterable[str],
    read: Callable[[Sequence[str]], Sequence[Acl | OffsetMgrError]],
) -> dict[str, Acl | OffsetMgrError]:
    """Returns the ACL of each new node, keyed by path. ``ephemeral`` and ``persistent`` are the paths of the new nodes.

    ``read`` returns the ACLs of existing nodes. If ``read`` returns an error for a parent, this error is the result for
    each new node below the parent.
    """
    # Other members need to read the ephemeral nodes.
    acls: dict[str, Acl | OffsetMgrError] = dict.fromkeys(ephemeral, _grant_to_everybody(configured, _READ))
    parents_first = sorted(persistent, key=lambda path: path.count("/"))
    new = set(parents_first)
    parents = list(dict.fromkeys(parent_path for path in parents_first if (parent_path := _parent(path)) not in new))
    parent_acls = dict(zip(parents, read(parents), strict=True)) if parents else {}
    for path in parents_first:
        parent_path = _parent(path)
        parent = parent_acls.get(parent_path)
        if parent is None:  # the same transaction creates the parent; both get the same ACL
            acls[path] = acls[parent_path]
        else:
            acls[path] = parent if isinstance(parent, OffsetMgrError) else persistent_acl(configured, parent)
    return acls


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def is_masked(acl: Acl) -> bool:
    """Whether the server has masked the hashes of digest entries. A masked ACL cannot be copied to another node.
    Servers of ZooKeeper 3.5 and later mask the hashes if the client does not have the admin permission.
    """
    return any(entry.scheme == "digest" and entry.id.endswith(":x") for entry in acl)


def _grant_to_everybody(configured: Acl, permissions: int) -> Acl:
    """Returns ``configured`` with an entry that gives every client at least ``permissions``."""
    others = tuple(entry for entry in configured if (entry.scheme, entry.id) != ("world", "anyone"))
    already = sum(entry.permissions for entry in configured if entry not in others)
    return (*others, AclEntry(already | permissions, "world", "anyone"))


def encode(acl: Acl) -> bytes:
    """Encodes an ACL for a request."""
    parts = [_INT.pack(len(acl))]
    for permissions, scheme, who in acl:
        parts += [_INT.pack(permissions), ustring(scheme.encode()), ustring(who.encode())]
    return b"".join(parts)


# Sockets to ZooKeeper servers: TLS for kazoo, and test connections that explain why no server can be reached.

_PROBE_TIMEOUT_S: Final = 0.3
_TLS_PROBE_TIMEOUT_S: Final = 2.0
_DEFAULT_PORT: Final = "2181"


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Connects with TLS settings that kazoo's own parameters, paths of files, cannot express."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: Any) -> ssl.SSLSocket:
        connection = socket.create_connection(address, timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.wrap_socket(connection, server_hostname=hostname.strip("[]"))
        except BaseException:
            connection.close()
            raise

    def select(self, readers: list[Any], writers: list[Any], errors: list[Any], timeout: float | None = None) -> Any:
        """Reports bytes that are already decrypted, which the operating system does not know. kazoo would otherwise
        wait for further bytes if one TLS record contains several responses."""
        ready = [reader for reader in readers if isinstance(reader, ssl.SSLSocket) and reader.pending()]
        return (ready, [], []) if ready else super().select(readers, writers, errors, timeout)


def describe_servers(hosts: str, tls: ssl.SSLContext | None) -> str:
    """Connects to each address and describes the result. The test connections are necessary because kazoo does not
    distinguish a closed port from a port on which another service listens."""
    return "; ".join(_describe_server(address, tls) for address in hosts.split(","))


def _may_accept(address: str) -> bool:
    host, port = _host_and_port(address)
    try:
        socket.create_connection((host, int(port)), _PROBE_TIMEOUT_S).close()
    except (ConnectionRefusedError, socket.gaierror):
        return False
    except (OSError, ValueError):
        return True
    return True


def _host_and_port(address: str) -> tuple[str, str]:
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = address, _DEFAULT_PORT
    return host.strip("[]"), port


def admin_command(address: str, tls: ssl.SSLContext | None, command: str) -> str:
    """Sends an administrative command of four letters to a server, and returns the answer, which is empty if the server
    does not allow the command. Raises `OSError`."""
    host, port = _host_and_port(address)
    parts = []
    with socket.create_connection((host, int(port)), _TLS_PROBE_TIMEOUT_S) as plain:
        connection = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        with connection:
            connection.sendall(command.encode())
            while part := connection.recv(65_536):
                parts.append(part)
    answer = b"".join(parts).decode(errors="replace")
    return "" if f"{command} is not executed" in answer else answer


def _describe_server(address: str, tls: ssl.SSLContext | None) -> str:
    host, port = _host_and_port(address)
    try:
        with socket.create_connection((host, int(port)), _PROBE_TIMEOUT_S) as connection:
            if tls is None:
                return (
                    f"{address} accepts connections, but is not a ZooKeeper server that serves requests; "
                    "a port for TLS needs zookeeper.ssl.client.enable=true"
                )
            connection.settimeout(_TLS_PROBE_TIMEOUT_S)
            # With TLS 1.3 the server rejects a client's certificate only after the handshake.
            with tls.wrap_socket(connection, server_hostname=host) as encrypted:
                encrypted.settimeout(_PROBE_TIMEOUT_S)
                encrypted.recv(1)
            return f"{address} accepts TLS connections, but is not a ZooKeeper server that serves requests"
    except ssl.SSLCertVerificationError as error:
        from offsetmgr.config.tls_context import verification_failure

        return f"{address}: {'; '.join(verification_failure(error, host, int(port)))}"
    except ssl.SSLError as error:
        return f"{address}: no TLS connection ({error.reason})"
    except TimeoutError:
        return f"{address} does not respond"
    except (OSError, ValueError) as error:
        return f"{address}: {getattr(error, 'strerror', None) or error}"


_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(?::([0-9]{1,5}))?")
_MAX_SESSION_TIMEOUT_S: Final = 10.0
_MAX_CLOSE_S: Final = 3.0
_MAX_REPLACEMENT_S: Final = 1.0
_POLL_S: Final = 0.005
_FIRST_ATTEMPTS_S: Final = 1.0
"""The time after which a session that has never been connected tests whether its addresses are usable."""
_SASL: Final = "sasl"
_KERBEROS: Final = "kerberos"
"""The schemes of credentials that kazoo uses while it connects. Credentials of all other schemes are sent after the
session is open."""

# If no handler were configured, Python would print kazoo's warnings to stderr. With the NullHandler, only the handlers
# of the application output kazoo's log. The level is never DEBUG, because kazoo would then log every request, including
# the credentials.
_LOG: Final = logging.getLogger("offsetmgr.zookeeper.kazoo")
_LOG.addHandler(logging.NullHandler())
_LOG.setLevel(logging.INFO)


def parse_connect(connect: str) -> tuple[str, str]:
    """Splits ``h1:2181,h2:2181/chroot`` into hosts and chroot (empty, or with a leading slash). Raises `InvalidUri`."""
    hosts, chroot = split_connect(connect)
    for host in hosts.split(","):
        match = _HOST.fullmatch(host)
        if match is None or (match[1] is not None and not 0 < int(match[1]) < 65536):
            # The error does not quote the text, which may contain a password in front of an '@'.
            raise InvalidUri(
                "ZooKeeper connect string", "a part of it is not HOST:PORT", "for example: h1:2181,h2:2181/chroot"
            )
    if any(part in ("", ".", "..") for part in chroot.split("/")[1:]):
        raise InvalidUri(
            f"ZooKeeper chroot {chroot!r}", "has an empty or relative part", "write for example h1:2181/kafka"
        )
    return hosts, chroot


class _Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """A kazoo client that also signals when it has ended, so that callers stop waiting for a connection.

    With ``one_session`` the client ends when its first session expires. Without ``one_session``, kazoo opens another
    session after an expired session, and sends the queued requests in the new session.
    """

    def __init__(self, one_session: bool, tls: ssl.SSLContext | None, **settings: Any) -> None:
        self.connected_or_ended = threading.Event()
        """Set while the client is connected, and after the client has ended."""
        self.authentication_failed = False
        self.finished = False
        self.expired = False
        """Whether the client's only session has expired."""
        self.connections = 0
        """The number of connections that servers have accepted so far."""
        self.granted_timeout_s: float | None = None
        """The session timeout that the server granted, which may differ from the requested timeout; None without
        ``one_session``."""
        self._one_session = one_session
        super().__init__(**settings, use_ssl=tls is not None, handler=None if tls is None else TlsHandler(tls))
        self._connection._authenticate_with_sasl = _report_sasl_failure(self._connection._authenticate_with_sasl)
        if one_session:
            self._connection._connect = self._store_granted_timeout(self._connection._connect)

    def _store_granted_timeout(self, connect: Callable[..., tuple[float, float]]) -> Callable[..., tuple[float, float]]:
        def connect_and_store(*arguments: Any) -> tuple[float, float]:
            read_timeout_ms, connect_timeout_ms = connect(*arguments)
            self.granted_timeout_s = read_timeout_ms * 1.5 / 1000  # kazoo's read timeout is 2/3 of the session timeout
            return read_timeout_ms, connect_timeout_ms

        return connect_and_store

    def _session_callback(self, state: str) -> None:
        if state == KeeperState.EXPIRED_SESSION and self._one_session:
            # These flags are set before kazoo completes the open requests with an error, so that callers see that the
            # client has ended and send no more requests. kazoo's connection loop checks _stopped before it reconnects.
            self.expired = True
            self._stopped.set()
        super()._session_callback(state)
        if state == KeeperState.CONNECTED:
            self.connections += 1
        if state == KeeperState.AUTH_FAILED:
            # kazoo ends its connection thread after this callback, but kazoo's `start` would continue to wait.
            self.authentication_failed = True
        if state == KeeperState.CLOSED:
            self.finished = True
        if self.connected or self.authentication_failed or self.finished or self.expired:
            self.connected_or_ended.set()
        else:
            self.connected_or_ended.clear()


def _report_sasl_failure(authenticate: Callable[..., None]) -> Callable[..., None]:
    """Wraps kazoo's SASL authentication, and translates a server's rejection to `AuthFailedError`.

    A server that requires SASL returns SessionClosedRequireSasl for a wrong password. kazoo does not handle this error
    during authentication, so its connection thread would end.
    """

    def authenticate_or_fail(*arguments: Any) -> None:
        try:
            authenticate(*arguments)
        except SessionClosedRequireSaslError as rejected:
            raise AuthFailedError("SASL") from rejected
        except Exception as error:
            if type(error).__module__ != _KERBEROS:  # kazoo does not handle the errors of this package
                raise
            raise AuthFailedError("Kerberos") from error

    return authenticate_or_fail


class Completion:
    """Receives the result of a request, and puts the result and the request's tag into the queue of the waiting thread.

    It replaces kazoo's AsyncResult, which needs one condition variable for each request. One queue for all requests of
    a call takes less time than one condition variable for each request. The caller can also wait for the next response
    to any of the requests.
    """

    __slots__ = ("_inbox", "_tag")

    def __init__(self, inbox: SimpleQueue[tuple[int, Any, Exception | None]], tag: int) -> None:
        self._inbox = inbox
        self._tag = tag

    def set(self, value: Any = None) -> None:
        self._inbox.put((self._tag, value, None))

    def set_exception(self, exception: Exception) -> None:
        self._inbox.put((self._tag, None, exception))


class KazooConnection:
    """A ZooKeeper session that connects when it is first used, and reconnects automatically. Thread-safe.

    By default, the connection opens another session when its session expires. With ``session_timeout_ms``, the
    connection has only one session: after this session has expired, every call raises `SessionExpired`, and no other
    session is opened.
    """

    def __init__(self, hosts: str, config: ConnectionConfig, session_timeout_ms: int | None = None) -> None:
        self._hosts = hosts
        self._session_timeout_s = None if session_timeout_ms is None else session_timeout_ms / 1000
        self._auth = tuple(pair for pair in config.zookeeper_auth if pair[0] not in (_SASL, _KERBEROS))
        self._sasl = _sasl_options(dict(config.zookeeper_auth))
        self._tls = None
        if config.zookeeper_tls is not None:
            from offsetmgr.config.tls_context import tls_context

            self._tls = tls_context(config.zookeeper_tls)
        self.acl = parse_acl(config.zookeeper_acl, bool(config.zookeeper_auth))
        """The configured ACL of created nodes; None if created nodes are open to every client."""
        self.identity = _identity(config.zookeeper_auth)
        """The identity as which the client authenticates, formatted for messages."""
        self.timeout_s = config.timeout_ms / 1000
        self._lock = threading.Lock()
        self._client: _Client | None = None
        self._opened = False
        self._closed = False

    @property
    def session_id(self) -> int | None:
        """The id that the server assigned to the current session; None while disconnected."""
        client = self._client
        identity = client.client_id if client is not None else None
        return None if identity is None else int(identity[0])

    @property
    def granted_timeout_s(self) -> float | None:
        """The session timeout in seconds that the server granted; None before the first connection, and always None
        without ``session_timeout_ms``."""
        client = self._client
        return None if client is None else client.granted_timeout_s

    def ready(self, deadline: float) -> None:
        """Connects if necessary, and waits for the connection until ``deadline`` (a value of ``time.monotonic``).

        The first call ends earlier if every address refuses connections or does not resolve. Raises `Unreachable`,
        `AuthenticationFailed`, `SessionExpired`.
        """
        client = self._open()
        hopeless = (
            self._session_timeout_s is None
            and not client.connections
            and not client.connected_or_ended.wait(min(_FIRST_ATTEMPTS_S, max(0.0, deadline - time.monotonic())))
            and not any(map(_may_accept, self._hosts.split(",")))
        )
        left_s = 0.0 if hopeless else deadline - time.monotonic()
        if not client.connected_or_ended.wait(max(0.0, left_s)):
            raise self.unreachable_error(describe_servers(self._hosts, self._tls), waited=not hopeless)
        if client.expired:
            raise self.session_expired_error()
        if client.authentication_failed:
            self._drop(client)
            raise self.authentication_error()
        if client.finished:
            self._drop(client)
            raise self.unreachable_error(describe_servers(self._hosts, self._tls))

    def await_replacement(self) -> None:
        """Waits until a new connection has replaced the present connection, which the server is about to close.

        Returns after one second at the latest, even if there is no new connection.
        """
        client = self._open()
        connections = client.connections
        limit = time.monotonic() + _MAX_REPLACEMENT_S
        while client.connections == connections and time.monotonic() < limit:
            time.sleep(_POLL_S)

    def send(self, request: Any, completion: Completion) -> None:
        """Queues a request. ``completion`` receives the result or error of the request. In rare races, kazoo reports
        the same result or error more than once."""
        # Every request method of KazooClient calls _call. Unlike these methods, _call accepts requests of every kind.
        # It sends requests in the order of the calls.
        self._open()._call(request, completion)

    def session_expired_error(self) -> SessionExpired:
        """The error for a call after the session has expired."""
        return SessionExpired(
            f"ZooKeeper at {self._hosts}", "the session has expired, and the server has deleted its ephemeral nodes"
        )

    def connection_lost_error(self) -> OffsetMgrError:
        """The error for a request that got no response because the connection was lost."""
        client = self._client
        return self.session_expired_error() if client is not None and client.expired else self.unreachable_error()

    def no_response_error(self) -> OffsetMgrError:
        """The error for a request that got no response within the timeout."""
        client = self._client
        if client is None or client.expired or not client.connected:
            return self.connection_lost_error()
        return TimedOut(f"ZooKeeper at {self._hosts}", f"no answer within {self.timeout_s * 1000:.0f} ms")

    def unreachable_error(self, found: str = "", *, waited: bool = True) -> Unreachable:
        """The error if no server can be reached; ``found`` describes a connection attempt to each address. ``waited``:
        whether the timeout has passed."""
        why = "no server could be reached" + (f" within {self.timeout_s * 1000:.0f} ms" if waited else "")
        return Unreachable(
            f"ZooKeeper at {self._hosts}",
            f"{why} ({found})" if found else why,
            "check the address, and whether the server runs and serves requests",
        )

    def authentication_error(self) -> AuthenticationFailed:
        """The error if the server rejects the credentials of this client, or rejects clients without credentials."""
        if self._auth or self._sasl:
            return AuthenticationFailed(
                f"ZooKeeper at {self._hosts}",
                f"the server refused the credentials of {self.identity}",
                "check the ticket (klist) and the server's service name"
                if self._sasl and "service" in self._sasl
                else "check USER and PASSWORD in zookeeper.auth and in the server's configuration",
            )
        return AuthenticationFailed(
            f"ZooKeeper at {self._hosts}",
            "the server rejects sessions without credentials",
            Advice("set zookeeper.auth=sasl:USER:PASSWORD in the {command_config} file"),
        )

    def close(self) -> None:
        """Ends the session. Returns within a few seconds even if the server does not respond."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            self._stop(client).join(min(self.timeout_s, _MAX_CLOSE_S))

    def _open(self) -> _Client:
        with self._lock:
            if self._closed:
                raise Unreachable(f"ZooKeeper at {self._hosts}", "the session has been closed")
            if self._client is None:
                if self._session_timeout_s is not None and self._opened:
                    raise self.session_expired_error()
                self._opened = True
                client = _Client(
                    self._session_timeout_s is not None,
                    self._tls,
                    hosts=self._hosts,
                    # kazoo also limits the time of each connection attempt to this session timeout.
                    timeout=self._session_timeout_s or min(self.timeout_s, _MAX_SESSION_TIMEOUT_S),
                    auth_data=list(self._auth),
                    sasl_options=None if self._sasl is None else dict(self._sasl),
                    connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_jitter=0.2, max_delay=1.0),
                    logger=_LOG,
                )
                client.start_async()
                self._client = client
            return self._client

    def _drop(self, client: _Client) -> None:
        with self._lock:
            if self._client is client:
                self._client = None
        self._stop(client)

    @staticmethod
    def _stop(client: _Client) -> threading.Thread:
        def stop() -> None:
            try:
                client.stop()
                client.close()
            except Exception as error:  # kazoo raises bare Exceptions here; the client is discarded in any case
                _LOG.info("the ZooKeeper client did not stop cleanly: %s", error)

        # kazoo's `stop` runs in a separate thread, because it can take ten seconds or longer while kazoo's connection
        # thread is connecting.
        thread = threading.Thread(target=stop, name="offsetmgr-zookeeper-close", daemon=True)
        thread.start()
        return thread


def _sasl_options(auth: dict[str, str]) -> dict[str, str] | None:
    """kazoo's options for SASL with DIGEST-MD5, or with Kerberos and the ticket cache; None without SASL."""
    scheme = next((scheme for scheme in (_KERBEROS, _SASL) if scheme in auth), None)
    if scheme is None:
        return None
    packages = {_SASL: ("puresasl",), _KERBEROS: ("puresasl", "kerberos")}[scheme]
    if any(importlib.util.find_spec(package) is None for package in packages):
        extra = "sasl" if scheme == _SASL else "kerberos"
        why = f"a package is missing: {', '.join(packages)}"
        raise ConfigError(f"zookeeper.auth={scheme}", why, install_hint(extra))
    if scheme == _KERBEROS:
        return {"mechanism": "GSSAPI", "service": auth[_KERBEROS]}
    user, _, password = auth[_SASL].partition(":")
    return {"mechanism": "DIGEST-MD5", "username": user, "password": password}


def _identity(auth: tuple[tuple[str, str], ...]) -> str:
    """The scheme and user of each credential, without the password: ``digest:USER``."""
    if not auth:
        return "a session without credentials"
    return ", ".join(f"{scheme}:{secret.partition(':')[0]}" if ":" in secret else scheme for scheme, secret in auth)
