"""/findings/CODE: the page of a finding's code, which comes with the package. Its Markdown becomes HTML for browsers,
and stays text for others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from html import escape
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from laggard import __version__
from laggard.catalogue.findings import codes, read_page
from laggard.collector.web.page_html import template
from laggard.kit.errors import UsageError

# The pages of the findings as HTML: the part of Markdown that they are written in, and nothing else. Pure.
#
# Headings, paragraphs, lists, tables, fenced code; within a line code, strong text and links. All text is escaped, and
# a link leads to another finding's page or to https. Whatever else stands there is shown as it stands.

Link = Callable[[str], str | None]
"""The place on the page to which a link's target leads; None: nowhere, its text alone is shown."""

_HEADING: Final = re.compile(r"(#{1,4}) +(.*)")
_ITEM: Final = re.compile(r"(?:-|\d+\.) +(.*)")
_RULE: Final = re.compile(r"\|[-:| ]+\|")
_INLINE: Final = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\(([^)\s]+)\)")


def html_of(text: str, link: Link) -> str:
    """`text` as elements. A heading of the first level becomes h1."""
    return "\n".join(_elements(text.splitlines(), link))


def _elements(lines: Sequence[str], link: Link) -> Iterator[str]:
    at = 0
    while at < len(lines):
        end = _end_of_block(lines, at)
        yield from _block(lines[at:end], link)
        at = end


def _end_of_block(lines: Sequence[str], at: int) -> int:
    """The place where the block that begins there ends: at the closing fence, else before an empty line or a
    heading."""
    if lines[at].startswith("```"):
        closing = (place for place in range(at + 1, len(lines)) if lines[place].startswith("```"))
        return next(closing, len(lines) - 1) + 1
    if not lines[at].strip() or _HEADING.fullmatch(lines[at]):
        return at + 1
    ends = (place for place in range(at + 1, len(lines)) if _ends_a_block(lines[place]))
    return next(ends, len(lines))


def _ends_a_block(line: str) -> bool:
    return not line.strip() or line.startswith("```") or _HEADING.fullmatch(line) is not None


def _block(lines: Sequence[str], link: Link) -> Iterator[str]:
    if not lines[0].strip():
        return
    heading = _HEADING.fullmatch(lines[0])
    if lines[0].startswith("```"):
        yield f'<pre tabindex="0"><code>{escape(chr(10).join(lines[1:-1]))}</code></pre>'
    elif heading:
        level = len(heading[1])
        yield f"<h{level}>{_inline(heading[2], link)}</h{level}>"
    elif len(lines) > 1 and _RULE.fullmatch(lines[1].strip()):
        yield _table(lines, link)
    elif _ITEM.match(lines[0]):
        yield _list(lines, link)
    else:
        yield f"<p>{_inline(' '.join(line.strip() for line in lines), link)}</p>"


def _list(lines: Sequence[str], link: Link) -> str:
    items: list[str] = []
    for line in lines:
        if found := _ITEM.match(line):
            items.append(found[1])
        else:
            items[-1] += f" {line.strip()}"
    name = "ul" if lines[0].startswith("-") else "ol"
    return f"<{name}>{''.join(f'<li>{_inline(item, link)}</li>' for item in items)}</{name}>"


def _table(lines: Sequence[str], link: Link) -> str:
    told = (line.strip() for line in lines if not _RULE.fullmatch(line.strip()))
    head, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in told)
    top = "".join(f'<th scope="col">{_inline(cell, link)}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{_inline(cell, link)}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table">{table}</div>'


def _inline(text: str, link: Link) -> str:
    parts, at = [], 0
    for found in _INLINE.finditer(text):
        parts += [escape(text[at : found.start()]), _marked(found, link)]
        at = found.end()
    return "".join([*parts, escape(text[at:])])


def _marked(found: re.Match[str], link: Link) -> str:
    code, strong, words, target = found.groups()
    if code is not None:
        return f"<code>{escape(code)}</code>"
    if strong is not None:
        return f"<strong>{escape(strong)}</strong>"
    leads = link(target)
    text = _inline(words, lambda _: None)
    return text if leads is None else f'<a href="{escape(leads)}">{text}</a>'


_PAGE: Final = re.compile(r"([A-Z0-9_]+)\.md")


def finding_page(request: Request) -> Response:
    code = request.path_params["code"]
    if code not in codes():
        return PlainTextResponse("no finding has this code\n", 404)
    try:
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(_html(code), headers={"Vary": "Accept"})
        return PlainTextResponse(read_page(code), headers={"Vary": "Accept"})
    except UsageError as error:
        return PlainTextResponse(f"{error}\n", 404)


@cache
def _html(code: str) -> str:
    """Raises UsageError where the page is not there."""
    return template("finding.html").substitute(
        code=code, content=html_of(read_page(code), _leads_to), version=__version__
    )


def _leads_to(target: str) -> str | None:
    found = _PAGE.fullmatch(target)
    if found and found[1] in codes():
        return f"/findings/{found[1]}"
    return target if target.startswith("https://") else None
