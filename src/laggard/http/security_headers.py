"""The headers that every answer of every laggard server carries. Standard library only: training imports this module.

What agents, jobs and nodes report is escaped before it is shown. Should that ever fail, the browser still runs none of
it.
"""

from __future__ import annotations

from typing import Final

Headers = tuple[tuple[str, str], ...]

BASE: Final[Headers] = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
"""The headers that do not depend on the answer. A server sends NO_PAGE or page(), which add the policy of the
content."""

NO_PAGE: Final[Headers] = (*BASE, ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"))
"""The headers of JSON, metrics and errors, which load nothing."""


def page(policy: str) -> Headers:
    """The headers of a web page. `policy` lists what the page may load, as in `style-src 'self'; img-src 'self'`;
    everything else is forbidden."""
    content = f"default-src 'none'; {policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return (*BASE, ("Content-Security-Policy", content))
