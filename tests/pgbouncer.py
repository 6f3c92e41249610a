"""A real PgBouncer in transaction mode, where the system has the program."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import sqlalchemy as sa

from tests.servers import server_user

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
SERVERS = 2  # sessions that all clients share
# In CI, root can install it, and so .ci/run does; there a missing program is a fault.
MUST_RUN = os.environ.get("CI") == "true" and os.getuid() == 0 and shutil.which("apt-get") is not None


@contextmanager
def pgbouncer(url: str, folder: Path) -> Iterator[str]:
    """The URL that leads to the database of `url` through a pooler that listens in `folder`."""
    assert PROGRAM is not None
    parsed = sa.make_url(url)
    target = {
        "host": parsed.query.get("host") or parsed.host,
        "port": parsed.query.get("port") or parsed.port or 5432,
        "user": parsed.username,
        "password": parsed.password,
    }
    settings = {
        "unix_socket_dir": folder,
        "listen_port": 6432,
        "auth_type": "any",
        "pool_mode": "transaction",
        "default_pool_size": SERVERS,
        "max_client_conn": 100,
        "pidfile": folder / "pgbouncer.pid",
        "logfile": folder / "pgbouncer.log",
    }
    if _version() >= (1, 21):
        settings["max_prepared_statements"] = 0
    server = " ".join(f"{name}={value}" for name, value in target.items() if value)
    file = folder / "pgbouncer.ini"
    lines = ["[databases]", f"* = {server}", "[pgbouncer]", *(f"{k} = {v}" for k, v in settings.items())]
    file.write_text("\n".join(lines))
    user = server_user()  # it refuses to run as root
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    process = subprocess.Popen(
        [PROGRAM, "-q", file],
        user=None if user is None else user.pw_uid,
        group=None if user is None else user.pw_gid,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    query = {"host": str(folder), "port": "6432"}
    through = parsed.set(host=None, port=None, password=None, query=query)
    pooled = through.render_as_string(hide_password=False)
    try:
        _await(pooled, process, folder / "pgbouncer.log")
        yield pooled
    finally:
        process.terminate()
        process.wait(10)


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            return psycopg.connect(url).close()
        except psycopg.OperationalError as error:
            said = log.read_text() if log.exists() else "no log"
            assert process.poll() is None and time.monotonic() < deadline, f"{error}: {said}"
            time.sleep(0.05)


def _version() -> tuple[int, ...]:
    said = subprocess.run([str(PROGRAM), "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in said.split()[1].split(".")[:2])
