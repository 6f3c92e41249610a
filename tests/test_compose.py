"""The compose file starts one PostgreSQL with pgvector that is reachable from this machine alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cayu_pg.sql.engine import PATCHED_EXTENSION

COMPOSE = Path(__file__).parent.parent / "docker-compose.yml"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    parsed = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    assert isinstance(parsed, dict)
    return parsed


@pytest.fixture(scope="module")
def postgres(compose: dict[str, Any]) -> dict[str, Any]:
    service: dict[str, Any] = compose["services"]["postgres"]
    return service


def test_there_is_one_service(compose: dict[str, Any]) -> None:
    assert list(compose["services"]) == ["postgres"]


def test_image_is_an_exact_and_patched_pgvector(postgres: dict[str, Any]) -> None:
    found = re.fullmatch(r"pgvector/pgvector:(\d+)\.(\d+)\.(\d+)-pg18", postgres["image"])
    assert found is not None
    assert tuple(map(int, found.groups())) >= PATCHED_EXTENSION


def test_only_this_machine_reaches_it(postgres: dict[str, Any]) -> None:
    [published] = postgres["ports"]
    assert published.startswith("127.0.0.1:")
    assert published.endswith(":5432")


def test_password_comes_from_the_environment_with_a_default(postgres: dict[str, Any]) -> None:
    assert re.fullmatch(r"\$\{CAYU_PG_PASSWORD:-\w+\}", postgres["environment"]["POSTGRES_PASSWORD"])


def test_data_outlives_the_container_where_postgres_18_keeps_it(
    compose: dict[str, Any], postgres: dict[str, Any]
) -> None:
    [mounted] = postgres["volumes"]
    volume, _, path = mounted.partition(":")
    assert volume in compose["volumes"]
    assert path == "/var/lib/postgresql"


def test_health_is_asked_of_the_server_over_tcp(postgres: dict[str, Any]) -> None:
    # While the image sets itself up, a first server answers on its socket only.
    kind, command = postgres["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    assert command.startswith("pg_isready ")
    assert "--host 127.0.0.1" in command


def test_parallel_index_builds_have_shared_memory(postgres: dict[str, Any]) -> None:
    assert postgres["shm_size"] == "1gb"
