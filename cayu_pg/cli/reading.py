"""Files become documents here: which files a path stands for, and the text and title of each.

HTML is reduced to its visible text. Everything else is kept as written, also the front matter of Markdown: its words
are worth finding, and places in the text stay places in the file.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from cayu_pg.errors import InvalidInput
from cayu_pg.records import MAX_TEXT

SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "CVS"})
# A folder that holds one of these is a virtual environment, or marked as a cache (bford.info/cachedir).
MARKERS = ("pyvenv.cfg", "CACHEDIR.TAG")
LONGEST_TITLE = 300
# The longer byte order mark first: that of UTF-32-LE begins with that of UTF-16-LE.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)


@dataclass(frozen=True)
class SourceText:
    """What a file says, and the title it gives itself (None: it has none)."""

    text: str
    title: str | None = None


def find_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The files that `paths` name and, for folders, those below, sorted by name, each path once.

    Below a folder, hidden files and folders, caches and links to folders are passed over; what is named itself is
    always taken. Raises InvalidInput before the first file when a path does not exist.
    """
    named = list(paths)
    for path in named:
        if not path.exists():
            raise InvalidInput("path", "a file or folder", f"nothing at {path}")
    seen: set[Path] = set()
    for path in named:
        for file in _walk(path) if path.is_dir() else [path]:
            if file.absolute() not in seen:
                seen.add(file.absolute())
                yield file


def _walk(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_file():
            yield entry
        elif entry.is_dir() and not entry.is_symlink() and not _is_skipped(entry):
            yield from _walk(entry)


def _is_skipped(folder: Path) -> bool:
    return folder.name in SKIPPED_FOLDERS or any((folder / marker).is_file() for marker in MARKERS)


def read_file(path: Path) -> SourceText:
    """The text and title of a file, by its suffix; InvalidInput says why it is not a text."""
    text = _decode(_read_bytes(path))
    match path.suffix.lower():
        case ".html" | ".htm" | ".xhtml":
            source = read_html(text)
        case ".md" | ".markdown" | ".mdown" | ".mkd":
            source = SourceText(text, _shortened(markdown_title(text)))
        case ".rst" | ".rest":
            source = SourceText(text, _shortened(rst_title(text)))
        case _:
            source = SourceText(text)
    if not source.text.strip():
        raise InvalidInput("file", "a text", "a blank one")
    return source


def _read_bytes(path: Path) -> bytes:
    limit = 4 * MAX_TEXT  # no encoding of Unicode takes more bytes a character
    if (size := path.stat().st_size) > limit:
        raise InvalidInput("file", f"at most {limit} bytes", f"{size}")
    return path.read_bytes()


def _decode(data: bytes) -> str:
    encoding = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    if encoding in ("utf-8", "utf-8-sig") and (offset := data.find(0)) >= 0:
        raise InvalidInput("file", "text", f"NUL byte at offset {offset}")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        found = f"no {error.encoding} at offset {error.start} (byte 0x{data[error.start]:02x})"
        raise InvalidInput("file", "text", found) from error
    if (offset := text.find("\x00")) >= 0:
        raise InvalidInput("file", "text", f"U+0000 at character {offset}")
    return text


def _shortened(title: str | None) -> str | None:
    """The title on one line, at most LONGEST_TITLE characters; None when nothing is left."""
    return " ".join((title or "").split())[:LONGEST_TITLE].strip() or None


_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(?:(.*?)\r?\n)??(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(['\"]?)(\S.*?)\1[ \t]*\r?$", re.MULTILINE)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")


def markdown_title(text: str) -> str | None:
    """The `title:` of the front matter, else the first heading outside fenced code."""
    body = text
    if front := _FRONT_MATTER.match(text):
        if named := _FRONT_TITLE.search(front[1] or ""):
            return named[2]
        body = text[front.end() :]
    previous = ""
    for line in _outside_fences(body.splitlines()):
        if heading := _HEADING.match(line):
            return heading[1]
        if _UNDERLINE.match(line) and previous.strip() and not previous.startswith(("    ", "\t")):
            return previous.strip()
        previous = line
    return None


def _outside_fences(lines: Iterable[str]) -> Iterator[str]:
    fence = ""
    for line in lines:
        mark = _FENCE.match(line)
        if fence:
            closes = mark and mark[1].startswith(fence) and not line.strip(" \t" + fence[0])
            fence = "" if closes else fence
        elif mark:
            fence = mark[1]
            yield ""
        else:
            yield line


_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1+\s*$")


def rst_title(text: str) -> str | None:
    """The first section title: a line with an underline at least as long, alone or below an overline."""
    lines = ["", *text.splitlines()]
    for above, line, below in zip(lines, lines[1:], lines[2:], strict=False):
        under = _ADORNMENT.match(below)
        if (
            not under
            or not line.strip()
            or _ADORNMENT.match(line)
            or len(below.rstrip()) < len(line.rstrip())
        ):
            continue
        if not above.strip() or above.rstrip() == below.rstrip():
            return line.strip()
    return None


def read_html(text: str) -> SourceText:
    """The visible text, its blocks apart by blank lines and lines by line breaks, and the `<title>`."""
    parser = _VisibleText()
    parser.feed(text)
    parser.close()
    return SourceText(re.sub(r"[ \t]+\n", "\n", "".join(parser.pieces)).strip(), _shortened(parser.title))


_IN_HEAD = frozenset({"title", "meta", "link", "base", "script", "style", "noscript", "template"})
_UNSEEN = frozenset({"script", "style", "template", "noscript", "svg"})
_LINES = frozenset({"li", "tr", "dt", "dd", "option", "summary", "figcaption", "caption"})
# fmt: off
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "details", "div", "dl", "fieldset", "figure", "footer",
    "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "main", "nav", "ol", "p", "pre", "section", "table",
    "ul",
})
# fmt: on
_WHITE = re.compile(r"\s+")


class _VisibleText(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.title: str | None = None
        self._breaks = 0  # line breaks owed before the next text
        self._unseen = 0  # how deep inside elements that show nothing
        self._preformatted = 0
        self._in_head = False
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_head = tag == "head" or (self._in_head and tag in _IN_HEAD)
        self._in_title = tag == "title" and not self._unseen
        self._unseen += tag in _UNSEEN
        self._preformatted += tag == "pre"
        self._break_at(tag)
        if tag == "br":
            self._breaks = min(self._breaks + 1, 2)

    def handle_endtag(self, tag: str) -> None:
        self._in_head = self._in_head and tag != "head"
        self._in_title = False
        self._unseen = max(0, self._unseen - (tag in _UNSEEN))
        self._preformatted = max(0, self._preformatted - (tag == "pre"))
        self._break_at(tag)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title = data if self.title is None else self.title
        elif not self._in_head and not self._unseen:
            self._write(data if self._preformatted else _WHITE.sub(" ", data))

    def _break_at(self, tag: str) -> None:
        owed = 2 if tag in _BLOCKS else 1 if tag in _LINES else 0
        self._breaks = max(self._breaks, owed)
        if tag in ("td", "th") and not self._unseen:
            self._write(" ")

    def _write(self, text: str) -> None:
        starts_line = self._breaks > 0 or not self.pieces or self.pieces[-1][-1] in " \n"
        if starts_line and not self._preformatted:
            text = text.lstrip()
        if not text:
            return
        self.pieces.append("\n" * self._breaks + text)
        self._breaks = 0
