"""The page's HTML with the answer already in it, for curl and for browsers without scripts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from html import escape
from pathlib import Path
from string import Template

from laggard.collector.web.documents import SummaryDocument

PAGE_DIR = Path(__file__).parent / "page"

MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
"""Media types by suffix. The machine's own table is not used: it may be wrong, and a browser runs no script of a wrong
type."""

_NO_SCRIPT = (
    "The heat map and the nodes need JavaScript; the same facts are at "
    '<a href="/api/v1/ranks">/api/v1/ranks</a> and <a href="/api/v1/nodes">/api/v1/nodes</a>.'
)


def render(summary: SummaryDocument) -> str:
    """The page as HTML. Everything that came from an agent is escaped."""
    return template("index.html").substitute(
        sentence=escape(summary.sentence),
        answer=answer_html(summary),
        heat=template("heat.html").substitute(noscript=_NO_SCRIPT),
        stacks=template("stacks.html").substitute(place=' data-in="job"'),
        waits=template("waits.html").substitute(place=' data-in="job"'),
        notes=items(summary.notes),
        version=escape(summary.version),
    )


def answer_html(summary: SummaryDocument) -> str:
    """The sentence, what to do and the evidence."""
    return template("answer.html").substitute(
        sentence=escape(summary.sentence),
        verdict=escape(summary.location.verdict.value),
        todo=items(summary.todo),
        todo_hidden="" if summary.todo else " hidden",
        evidence=items(summary.evidence),
    )


def items(lines: Iterable[str]) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


@cache
def template(name: str) -> Template:
    """A part of the page's HTML."""
    return Template((PAGE_DIR / name).read_text(encoding="utf-8"))


@cache
def page_files() -> dict[str, tuple[bytes, str]]:
    """The scripts, style and icon by name, with their media types. They are read once; no other file can be
    requested."""
    files = sorted(path for path in PAGE_DIR.iterdir() if path.suffix in MEDIA_TYPES)
    return {path.name: (path.read_bytes(), MEDIA_TYPES[path.suffix]) for path in files}
