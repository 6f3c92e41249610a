"""`cayu-pg transcript` prints conversations for people and programs, and imports them line by line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cayu_pg.cli.conversation import lines_of
from cayu_pg.cli.transcripts import add_arguments, run_transcript
from cayu_pg.errors import InvalidInput, InvalidStoredMessage, NotFound
from cayu_pg.messages import Message
from cayu_pg.store import Store
from cayu_pg.transcript import Transcript
from tests.talks import numbered, texts, user
from tests.test_messages import PEER

Run = Callable[..., int]
IDS = {"model_step_id": "mstep_" + "0" * 32, "model_attempt_id": "matt_" + "0" * 32}
ANSWER = Message.model_validate(
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "text": "a secret plan"},
            {"type": "text", "text": "Let me\nlook."},
            {
                "type": "tool_call",
                "tool_call_id": "c",
                "tool_name": "sensor",
                "arguments": {"where": "roof", "n": 2},
            },
        ],
    }
)


@pytest.fixture
def run(database_url: str) -> Run:
    def run(*arguments: object) -> int:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        parser.add_argument("--json", action="store_true")
        parser.set_defaults(url=database_url, schema="cayu", tenant="default")
        return run_transcript(parser.parse_args([str(each) for each in arguments]))

    return run


@pytest.fixture
def talk(engine: sa.Engine) -> Iterator[Transcript]:
    with Store(engine) as store:
        yield store.transcript("talk")


def written(path: Path, *records: Any) -> Path:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


# --- printing


def test_a_conversation_is_printed_readably(
    run: Run, talk: Transcript, capsys: pytest.CaptureFixture[str]
) -> None:
    talk.append([user("How warm is it?"), ANSWER])
    talk.append(Message.tool_result(tool_call_id="c", tool_name="sensor", content="19 degrees"))
    assert run("talk") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(" ")] == [
        "    How warm is it?",
        "    [thinking, 13 characters]",
        "    Let me",
        "    look.",
        '    -> sensor(n=2, where="roof")',
        "    <- sensor: 19 degrees",
    ]
    heads = [line.split()[:2] for line in lines if line.startswith("#")]
    assert heads == [["#0", "user"], ["#1", "assistant"], ["#2", "tool"]]


def test_thinking_is_unfolded_on_request(
    run: Run, talk: Transcript, capsys: pytest.CaptureFixture[str]
) -> None:
    talk.append(ANSWER)
    run("talk", "--thinking")
    assert "    [thinking] a secret plan\n" in capsys.readouterr().out


def test_only_the_newest_are_printed_on_request(
    run: Run, talk: Transcript, capsys: pytest.CaptureFixture[str]
) -> None:
    talk.append(numbered(5))
    run("talk", "--last", 2)
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith(" ")] == [
        "    message 3",
        "    message 4",
    ]


def test_json_is_one_line_a_message(run: Run, talk: Transcript, capsys: pytest.CaptureFixture[str]) -> None:
    talk.append([user("é\nzwei"), ANSWER], idempotency_key="k")
    run("talk", "--json")
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["position"], first["idempotency_key"]) == (0, "k")
    assert [Message.model_validate(each["message"]) for each in (first, second)] == [user("é\nzwei"), ANSWER]


def test_an_unknown_transcript_is_not_found(run: Run) -> None:
    with pytest.raises(NotFound, match="no transcript named 'nobody'"):
        run("nobody")


def test_an_invalid_row_is_passed_over_on_request(
    run: Run, talk: Transcript, engine: sa.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    talk.append(numbered(3))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE cayu.transcript_messages SET content = '[{}]' WHERE position = 1"))
    with pytest.raises(InvalidStoredMessage):
        run("talk")
    capsys.readouterr()
    assert run("talk", "--skip-invalid") == 0
    shown = capsys.readouterr()
    assert ("message 0" in shown.out, "message 2" in shown.out) == (True, True)
    assert "passed over 1 rows" in shown.err


@pytest.mark.parametrize(
    ("role", "part", "line"),
    [
        ("user", {"type": "text", "text": "\x1b[2Jred\rline \u202eback"}, r"\x1b[2Jred\x0dline \x202eback"),
        (
            "assistant",
            {"type": "tool_call", "tool_call_id": "c", "tool_name": "t", "arguments_state": "unavailable"},
            "-> t(arguments not kept)",
        ),
        (
            "tool",
            {"type": "tool_result", "tool_call_id": "c", "tool_name": "t", "content": "no", "is_error": True},
            "<- t failed: no",
        ),
        (
            "tool",
            {
                "type": "tool_result",
                "tool_call_id": "c",
                "tool_name": "t",
                "structured": {"n": 1},
                "artifacts": [{}, {}],
            },
            '<- t: {"n": 1}; 2 artifacts',
        ),
        ("assistant", {"type": "provider_state", "provider": "p", "state": {"a": 1}}, "[state of p]"),
        ("assistant", {"type": "structured_output", "name": "sum", "output": [1]}, "[output sum] [1]"),
        ("assistant", {"type": "peer_content", **PEER}, "[from alice] hello"),
        (
            "user",
            {
                "type": "file",
                "attachment": {
                    "artifact_id": "a",
                    "kind": "image",
                    "filename": "cat.png",
                    "content_type": "image/png",
                    "size_bytes": 9,
                },
            },
            "[file cat.png, image/png, 9 bytes]",
        ),
        (
            "assistant",
            {
                "type": "citation",
                "url": "https://example.com/",
                "title": "Ex",
                "provenance": {"provider_name": "p"},
                **IDS,
            },
            "[cites Ex https://example.com/]",
        ),
        (
            "assistant",
            {
                "type": "hosted_tool_call",
                "call_id": "c",
                "status": "completed",
                "action": {"type": "search", "query": "cats"},
                "provider_name": "p",
                "model": "m",
                **IDS,
            },
            "[web_search cats, completed]",
        ),
    ],
)
def test_every_part_has_its_line(role: str, part: dict[str, Any], line: str) -> None:
    assert lines_of(Message.model_validate({"role": role, "content": [part]})) == [line]


# --- importing


def test_lines_in_our_format_are_imported(
    run: Run, talk: Transcript, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "talk.jsonl", *(each.model_dump(mode="json") for each in [user("hi"), ANSWER]))
    assert run("import", file) == 0
    assert [stored.message for stored in talk.read()] == [user("hi"), ANSWER]
    assert capsys.readouterr().out == "talk: 2 messages appended, positions 0 to 1\n"


def test_the_same_file_again_changes_nothing(
    run: Run,
    talk: Transcript,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cayu_pg.cli.transcripts.MESSAGES_AT_ONCE", 2)
    file = written(tmp_path / "talk.jsonl", *(each.model_dump(mode="json") for each in numbered(5)))
    run("import", file)
    run("import", file, "--json")
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (facts["appended"], facts["already_there"], facts["first"], facts["last"]) == (0, 5, 0, 4)
    assert talk.count() == 5


def test_what_was_printed_as_json_can_be_imported(
    run: Run, talk: Transcript, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk.append([user("é"), ANSWER])
    run("talk", "--json")
    file = tmp_path / "export.jsonl"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    run("import", file, "--into", "copy")
    capsys.readouterr()
    run("copy", "--json")
    copied = [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()]
    assert [Message.model_validate(each) for each in copied] == [user("é"), ANSWER]


OPENAI = (
    {"role": "user", "content": "How warm?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "sensor", "arguments": '{"n": 1}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "19"},
)
ANTHROPIC = (
    {"role": "user", "content": "How warm?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "sensor", "input": {"n": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "19"}]},
)


@pytest.mark.parametrize(("form", "records"), [("openai", OPENAI), ("anthropic", ANTHROPIC)])
def test_other_formats_are_imported(
    run: Run, talk: Transcript, tmp_path: Path, form: str, records: tuple[dict[str, Any], ...]
) -> None:
    assert run("import", written(tmp_path / "x.jsonl", *records), "--format", form, "--into", "talk") == 0
    assert [stored.message for stored in talk.read()] == [
        user("How warm?"),
        Message.tool_call(tool_call_id="c", tool_name="sensor", arguments={"n": 1}),
        Message.tool_result(tool_call_id="c", tool_name="sensor", content="19"),
    ]


def test_each_refused_line_is_reported_and_the_rest_is_kept(
    run: Run, talk: Transcript, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.dumps(user("good").model_dump(mode="json"))
    file = written(tmp_path / "talk.jsonl", good, "{broken", "", {"role": "user", "content": []}, good, "7")
    with file.open("ab") as end:
        end.write(b'{"role": "user", "content": [{"type": "text", "text": "caf\xe9"}]}\n')
    assert run("import", file) == 1
    shown = capsys.readouterr()
    refused = [line.removeprefix(f"cayu-pg: {file}:").split(":")[0] for line in shown.err.splitlines()]
    assert refused == ["2", "4", "6", "7"]
    assert shown.out == "talk: 2 messages appended, positions 0 to 1, 4 lines refused\n"
    assert texts(talk.read()) == ["good", "good"]
    run("import", file, "--json")
    facts = json.loads(capsys.readouterr().out)
    assert [each["line"] for each in facts["refused"]] == [2, 4, 6, 7]
    assert all(each["reason"] for each in facts["refused"])


def test_an_empty_file_imports_nothing(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("import", written(tmp_path / "talk.jsonl")) == 0
    assert capsys.readouterr().out == "talk: 0 messages appended\n"


def test_a_file_that_cannot_be_read_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"FILE.*No such file"):
        run("import", tmp_path / "absent.jsonl")


def test_a_transcript_may_be_called_import(
    run: Run, talk: Transcript, engine: sa.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    Store(engine).transcript("import").append(user("hello"))
    assert run("import") == 0
    assert "    hello\n" in capsys.readouterr().out


def test_two_names_are_refused(run: Run) -> None:
    with pytest.raises(InvalidInput, match="import FILE"):
        run("talk", "another")
