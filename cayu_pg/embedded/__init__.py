"""A private PostgreSQL with pgvector: started for the first who asks, stopped after the last one left.

What is here counts the users, over processes. Beside the data directory `NAME` lies `NAME.state`: `starting` is locked
while somebody starts or stops the server, `users` is locked (shared) by each process that uses it, `kept` names the
run that shall go on without users. The system frees the locks of a process that dies.
"""

from __future__ import annotations

import atexit
import importlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cayu_pg.embedded.postmaster import (
    Server,
    explained,
    find_server,
    library,
    run_server,
    state_path,
    stop_server,
)
from cayu_pg.errors import Conflict


class EmbeddedServer:
    """One use of the private server, which stops when nobody uses it any more, in this process or another.

    `url` is the SQLAlchemy URL of its database, `path` its data directory. The use ends with `close()`, as a context
    manager, or with the process.
    """

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        self.url = url
        self._process = os.getpid()
        self._open = True

    @classmethod
    def start(cls, path: Path | None = None, *, keep: bool = False) -> Self:
        """Use the server of the data directory `path`, made or started when need be.

        `path` is by default in the user's data directory. With `keep` the server stays when all have left, until
        `stop(path)`. Run by root, the server belongs to the system user `embedded_postgres`, and every folder above
        `path` and above the binaries is made readable for it.
        """
        path = data_path(path)
        with _guard, explained(path):
            return cls(path, _enter(path, keep))

    def close(self) -> None:
        """End this use; a second call, or one in a forked child, does nothing."""
        with _guard, explained(self.path):
            if self._open and os.getpid() == self._process:
                self._open = False
                _leave(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class ServerStatus:
    """Whether a server runs on a data directory; `kept` when it stays without users."""

    path: str
    running: bool
    pid: int | None = None
    url: str | None = None
    kept: bool = False


def status(path: Path | None = None) -> ServerStatus:
    """What runs on the data directory, without starting or changing anything."""
    path = data_path(path)
    with explained(path):
        server = find_server(path)
        if server is None:
            return ServerStatus(str(path), running=False)
        return ServerStatus(str(path), True, server.pid, server.url, _is_kept(path, server))


def stop(path: Path | None = None) -> bool:
    """Stop the server and say whether one ran.

    Raises Conflict while it is in use; it then stops when its last user leaves, even if it was started with `keep`.
    """
    path = data_path(path)
    state = state_path(path)
    with _guard, explained(path):
        if not state.is_dir() or not path.is_dir():
            return False
        with _starting(path):
            (state / "kept").unlink(missing_ok=True)
            # A second handle on `users` would, when closed, free the lock that this process already has.
            if (os.getpid(), path) not in _uses:
                with _alone(_users(path)) as alone:
                    if alone:
                        return stop_server(path)
    raise Conflict(f"the embedded server at {path} is in use; it stops when its last user leaves")


def data_path(path: Path | None = None) -> Path:
    """The absolute data directory: `path`, or `cayu_pg/postgres` in the user's data directory."""
    embedded = library()
    if path is None:
        path = embedded.PostgresServer.platformdirs.user_data_path("cayu_pg", appauthor=False) / "postgres"
    return path.expanduser().resolve()


@dataclass
class _Use:
    lock: Any
    count: int = 1


# By process too: a forked child inherits the dictionary, but neither the locks nor the duty to stop anything.
_uses: dict[tuple[int, Path], _Use] = {}
_guard = threading.Lock()


def _enter(path: Path, keep: bool) -> str:
    use = _uses.get((os.getpid(), path))
    path.mkdir(parents=True, exist_ok=True)
    state_path(path).mkdir(exist_ok=True)
    with _starting(path):
        lock = _users(path) if use is None else use.lock
        if use is None:
            lock.acquire_read_lock()
        try:
            server = run_server(path)
            if keep:
                (state_path(path) / "kept").write_text(server.run)
        except BaseException:
            if use is None:
                lock.release_read_lock()
            raise
    if use is None:
        _uses[os.getpid(), path] = _Use(lock)
    else:
        use.count += 1
    return server.url


def _leave(path: Path) -> None:
    use = _uses.get((os.getpid(), path))
    if use is None:  # everybody was made to leave because the process ends
        return
    use.count -= 1
    if use.count:
        return
    del _uses[os.getpid(), path]
    if not path.is_dir():  # deleted under the server, which ends by itself when it notices
        use.lock.release_read_lock()
        return
    with _starting(path):
        use.lock.release_read_lock()
        with _alone(use.lock) as alone:
            server = find_server(path) if alone else None
            if server is not None and not _is_kept(path, server):
                stop_server(path)


@atexit.register
def _leave_all() -> None:
    for process, path in list(_uses):
        if process == os.getpid():
            _uses[process, path].count = 1
            with explained(path):
                _leave(path)


def _starting(path: Path) -> Any:
    return importlib.import_module("fasteners").InterProcessLock(state_path(path) / "starting")


def _users(path: Path) -> Any:
    return importlib.import_module("fasteners").InterProcessReaderWriterLock(state_path(path) / "users")


@contextmanager
def _alone(lock: Any) -> Iterator[bool]:
    """Whether no process uses the server; then none begins to before the end of the block."""
    try:
        yield lock.acquire_write_lock(blocking=False)
    finally:
        lock.release_write_lock()  # this also closes the file when the lock was not to be had


def _is_kept(path: Path, server: Server) -> bool:
    marker = state_path(path) / "kept"
    return marker.is_file() and marker.read_text() == server.run
