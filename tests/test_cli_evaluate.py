"""`cayu-pg evaluate` on a small test collection, as a person and as a program uses it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from cayu_pg.cli import main
from cayu_pg.cli.evaluation_svg import comparison_svg
from cayu_pg.evaluating import EvaluationReport, Measured
from cayu_pg.evaluation import Difference, evaluate, latency

ANIMALS = ["cat", "dog", "owl", "fox", "bee", "ant", "hen", "elk", "eel", "yak"]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Each animal in two houses: a query about one is answered in its own house."""
    corpus = [
        {"_id": f"{animal}-{house}", "title": animal, "text": f"The {animal}.", "metadata": {"house": house}}
        for animal in ANIMALS
        for house in ("red", "blue")
    ]
    corpus.append({"_id": "blank", "title": "", "text": " "})
    queries = [
        {"_id": animal, "text": f"where is the {animal}?", "metadata": {"house": "red"}} for animal in ANIMALS
    ]
    made = tmp_path / "animals"
    (made / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (made / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    test = "".join(f"{animal}\t{animal}-red\t1\n" for animal in ANIMALS)
    (made / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{test}")
    (made / "qrels" / "dev.tsv").write_text("cat\tcat-blue\t1\n")
    return made


def run(url: str, folder: Path, *options: str) -> int:
    return main(["evaluate", str(folder), "--url", url, "--model", "hash-64", *options])


def test_people_get_a_table_and_a_line_about_what_was_refused(
    database_url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(database_url, folder) == 0
    printed = capsys.readouterr()
    assert "animals: 10 queries" in printed.out
    assert "nDCG@10" in printed.out
    assert [line.split()[0] for line in printed.out.splitlines()[2:]] == ["vector", "text", "equal"]
    assert "blank" in printed.err


def test_programs_get_the_measures_of_each_query(
    database_url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(database_url, folder, "--json", "-k", "1", "--recall-k", "2") == 0
    text = json.loads(capsys.readouterr().out)["measured"]["text"]
    # Both houses tell the same, and blue comes first.
    assert (text["evaluation"]["ndcg"], text["evaluation"]["recall"]) == (0, 1)
    assert text["evaluation"]["queries"]["cat"]["reciprocal_rank"] == 0.5
    assert text["latency"]["p50"] > 0


def test_a_scope_narrows_each_query_to_its_own_documents(
    database_url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(database_url, folder, "--json", "--scope-key", "metadata.house") == 0
    assert json.loads(capsys.readouterr().out)["measured"]["text"]["evaluation"]["mrr"] == 1
    assert run(database_url, folder, "--scope-key", "street") == 1
    assert "expected street in the metadata of every query" in capsys.readouterr().err


def test_a_split_names_its_judgements(
    database_url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(database_url, folder, "--json", "--split", "dev") == 0
    assert list(json.loads(capsys.readouterr().out)["measured"]["text"]["evaluation"]["queries"]) == ["cat"]
    assert run(database_url, folder, "--split", "train") == 1
    assert "qrels/train.tsv" in capsys.readouterr().err


def test_tuning_is_measured_on_the_other_half_and_kept_for_later(
    database_url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(database_url, folder, "--json", "--tune", "best") == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts["measured"]["best"]["evaluation"]["queries"]) == ANIMALS[1::2]
    assert facts["tuned"]["training"]["queries"] == 5
    assert run(database_url, folder, "--fusion", "best") == 0
    printed = capsys.readouterr().out
    assert "best - equal: nDCG@10 " in printed
    assert run(database_url, folder, "--tune", "best") == 0
    assert "tuned on 5 other queries: no gain, equal weights stay" in capsys.readouterr().out


def test_an_unknown_fusion_or_folder_fails_in_one_line(
    database_url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(database_url, folder, "--fusion", "nobody") == 1
    assert "no fusion configuration named 'nobody'" in capsys.readouterr().err
    assert run(database_url, folder / "nowhere") == 1
    assert "cayu-pg: folder: expected one with" in capsys.readouterr().err


def test_a_picture_is_written(database_url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = folder / "animals.svg"
    assert run(database_url, folder, "--svg", str(picture)) == 0
    assert ET.parse(picture).getroot().tag == f"{SVG}svg"
    assert run(database_url, folder, "--svg", str(folder / "no" / "where.svg")) == 1
    assert "--svg: expected a file that can be written" in capsys.readouterr().err


def report(**rankings: list[list[str]]) -> EvaluationReport:
    """Each configuration answers queries whose only relevant document is `x`."""
    measured = {}
    for name, ranked in rankings.items():
        judged = {str(place): {"x": 1} for place in range(len(ranked))}
        evaluation = evaluate({str(place): each for place, each in enumerate(ranked)}, judged)
        measured[name] = Measured(evaluation=evaluation, latency=latency([1.0]), fingerprint="f")
    none = Difference(mean=0, low=0, high=0, confidence=0.95)
    return EvaluationReport(
        collection="a < b & c", embedding=latency([1.0]), measured=measured, differences={"<best>": none}
    )


def test_the_picture_has_a_dot_for_each_mean_in_the_order_of_the_scale() -> None:
    root = ET.fromstring(
        comparison_svg(report(text=[["x"], ["x"]], equal=[["x"], []], **{"<best>": [[], []]}))
    )
    across = [float(dot.attrib["cx"]) for dot in root.iter(f"{SVG}circle")]
    assert len(across) == 4 * 3
    text, equal, best = across[:3]
    assert best < equal < text
    assert equal == pytest.approx((best + text) / 2)
    words = [each.text for each in root.iter(f"{SVG}text")]
    assert "a < b & c: 2 queries, means with 95 % intervals" in words
    assert words.count("<best>") == 4
    assert {"nDCG@10", "recall@100", "MRR", "MAP", "0.5000"} <= set(words)


def test_intervals_reach_around_the_mean() -> None:
    root = ET.fromstring(comparison_svg(report(equal=[["x"], ["y", "x"], [], ["x"]])))
    intervals = [line for line in root.iter(f"{SVG}line") if line.attrib.get("stroke-width") == "2"]
    for interval, dot in zip(intervals, root.iter(f"{SVG}circle"), strict=True):
        assert float(interval.attrib["x1"]) < float(dot.attrib["cx"]) < float(interval.attrib["x2"])
