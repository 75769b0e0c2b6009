"""What a reader can open on the page: a rank, a zoom, an order, and the link that shows the same to someone else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from support.browsing import Browsed, needs_chromium

from laggard.model import Fix

pytestmark = [pytest.mark.slow, needs_chromium]

Start = Callable[..., Any]


@pytest.fixture
def large_job(watching: Start, fake_agent: Start, make: Any) -> Any:
    """512 ranks, folded into rows of 3; rank 421 is slow."""
    agents = [
        fake_agent(make.node(f"gpu-{index:03d}", range(index * 64, index * 64 + 64), 421, 512), make.report("n"))
        for index in range(8)
    ]
    return watching(*agents)


def test_a_click_opens_a_row_and_shows_its_rank(browser: Any, large_job: Any) -> None:
    browsed = Browsed(browser, large_job.url, ready="#rank-card:not([hidden])")
    page = browsed.page
    assert page.inner_text("#rank-title") == "The rank to look at beside a peer"
    rows = page.locator("#timeline tbody tr")
    assert rows.nth(0).inner_text().startswith("Rank 421 on gpu-006\t")
    page.focus("#heat-canvas")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.locator("#zoom-words", has_text="3 of 512 ranks").wait_for()
    assert page.inner_text("#rank-title").endswith("beside a peer") and "zoom=0-3" in page.url and "rank=" in page.url
    assert "folds" not in page.inner_text("#heat-explain")
    page.focus("#heat-canvas")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#rank-title", has_text="Rank 1 beside a peer").wait_for()
    assert rows.nth(0).inner_text().startswith("Rank 1 on gpu-000\t")
    page.click("#zoom-out")
    page.locator("#heat-explain", has_text="512 ranks; each row folds 3").wait_for()
    page.go_back()
    page.locator("#zoom-words", has_text="3 of 512 ranks").wait_for()
    assert browsed.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_link_shows_the_same_view(browser: Any, large_job: Any, scheme: str) -> None:
    link = "/?job=1000%3Ajob-1#measure=waited&order=host&zoom=384-448&rank=430"
    browsed = Browsed(browser, large_job.url + link, ready="#rank-card:not([hidden])", color_scheme=scheme)
    page = browsed.page
    assert page.inner_text("#rank-title") == "Rank 430 beside a peer"
    assert page.inner_text("#zoom-words") == "64 of 512 ranks"
    assert page.input_value("#order") == "host" and page.is_checked("input[value=waited]")
    assert browsed.barriers() == []
    browsed.screenshot(f"page-zoom-{scheme}")
    page.select_option("#order", "rank")
    page.locator("#heat-explain", has_text="512 ranks; each row folds 3").wait_for()
    assert "order" not in page.url and "measure=waited" in page.url and "rank=430" in page.url
    page.fill("#rank", "7")
    page.keyboard.press("Enter")
    page.locator("#rank-title", has_text="Rank 7 beside a peer").wait_for()
    assert browsed.errors == []


def test_a_link_with_nonsense_shows_all(browser: Any, large_job: Any) -> None:
    link = "/#measure=constructor&order=__proto__&zoom=9-3&rank=<img>"
    browsed = Browsed(browser, large_job.url + link, ready="#rank-card:not([hidden])")
    assert browsed.page.inner_text("#rank-title") == "The rank to look at beside a peer"
    assert browsed.page.is_hidden("#zoom-out") and browsed.page.is_checked("input[value=own]")
    assert browsed.errors == []


def test_findings_have_fixes_to_copy_and_a_page(browser: Any, watching: Start, fake_agent: Start, make: Any) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    report = make.report("n1", ["GPU_THROTTLED", "ACS_ENABLED", "TCP_FALLBACK"])
    acs = structs.replace(
        report.findings[1],
        summary=f"ACS redirects {hostile}",
        fix=Fix("Clear it.", (f"setpci -s {hostile} ECAP_ACS",)),
    )
    agents = [
        fake_agent(make.node("n0", [0, 1], slow=2), make.report("n0", ["GPU_THROTTLED"])),
        fake_agent(
            make.node("n1", [2, 3], slow=2),
            structs.replace(report, findings=(report.findings[0], acs, report.findings[2])),
        ),
    ]
    collector = watching(*agents)
    browsed = Browsed(browser, collector.url, ready="#findings article", permissions=["clipboard-read"])
    page = browsed.page
    throttled = page.locator("#findings article", has_text="GPU_THROTTLED")
    assert "n0 gpu0, n1 gpu0" in throttled.inner_text()
    found = page.locator("#findings article", has_text="ACS_ENABLED")
    assert hostile in found.inner_text() and page.locator("main img").count() == 0
    found.get_by_role("button", name="Copy the commands for ACS_ENABLED").click()
    found.get_by_text("Copied the commands").wait_for(state="attached")
    assert page.evaluate("navigator.clipboard.readText()") == f"setpci -s {hostile} ECAP_ACS"
    page.locator("#changes article").first.wait_for()
    changed = page.locator("#changes article", has_text="host: transport")
    assert changed.locator(".diff span").all_inner_texts() == ["− transport=TCP", "+ transport=RDMA"]
    boxes = page.locator("#changes .copy-box:not(details *) pre").all_inner_texts()
    assert boxes == [f"setpci -s {hostile} ECAP_ACS"], "words are no commands"
    assert "Clear it." in page.locator("#changes article", has_text="ACS").inner_text()
    assert "ACS_ENABLED" in page.inner_text("#changes-explain")
    assert browsed.barriers() == []
    browsed.screenshot("page-findings")
    assert browsed.errors == []
    found.get_by_role("link", name="ACS_ENABLED").click()
    page.wait_for_url("**/findings/ACS_ENABLED")
    assert page.inner_text("h1").startswith("ACS_ENABLED")
    assert collector.get("/findings/%2e%2e%2fpyproject").status_code == 404
