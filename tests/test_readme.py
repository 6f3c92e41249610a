"""What the README shows works: its Python runs, its SQL answers, its commands are understood."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

import cayu_pg
from cayu_pg.cli.parser import build_parser
from cayu_pg.embedding import DEFAULT_MODEL, HashEmbedder
from cayu_pg.store import Store

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


class ByLength:
    """A reranker for a machine without weights."""

    model = "by-length"

    def score(self, query: str, documents: Sequence[str]) -> list[float]:
        return [float(len(text)) for text in documents]


@pytest.fixture
def names(engine: sa.Engine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the examples take for granted: a server, models, and an application's table."""

    def embedded(*_: object, **__: object) -> Store:
        return Store(engine, embedder=_named(DEFAULT_MODEL, 16), reranker=ByLength())

    monkeypatch.setattr(Store, "embedded", embedded)
    monkeypatch.setattr(cayu_pg, "SentenceTransformerEmbedder", lambda model: _named(model, 24))
    articles = sa.Table("articles", sa.MetaData(), sa.Column("slug", sa.Text))
    articles.create(engine)
    store = embedded()
    docs = store.collection("docs")
    docs.ingest("Something to search.")
    store.collection("tickets")
    return {
        "url": database_url,
        "engine": engine,
        "articles": articles,
        "insert": lambda table: SimpleNamespace(values=lambda _: sa.insert(table).values(slug="first")),
        "slug": "first",
        "body": "An article.",
        "print": lambda *_: None,
        "store": store,
        "docs": docs,
        "handbook": store.collection("handbook"),
    }


def _named(model: str, dimensions: int) -> HashEmbedder:
    embedder = HashEmbedder(dimensions)
    embedder.model = model
    return embedder


def test_examples_in_python_run_one_after_the_other(names: dict[str, Any]) -> None:
    assert len(blocks("python")) >= 4
    for number, source in enumerate(blocks("python")):
        exec(compile(source, f"README, Python block {number + 1}", "exec"), names)


def test_queries_answer(engine: sa.Engine) -> None:
    queries = [each for block in blocks("sql") for each in block.split(";") if each.strip()]
    assert queries
    with engine.connect() as connection:
        for query in queries:
            connection.execute(sa.text(query))


def commands() -> list[str]:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    shown = [line.removeprefix("$ ") for line in lines] + re.findall(r"`(cayu-pg [^`]+)`", README)
    return [line for line in shown if line.startswith("cayu-pg ") and "..." not in line]


@pytest.mark.parametrize("command", commands())
def test_command_is_understood(command: str) -> None:
    assert callable(build_parser().parse_args(shlex.split(command, comments=True)[1:]).run)
