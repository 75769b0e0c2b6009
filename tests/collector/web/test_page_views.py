"""What a reader can open on the page: a rank, a zoom, an order, and the link that shows the same to someone else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.browsing import Browsed, needs_chromium

pytestmark = [pytest.mark.slow, needs_chromium]

Start = Callable[..., Any]


@pytest.fixture
def large_job(start_collector: Start, fake_agent: Start, make: Any) -> Any:
    """512 ranks, folded into rows of 3; rank 421 is slow."""
    agents = [
        fake_agent(make.node(f"gpu-{index:03d}", range(index * 64, index * 64 + 64), 421, 512), make.report("n"))
        for index in range(8)
    ]
    flags = [word for agent in agents for word in ("--target", agent.address)]
    collector = start_collector(*flags, "--interval", "0.5")
    collector.wait_ready()
    return collector


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
