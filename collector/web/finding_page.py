"""/findings/CODE: the page of a finding's code, which comes with the package; for browsers as HTML, else as text."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from laggard import __version__
from laggard.catalogue.command import read_page
from laggard.catalogue.findings import FINDINGS
from laggard.collector.web.markdown import html_of
from laggard.collector.web.page_html import template
from laggard.errors import UsageError

_CODES: Final = frozenset(finding.code for finding in FINDINGS)
_PAGE: Final = re.compile(r"([A-Z0-9_]+)\.md")


def finding_page(request: Request) -> Response:
    code = request.path_params["code"]
    if code not in _CODES:
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
    if found and found[1] in _CODES:
        return f"/findings/{found[1]}"
    return target if target.startswith("https://") else None
