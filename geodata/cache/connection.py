"""A connection to a Redis or Valkey whose every answer has a bound, in one process.

The only file that knows the client library. Its retries are off: an answer comes, or `Unanswered`
says why there is none. A connection belongs to the process that opened it.
"""

from __future__ import annotations

import contextlib
import math
import os
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from geodata.errors import ConfigError, MissingExtra


class Unanswered(Exception):
    """There is no server, no answer in time, or none that can be understood."""


class Refused(Unanswered):
    """The server lives and answered with an error."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, by `path` or by host and port, and how to sign on."""

    name: str
    path: str = ""
    host: str = ""
    port: int = 6379
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: dict[str, str] | None = None
    """Files by `ssl` option; None is a connection in the clear."""


class Server(Protocol):
    """Something with an address, which may be another one after a failure."""

    def address(self) -> Address:
        """Return where the server listens now; Unanswered if there is none."""


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A server that others run. `tls` holds its files: `ca_certs`, `certfile`, `keyfile`."""

    url: str
    username: str | None = None
    password_file: Path | None = None
    tls: dict[str, Path] = field(default_factory=dict)

    def address(self) -> Address:
        """Return the address, with the password that its file holds now.

        ConfigError names what the user has to mend: the URL, or a file that cannot be read.
        """
        parts = urlsplit(self.url)
        secure = parts.scheme == "rediss"
        if self.tls and not secure:
            raise ConfigError(
                "cache.redis has files for TLS, but its url is not encrypted",
                hint="Write the url as rediss://",
            )
        if secure:
            _check_tls(self.tls)
        return Address(
            name=self.url,
            **_place(self.url),
            username=self.username,
            password=_secret(self.password_file) if self.password_file else None,
            tls={f"ssl_{name}": str(path) for name, path in self.tls.items()} if secure else None,
        )


def _place(url: str) -> dict[str, Any]:
    """Return path, or host and port, and the database of a URL."""
    parts = urlsplit(url)
    try:
        if parts.query or parts.fragment:
            raise ValueError("options")
        if parts.scheme == "unix":
            if parts.netloc:
                raise ValueError("a relative path")
            return {"path": parts.path}
        place = {"host": parts.hostname or "localhost", "port": parts.port or 6379}
        return {**place, "db": int(parts.path.strip("/") or 0)}
    except ValueError:
        raise ConfigError(
            "cache.redis.url is not understood",
            hint="Write it like redis://HOST:PORT/DB or unix:///PATH, with no options",
        ) from None


def _secret(path: Path) -> str:
    try:
        secret = path.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable("password_file", path, error) from error
    if not secret:
        raise ConfigError("cache.redis: password_file is empty", file=str(path))
    return secret


def _check_tls(files: dict[str, Path]) -> None:
    """Raise ConfigError if a certificate or key cannot be read."""
    context = ssl.create_default_context()
    authority, own, key = (files.get(name) for name in ("ca_certs", "certfile", "keyfile"))
    if authority is not None:
        try:
            context.load_verify_locations(authority)
        except OSError as error:
            raise _unreadable("ca_file", authority, error) from error
    if key is not None and own is None:
        raise ConfigError("cache.redis has a key_file without a cert_file")
    if own is not None:
        try:
            context.load_cert_chain(own, key)
        except OSError as error:
            raise _unreadable("cert_file or key_file", own, error) from error


def _unreadable(what: str, path: Path, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) else "not text"
    return ConfigError(f"cache.redis: {what} cannot be read: {reason}", file=str(path))


class Connection:
    """Sends commands to one server and waits `timeout` seconds for each sign of an answer."""

    def __init__(self, address: Address, timeout: float):
        self.pid = os.getpid()
        self._address = address
        self._limit = _Limit()
        self._client = _client(address, timeout, self._limit)

    def call(self, *command: Any) -> Any:
        """Return the answer to a command, strings as bytes; Refused or Unanswered if it failed."""
        from redis import ResponseError

        try:
            return self._client.execute_command(*command)
        except ResponseError as error:
            raise Refused(self._told(error)) from None
        except Exception as error:  # what is no Redis can make the client raise anything
            raise Unanswered(self._told(error)) from None

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Bound all that the body sends and receives, however steadily bytes trickle in."""
        self._limit.at = time.monotonic() + seconds
        try:
            yield
        finally:
            self._limit.at = math.inf

    def close(self) -> None:
        """Close the sockets; those of another process are left alone."""
        if self.pid == os.getpid():
            self._client.connection_pool.disconnect()

    def _told(self, error: Exception) -> str:
        """Return an error's first line, without the password that a server may quote."""
        text = (str(error).splitlines() or [""])[0] or type(error).__name__
        if self._address.password:
            text = text.replace(self._address.password, "[password]")
        return f"{self._address.name}: {text[:200]}"


def require_client() -> None:
    """Raise MissingExtra if the client library is not installed."""
    try:
        import redis  # noqa: F401
    except ImportError as error:
        raise MissingExtra.of("redis", "redis") from error


def _client(address: Address, timeout: float, limit: _Limit) -> Any:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    def signed_on(connection: Any) -> None:
        connection._sock = _PatientSocket(connection._sock, limit)
        connection.on_connect()

    options: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "db": address.db,
        "protocol": 2,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "redis_connect_func": signed_on,
    }
    kind: Any = redis.UnixDomainSocketConnection if address.path else redis.Connection
    options |= {"path": address.path} if address.path else {}
    options |= {} if address.path else {"host": address.host, "port": address.port}
    if address.tls is not None:
        kind = redis.SSLConnection
        options |= {**address.tls, "ssl_cert_reqs": "required", "ssl_check_hostname": True}
    return redis.Redis(connection_pool=redis.ConnectionPool(connection_class=kind, **options))


class _Limit(threading.local):
    """When a thread's present task must be over, by the monotonic clock."""

    at = math.inf


class _PatientSocket:
    """A socket that waits for each byte up to its timeout, and for all of them up to a limit."""

    def __init__(self, sock: Any, limit: _Limit):
        self._sock, self._limit = sock, limit
        self._timeout: float | None = sock.gettimeout()

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def recv(self, *arguments: Any) -> bytes:
        self._arm()
        return bytes(self._sock.recv(*arguments))

    def recv_into(self, *arguments: Any) -> int:
        self._arm()
        return int(self._sock.recv_into(*arguments))

    def sendall(self, data: Any) -> None:
        view = memoryview(data)
        while view:
            self._arm()
            view = view[self._sock.send(view) :]

    def _arm(self) -> None:
        left = self._limit.at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer takes too long")
        patience = math.inf if self._timeout is None else self._timeout
        least = min(left, patience)
        self._sock.settimeout(None if least == math.inf else least)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)
