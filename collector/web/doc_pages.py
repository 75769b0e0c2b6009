"""/findings/CODE and /runbooks/ALERT: the page of a finding's code, and what to do about an alert, which come with the
package. Their Markdown becomes HTML for browsers, and stays text for others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

import laggard
from laggard import __version__
from laggard.catalogue.findings import codes, read_page
from laggard.collector.web.page_html import template
from laggard.kit.errors import UsageError

_FINDING: Final = re.compile(r"(?:\.\./|findings/)*([A-Z0-9_]+)\.md")
_ALERT: Final = re.compile(r"#(laggard\w+)")
_SECTION: Final = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


@cache
def runbooks() -> dict[str, str]:
    """What to do, in Markdown, by the alert's name: the sections of docs/alerts.md."""
    path = Path(laggard.__file__).with_name("alerts.md")
    return {name: f"# {name}\n{text}" for name, text in _SECTION.findall(path.read_text(encoding="utf-8"))}


def html_of(text: str) -> str:
    """The Markdown as elements. All text is escaped, HTML in it too. A link leads to another such page or to https; of
    any other its text alone is there."""
    return str(_MARKDOWN.render(text))


class _Renderer(RendererHTML):
    """A table and a block of code can be scrolled by keyboard, and links lead where _leads_to() says."""

    def link_open(self, tokens: Sequence[Token], place: int, options: Any, env: Any) -> str:
        leads = _leads_to(str(tokens[place].attrs.get("href", "")))
        tokens[place].attrs = {"href": leads} if leads else {}
        return self.renderToken(tokens, place, options, env)

    def table_open(self, *_: Any) -> str:
        return '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>\n'

    def table_close(self, *_: Any) -> str:
        return "</table></div>\n"

    def fence(self, *rendered: Any) -> str:
        return super().fence(*rendered).replace("<pre>", '<pre tabindex="0">', 1)


_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")


def _leads_to(target: str) -> str | None:
    alerts = {name.lower(): name for name in runbooks()}
    if (found := _FINDING.fullmatch(target)) and found[1] in codes():
        return f"/findings/{found[1]}"
    if (found := _ALERT.fullmatch(target)) and found[1] in alerts:
        return f"/runbooks/{alerts[found[1]]}"
    return target if target.startswith("https://") else None


def finding_page(request: Request) -> Response:
    code = request.path_params["code"]
    if code not in codes():
        return PlainTextResponse("no finding has this code\n", 404)
    try:
        return _answer(request, code, read_page, f"In the terminal: laggard findings explain {code}")
    except UsageError as error:
        return PlainTextResponse(f"{error}\n", 404)


def runbook_page(request: Request) -> Response:
    alert = request.path_params["alert"]
    if alert not in runbooks():
        return PlainTextResponse("no alert has this name\n", 404)
    return _answer(request, alert, runbooks().__getitem__, "")


def _answer(request: Request, name: str, read: Callable[[str], str], hint: str) -> Response:
    text, headers = read(name), {"Vary": "Accept"}
    if "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse(text, headers=headers)
    page = template("finding.html").substitute(name=name, content=html_of(text), version=__version__, hint=hint)
    return HTMLResponse(page, headers=headers)
