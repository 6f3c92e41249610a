"""Files become texts and titles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cayu_pg.cli.reading import find_files, markdown_title, read_file, read_html, rst_title
from cayu_pg.errors import InvalidInput
from cayu_pg.records import MAX_TEXT


def make(root: Path, *names: str) -> None:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("text")


def found(root: Path, *paths: str) -> list[str]:
    return [file.relative_to(root).as_posix() for file in find_files([root / path for path in paths])]


def test_files_below_a_folder_come_sorted(tmp_path: Path) -> None:
    make(tmp_path, "b.txt", "a/z.md", "a/c/d.py", "c.txt")
    assert found(tmp_path, "") == ["a/c/d.py", "a/z.md", "b.txt", "c.txt"]


@pytest.mark.parametrize(
    "name",
    [".hidden", ".git/config", ".venv/a.py", "__pycache__/a.txt", "node_modules/a/b.js", "env/pyvenv.cfg"],
)
def test_hidden_files_and_caches_are_passed_over(name: str, tmp_path: Path) -> None:
    make(tmp_path, "kept.txt", name, f"below/{name}")
    assert found(tmp_path, "") == ["kept.txt"]


def test_folder_tagged_as_cache_is_passed_over(tmp_path: Path) -> None:
    make(tmp_path, "kept.txt", "stuff/CACHEDIR.TAG", "stuff/a.txt")
    assert found(tmp_path, "") == ["kept.txt"]


def test_what_is_named_is_always_taken(tmp_path: Path) -> None:
    make(tmp_path, ".hidden", "node_modules/a.js", ".git/config")
    assert found(tmp_path, ".hidden", "node_modules", ".git") == [
        ".hidden",
        "node_modules/a.js",
        ".git/config",
    ]


def test_a_file_named_twice_comes_once(tmp_path: Path) -> None:
    make(tmp_path, "a.txt", "b.txt")
    assert found(tmp_path, "b.txt", "", "a.txt") == ["b.txt", "a.txt"]


def test_links_to_files_are_taken_and_links_to_folders_do_not_loop(tmp_path: Path) -> None:
    make(tmp_path, "a/b.txt")
    (tmp_path / "a" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "link.txt").symlink_to(tmp_path / "a" / "b.txt")
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere")
    assert found(tmp_path, "") == ["a/b.txt", "link.txt"]


def test_pipes_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert found(tmp_path, "") == []


def test_a_missing_path_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    make(tmp_path, "a.txt")
    with pytest.raises(InvalidInput, match=r"expected a file or folder, found nothing at .*absent"):
        next(find_files([tmp_path / "a.txt", tmp_path / "absent"]))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_unicode_is_read_with_or_without_byte_order_mark(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("Grüße, 世界 🎉\r\n".encode(encoding))
    assert read_file(file).text == "Grüße, 世界 🎉\r\n"


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"), min_size=1))
def test_plain_text_stays_as_written(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "code.py"
    file.write_bytes(f"# {text}".encode())
    assert read_file(file).text == f"# {text}"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"seventeen letters\x00 and more", "NUL byte at offset 17"),
        (b"caf\xe9 au lait", r"no utf-8 at offset 3 \(byte 0xe9\)"),
        ("a\0b".encode("utf-16"), r"U\+0000 at character 1"),
        (b"\xff\xfea\x00\x00\xd8", "no utf-16-le at offset 4"),
        (b"", "a blank one"),
        (b" \n\t \n", "a blank one"),
    ],
)
def test_what_is_not_text_is_refused_with_the_reason(data: bytes, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_bytes(data)
    with pytest.raises(InvalidInput, match=reason):
        read_file(file)


def test_html_without_visible_text_is_blank(tmp_path: Path) -> None:
    file = tmp_path / "a.html"
    file.write_text("<title>Empty</title><script>run()</script>")
    with pytest.raises(InvalidInput, match="a blank one"):
        read_file(file)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with file.open("wb") as out:
        out.truncate(4 * MAX_TEXT + 1)
    with pytest.raises(InvalidInput, match="expected at most 200000000 bytes, found 200000001"):
        read_file(file)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# Setting up\n\nText", "Setting up"),
        ("Text\n\n## Closed ##\n", "Closed"),
        ("Setting up\n==========\n", "Setting up"),
        ("Text.\n\n---\n\nMore.\n\nBelow\n---", "Below"),
        ("```sh\n# a comment\n```\n# Real", "Real"),
        ("~~~~\n```\n# no\n~~~\n# no\n~~~~~\n# Yes", "Yes"),
        ('---\ntitle: "From the front"\ndate: 2020-01-01\n---\n# Heading', "From the front"),
        ("---\ndate: 2020-01-01\n---\n# Heading", "Heading"),
        ("---\n---\n# Heading", "Heading"),
        ("#hashtag\n    # code\n", None),
        ("No heading at all", None),
        ("", None),
    ],
)
def test_markdown_title(text: str, title: str | None) -> None:
    assert markdown_title(text) == title


def test_markdown_text_keeps_its_front_matter(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text("---\ntitle: One\n---\nText *as* written.\n")

    read = read_file(file)

    assert (read.text, read.title) == ("---\ntitle: One\n---\nText *as* written.\n", "One")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Install\n=======\n\nText", "Install"),
        (".. note::\n\n=======\nInstall\n=======\n", "Install"),
        ("Text\n\nUsage\n~~~~~\n", "Usage"),
        ("Text\n\n-----\n\nMore", None),
        ("Two\nlines\n-----\n", None),
        ("Longer than its line\n---\n", None),
        ("", None),
    ],
)
def test_rst_title(text: str, title: str | None) -> None:
    assert rst_title(text) == title


def test_rst_file_has_a_title_and_its_text_as_written(tmp_path: Path) -> None:
    file = tmp_path / "a.RST"
    file.write_text("Usage\n=====\n\nRun it.\n")

    read = read_file(file)

    assert (read.text, read.title) == ("Usage\n=====\n\nRun it.\n", "Usage")


def test_titles_are_one_short_line(tmp_path: Path) -> None:
    file = tmp_path / "a.html"
    file.write_text(f"<title>\n  Two\n  lines {'x' * 400}</title>Text")

    title = read_file(file).title

    assert title is not None
    assert title.startswith("Two lines xxx")
    assert len(title) == 300


def test_html_shows_blocks_lines_and_cells() -> None:
    html = """<!doctype html><html><head><title>Tom &amp; Ann</title><style>p {color: red}</style></head>
    <body><h1>Head<b>ing</b></h1><p>One   <i>two</i>
    three<br>four &lt;5&gt;</p>
    <ul><li>first<li>second</ul><!-- unseen --><script>var x = "<p>no</p>";</script>
    <table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table></body></html>"""

    read = read_html(html)

    assert read.title == "Tom & Ann"
    assert read.text == "Heading\n\nOne two three\nfour <5>\n\nfirst\nsecond\n\na b\n1 2"


def test_html_keeps_preformatted_text() -> None:
    assert read_html("<p>Code:</p><pre>if a:\n    b()</pre>done").text == "Code:\n\nif a:\n    b()\n\ndone"


def test_html_fragment_without_head_or_closing_tags_is_read() -> None:
    read = read_html("<title>T</title><p>One<p>Two<svg><title>icon</title></svg> &copy; &#0;")
    assert (read.title, read.text) == ("T", "One\n\nTwo © \ufffd")


def test_html_body_is_seen_when_head_is_not_closed() -> None:
    assert read_html("<head><title>T</title><meta charset=utf-8><p>Seen").text == "Seen"


@given(st.text())
def test_any_text_can_be_read_as_html_or_searched_for_titles(text: str) -> None:
    assert "\n\n\n" not in read_html(text).text or "\n\n\n" in text
    assert {type(markdown_title(text)), type(rst_title(text))} <= {str, type(None)}
