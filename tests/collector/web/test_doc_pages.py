"""/findings/CODE and /runbooks/ALERT: HTML for browsers, text for others."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.browsing import Browsed, needs_chromium
from support.large_cluster import made_snapshot, served

from laggard.catalogue.findings import all_types, read_page
from laggard.collector.web.doc_pages import html_of, runbooks

HTML = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(made_snapshot(8, steps=2)) as address:
        yield address


def test_curl_gets_the_text_and_every_page_becomes_html(url: str) -> None:
    with httpx.Client(base_url=url, trust_env=False) as client:
        assert client.get("/findings/ACS_ENABLED").text == read_page("ACS_ENABLED")
        for finding in all_types():
            answer = client.get(f"/findings/{finding.code}", headers=HTML)
            assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
            words = re.sub(r"<[^>]*>", "", answer.text.partition("<main")[2].partition("</main>")[0])
            left = re.search(r"\*\*|`|^#+ |\]\(|^\|", words, re.MULTILINE)
            assert left is None, f"{finding.code} has Markdown left at {words[left.start() - 40 :][:80]!r}"
        assert client.get("/findings/NOTHING", headers=HTML).status_code == 404
        assert client.get("/findings/%2e%2e%2fpyproject", headers=HTML).status_code == 404


def test_elements_of_a_page() -> None:
    text = """# CODE `x`

Two lines
of **one** paragraph: a < b & c.

- first,
  goes on
- second, [a page](ACS_ENABLED.md), [an alert](#laggardrankhung),
  [a file](other.md), [elsewhere](javascript:alert(1))

1. one
2. two

| a | b |
|---|---|
| `1` | <b> |

```
raw <i> & **not strong**
```
"""
    made = " ".join(html_of(text).split())
    assert "<h1>CODE <code>x</code></h1>" in made
    assert "<p>Two lines of <strong>one</strong> paragraph: a &lt; b &amp; c.</p>" in made
    assert "<li>first, goes on</li>" in made and '<a href="/findings/ACS_ENABLED">a page</a>' in made
    assert '<a href="/runbooks/LaggardRankHung">an alert</a>' in made and "<a>a file</a>" in made
    assert "<ol> <li>one</li> <li>two</li> </ol>" in made and "href" not in made.partition("a file")[2]
    assert "<th>a</th>" in made and "<td><code>1</code></td> <td>&lt;b&gt;</td>" in made
    assert "raw &lt;i&gt; &amp; **not strong**" in made


def test_what_to_do_about_each_alert_is_served(url: str) -> None:
    with httpx.Client(base_url=url, trust_env=False) as client:
        assert client.get("/runbooks/LaggardRankHung").text == runbooks()["LaggardRankHung"]
        for name in runbooks():
            answer = client.get(f"/runbooks/{name}", headers=HTML)
            assert answer.status_code == 200 and f"<h1>{name}</h1>" in answer.text
        assert client.get("/runbooks/..%2falerts").status_code == 404


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(browser: Any, url: str, scheme: str) -> None:
    size = {"viewport": {"width": 390, "height": 844}} if scheme == "dark" else {}
    browsed = Browsed(browser, f"{url}/findings/CLOCK_SKEW", "main h1", color_scheme=scheme, **size)
    page = browsed.page
    assert page.inner_text("h1") == "CLOCK_SKEW" and page.locator("main code").count() > 3
    assert page.evaluate("document.documentElement.scrollWidth") <= page.evaluate("innerWidth")
    assert browsed.barriers() == []
    browsed.screenshot(f"page-finding-{scheme}")
    page.get_by_role("link", name="Fleet").click()
    page.locator("#fleet-sentence", has_text="node is fit").wait_for()
    assert browsed.errors == []
