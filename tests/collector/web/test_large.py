"""The page in a real browser with jobs of 8, 4,096 and 32,768 ranks: the answer, what to do, and the way from all ranks
to one. Pictures of each are kept as those of the other tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from support.browsing import Browsed, needs_chromium
from support.large_cluster import OUTSIDE, made_snapshot, served, with_findings, with_jobs

pytestmark = [pytest.mark.slow, needs_chromium]

RANKS = (8, 4096, 32_768)
STEPS = 60
HIDE_TILES = "document.querySelectorAll('#tiles a:nth-child(n+100)').forEach((tile) => (tile.hidden = true))"
"""Those beyond the first are like them, and axe-core takes 2 ms for each."""

MAX_BYTES = 1_500_000
"""Of everything that a view loads and asks for at first, whatever the size of the job: the heat map has most of it."""


class Cluster(NamedTuple):
    url: str
    ranks: int

    @property
    def nodes(self) -> int:
        return self.ranks // 8

    @property
    def slow(self) -> int:
        return 421 % self.ranks

    @property
    def slow_node(self) -> str:
        return f"gpu-{self.slow // 8:04d}"


@pytest.fixture(scope="module", params=RANKS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    snapshot = with_jobs(with_findings(made_snapshot(request.param, steps=STEPS)), min(request.param, 512))
    with served(snapshot) as url:
        yield Cluster(url, request.param)


def _opened(browser: Any, cluster: Cluster, address: str, ready: str) -> tuple[Browsed, Any]:
    browsed = Browsed(browser, cluster.url + address, ready)
    sizes = browsed.page.evaluate("performance.getEntriesByType('resource').map((it) => it.transferSize)")
    assert 0 < sum(sizes) < MAX_BYTES, f"{address} takes {sum(sizes)} bytes"
    return browsed, browsed.page


def _look(browsed: Browsed, picture: str) -> None:
    """Nothing bars a reader, light or dark; a picture of each is kept."""
    for scheme in ("light", "dark"):
        browsed.page.emulate_media(color_scheme=scheme)
        browsed.screenshot(f"{picture}-{scheme}")
    browsed.page.evaluate(HIDE_TILES)
    for scheme in ("dark", "light"):
        browsed.page.emulate_media(color_scheme=scheme)
        assert browsed.barriers() == [], f"{picture}, {scheme}"


def _end(browsed: Browsed, cluster: Cluster) -> None:
    """The browser had no complaint, and asked nobody else."""
    elsewhere = [url for url in browsed.requests if not url.startswith(f"{cluster.url}/")]
    assert (browsed.errors, elsewhere) == ([], [])
    browsed.page.context.close()


def test_from_the_answer_to_a_rank(browser: Any, cluster: Cluster) -> None:
    browsed, page = _opened(browser, cluster, "/", "#rank-card:not([hidden])")
    assert page.inner_text("h1").startswith(f"Rank {cluster.slow} on {cluster.slow_node} is slow in forward: ")
    assert "CPU cores" in page.inner_text("#todo")
    assert page.evaluate("document.getElementById('heat-canvas').clientHeight") < 600, "the map fits a screen"
    page.focus("#heat-canvas")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.locator("#rank-title", has_text="beside a peer").wait_for()
    opened = -(-cluster.ranks // (160 if cluster.ranks > 8 * 230 else 230))
    if opened > 1:
        page.locator("#zoom-words", has_text=f"{opened} of {cluster.ranks} ranks").wait_for()
        page.click("#zoom-out")
    page.fill("#rank", str(cluster.slow))
    page.keyboard.press("Enter")
    page.locator("#rank-title", has_text=f"Rank {cluster.slow} beside a peer").wait_for()
    assert (
        page.locator("#timeline tbody tr").first.inner_text().startswith(f"Rank {cluster.slow} on {cluster.slow_node}")
    )
    for order in ("position", "host"):
        page.select_option("#order", order)
        page.wait_for_url(f"**order={order}**")
        page.locator("#heat-explain", has_text="Each rank's own time").wait_for()
    failing = -(-cluster.nodes // 50)
    assert f"The checks of {failing} failed." in page.inner_text("#nodes-explain")
    assert f"{failing} finding" in page.inner_text("#findings-explain") and OUTSIDE not in page.inner_text("main")
    _look(browsed, f"large-job-{cluster.ranks}")
    _end(browsed, cluster)


def test_from_the_fleet_to_a_node_and_to_a_job(browser: Any, cluster: Cluster) -> None:
    browsed, page = _opened(browser, cluster, "/#view=fleet", "#jobs tbody tr")
    failing = -(-cluster.nodes // 50) + 1
    assert page.inner_text("h1:visible").startswith(f"{failing} of {cluster.nodes + 1} nodes fail the checks; 2 of ")
    assert page.locator("#tiles a").count() == cluster.nodes + 1
    assert page.locator("#tiles a[data-tone=fail]").count() == failing
    _look(browsed, f"large-fleet-{cluster.ranks}")
    last = f"gpu-{cluster.nodes - 1:04d}"
    page.fill("#find", last.upper())
    page.keyboard.press("Enter")
    page.locator("#nodes-explain", has_text="1 node has").wait_for()
    page.locator("#nodes tbody a", has_text=last).click()
    page.locator("#node-sentence", has_text=last).wait_for()
    page.go_back()
    page.fill("#find", "no such thing")
    page.keyboard.press("Enter")
    page.locator("#nodes-explain", has_text="0 nodes have").wait_for()
    page.fill("#find", "llama-0003")
    page.keyboard.press("Enter")
    page.locator("#jobs-explain", has_text="1 job of").wait_for()
    page.locator("#jobs tbody a", has_text="finetune-llama-0003").click()
    page.locator("h1:visible", has_text="No rank is slow").wait_for()
    chosen = page.locator("#job option:checked")
    assert "finetune-llama-0003" in chosen.inner_text(), "also a job far down the list is the one that is chosen"
    _end(browsed, cluster)
