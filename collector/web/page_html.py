"""The page's HTML with the answer already in it, for browsers without scripts. And `laggard locate --html`: one page
of a job that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple
from urllib.parse import quote

from laggard.collector.web.documents import HeatDocument, SummaryDocument, TimelineDocument
from laggard.kit.words import capital
from laggard.model import Location
from laggard.recommend.advice.values import Item, Recommendation, gain_text
from laggard.wire import encode
from laggard.wire.nodes import NodeFinding

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


# Makes one script of the page's modules, for a page that loads nothing. Pure.
#
# The modules are written so that a few lines can do it: each import names what it takes from a file beside it, on one
# line, and what is exported is a function or a constant of the module. Anything else raises ValueError.

_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)


def bundle(entry: str, modules: Mapping[str, str]) -> str:
    """A script that does what the module `entry` does. `modules`: the text of each by its name, as `dom.js`. Each keeps
    a scope of its own."""
    parts: dict[str, str] = {}
    _add(entry.removesuffix(".js"), modules, parts)
    return '"use strict";\n' + "".join(parts.values())


def _add(name: str, modules: Mapping[str, str], parts: dict[str, str]) -> None:
    """Adds the module after those that it imports. A circle of imports would be named by the browser: there is none."""
    text = modules[f"{name}.js"]
    for _, imported in _IMPORT.findall(text):
        if imported not in parts:
            _add(imported, modules, parts)
    exported = [found for _, found in _EXPORT.findall(text)]
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const { \1 } = module_\2;" + "\n", text))
    if left := _OTHER.search(body):
        raise ValueError(f"{name}.js: {left.group()!r} cannot be bundled")
    parts[name] = f"const module_{name} = (() => {{\n{body}return {{ {', '.join(exported)} }};\n}})();\n"


ROWS = 230
"""The most rows of the heat map, which is two pixels tall for each of them."""


class KeptPage(NamedTuple):
    """The content of a kept page. `findings`: of the culprits' nodes. `source`: where all this is from. `written`:
    when. `collector`: its URL, to whose pages of the findings this one links; empty where none was asked."""

    summary: SummaryDocument
    heat: HeatDocument
    timeline: TimelineDocument
    findings: Sequence[NodeFinding]
    recommendation: Recommendation | None
    job: str
    source: str
    written: str
    collector: str = ""


def culprit_ranks(location: Location) -> list[int]:
    """The ranks whose timeline is worth a look: two of each culprit; without a culprit the first rank that a note
    names."""
    chosen = [rank for culprit in location.culprits for rank in culprit.ranks[:2]]
    return chosen or [note.ranks[0] for note in location.notes if note.ranks][:1]


def kept_html(page: KeptPage) -> str:
    """The page as HTML. Everything that came from a job or a node is escaped."""
    style, script = _style(), _script()
    title = "The culprit beside its peers" if page.summary.location.culprits else "A rank beside its peers"
    return template("report.html").substitute(
        policy=f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:",
        style=style,
        script=script,
        sentence=escape(page.summary.sentence),
        answer=answer_html(page.summary),
        heat=template("heat.html").substitute(noscript="The heat map needs JavaScript."),
        stacks=template("stacks.html").substitute(place=""),
        waits=template("waits.html").substitute(place=""),
        timeline_title=title,
        timeline_hidden="" if page.timeline.rows else " hidden",
        findings=_section(
            "findings", "Findings on its node", [_finding_html(it, page.collector) for it in page.findings]
        ),
        changes=_section("changes", "What to change", _change_parts(page)),
        notes=items(page.summary.notes),
        version=escape(page.summary.version),
        job=escape(page.job),
        written=escape(page.written),
        source=escape(page.source),
        documents=_embedded(page),
    )


def _embedded(page: KeptPage) -> str:
    """The documents as JSON in which nothing can end the element that holds it."""
    documents = {"summary": page.summary, "heat": page.heat, "timeline": page.timeline}
    return encode(documents).decode().replace("<", "\\u003c")


def _section(name: str, title: str, parts: Sequence[str]) -> str:
    if not parts:
        return ""
    head = f'<div class="card-head"><h2 id="{name}-title">{title}</h2></div>'
    body = f'<div class="findings-list">{"".join(parts)}</div>'
    return f'  <section class="card" aria-labelledby="{name}-title">{head}{body}</section>\n'


def _finding_html(found: NodeFinding, collector: str) -> str:
    it = found.finding
    more = f"laggard findings explain {it.code} has more."
    page = f"{collector.rstrip('/')}/findings/{quote(it.code, safe='')}" if collector.startswith("http") else ""
    title = f"{it.code} {it.device} on {found.node}"
    return _article(title, [it.summary, it.fix.text, more], it.fix.commands, page)


def _change_parts(page: KeptPage) -> list[str]:
    """The changes that are recommended, but for what the answer says already."""
    if page.recommendation is None:
        return []
    advised = {culprit.advice for culprit in page.summary.location.culprits}
    parts = [_change_html(item) for item in page.recommendation.items if item.apply not in advised]
    blocked = page.recommendation.blocked_by
    first = [f"<p>Repair first: {escape(', '.join(blocked))}.</p>"] if blocked else []
    return [*first, *parts] if parts else []


def _change_html(item: Item) -> str:
    """An item as a diff of its setting, with what it gains."""
    sets = item.recommended is not None or item.target in ("nccl_env", "deepspeed")  # else it is repaired by hand
    values = (("-", item.current), ("+", item.recommended)) if sets else ()
    lines = [(sign, value) for sign, value in values if value is not None]
    diff = "\n".join(f"{sign} {item.key}={value}" for sign, value in lines)
    words = [capital(line) for line in item.apply.splitlines() if line not in item.commands]
    risk = f"Risk: {item.risk}" if item.risk else ""
    reasons = [capital(item.reason), f"Gain: {gain_text(item.gain)}.", risk, *words]
    return _article(f"{item.target}: {item.key}", reasons, [diff, "\n".join(item.commands)])


def _article(title: str, lines: Iterable[str], commands: Iterable[str], page: str = "") -> str:
    """`page`: where its title leads."""
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in lines if line)
    blocks = "".join(f"<pre>{escape(command)}</pre>" for command in commands if command)
    head = f'<a href="{escape(page)}">{escape(title)}</a>' if page else escape(title)
    return f'<article class="finding"><h3>{head}</h3>{paragraphs}{blocks}</article>'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _style() -> str:
    return (PAGE_DIR / "page.css").read_text(encoding="utf-8")


@cache
def _script() -> str:
    return bundle("report.js", {path.name: path.read_text(encoding="utf-8") for path in PAGE_DIR.glob("*.js")})
