"""Every view of the page at three sizes, light and dark: nothing is cut off, nothing bars a reader, the browser has no
complaint. `LAGGARD_SCREENSHOTS=DIR` keeps a picture of each in DIR; docs/screenshots has them, made smaller."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.browsing import OUT, Browsed, needs_chromium
from support.collectors import CollectorProcess, FakeAgent

from laggard.model import RankEnd

pytestmark = [pytest.mark.slow, needs_chromium]

SIZES = {"wide": (1440, 900), "tablet": (820, 1180), "phone": (390, 844)}
SCHEMES = ("light", "dark")
UUID = "f24ea483-3d25-4341-9af2-3b8a83418aea"
VIEWS = {
    "job": ("/?job=1000%3Apretrain-70b", "#rank-card:not([hidden])"),
    "rank": ("/?job=1000%3Apretrain-70b#measure=waited&order=host&zoom=0-16&rank=5", "#rank-card:not([hidden])"),
    "died": (f"/?job=1001%3A{UUID}", "#badge:text('Died first')"),
    "fleet": ("/#view=fleet", "#jobs tbody tr"),
    "node": ("/#node=gpu-03", "#node-facts div"),
    "no-node": ("/#node=nobody", "#node-sentence:text('No agent reports')"),
}
LOOKS = [(size, scheme) for size in SIZES for scheme in SCHEMES]


@pytest.fixture(scope="module")
def cluster(make: Any) -> Iterator[Any]:
    """Twelve nodes: two jobs, two nodes that fail, one of which also differs, and one that is silent."""
    agents = []
    for number in range(11):
        name = f"gpu-{number:02d}"
        documents = make.ranks_document(name, [])
        if number < 8:
            said = {"script": "pretrain.py", "started": time.time() - 7200}
            ranks = range(number * 8, number * 8 + 8)
            documents = make.node(name, ranks, 29, 64, job_id="pretrain-70b", owner=1000, facts=said)
        elif number == 8:
            documents = make.ranks_document(name, _died(make))
        codes = {3: ["GPU_THROTTLED", "PCIE_LINK_DEGRADED"], 9: ["ACS_ENABLED"]}.get(number, ())
        release = "5.15.0-113-generic" if number == 3 else "6.8.0-40-generic"
        identity = {"product": "DGX H100", "gpu_models": ["NVIDIA H100 80GB HBM3"], "kernel_release": release}
        facts = {"identity": identity, **({"ring": _ring()} if number == 0 else {})}
        report = structs.replace(make.report(name, codes), facts=facts)
        agents.append(FakeAgent(documents, report))
    targets = [word for agent in agents for word in ("--target", agent.address)]
    collector = CollectorProcess([*targets, "--target", "127.0.0.1:9", "--interval", "1"])
    collector.wait_ready()
    collector.wait_until(lambda: len(collector.get("/api/v1/findings").json()["findings"]) >= 4)
    collector.wait_until(lambda: len(collector.get("/api/v1/incidents").json()["incidents"]) == 2)
    yield collector
    collector.stop()
    for agent in agents:
        agent.close()


def _ring() -> dict[str, Any]:
    """As the probe `ring` tells of a ring of eight nodes that this one led: between two of them the link is slow."""
    nodes = [f"gpu-{number:02d}" for number in range(8)]
    rates = {(a, b): 48e9 - 1e9 * ((a * 5 + b) % 3) for a in range(8) for b in range(a + 1, 8)}
    rates[2, 5] = 9.5e9
    pairs = [[a, b, rate] for (a, b), rate in rates.items() if (a, b) != (0, 7)]
    measured = {"nodes": nodes, "size_bytes": 1 << 28, "pairs": pairs, "slow_nodes": [], "slow_links": [[2, 5]]}
    return {"age_seconds": 600.0, "nodes": 8, "pairs": measured}


def _died(make: Any) -> list[Any]:
    """Two ranks under a number of torchrun's; rank 1 ends with an exception."""
    steps = [make.step_row(step) for step in range(20)]
    job = {"job_id": UUID, "owner": 1001, "facts": {"script": "finetune.py", "started": time.time() - 600}}
    end = RankEnd(1.0, exit_code=1, exception="ValueError")
    dead = make.rank_row(1, 2, steps, state="died", phase="forward", end=end, **job)
    return [make.rank_row(0, 2, steps, **job), dead]


@pytest.mark.parametrize("view", VIEWS)
def test_every_size_and_scheme(browser: Any, cluster: Any, view: str) -> None:
    address, ready = VIEWS[view]
    for size, scheme in LOOKS:
        width, height = SIZES[size]
        look = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
        browsed = Browsed(browser, cluster.url + address, ready, **look)
        page = browsed.page
        page.locator(ready).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{view} is wider than a {size}"
        assert page.locator("h1:visible").count() == 1, f"{view}: one heading says what it is"
        barriers = browsed.barriers()
        assert barriers == [], f"{view}, {size}, {scheme}: {barriers}"
        keep(page, f"{view}-{size}-{scheme}")
        assert browsed.errors == [], f"{view}, {size}, {scheme}"
        page.context.close()


def keep(page: Any, name: str) -> None:
    folder = Path(os.environ.get("LAGGARD_SCREENSHOTS") or OUT)
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.jpg", type="jpeg", quality=60, full_page=True)


def test_a_link_opens_an_incident_with_its_job_by_name(browser: Any, cluster: Any) -> None:
    found = cluster.get("/api/v1/incidents").json()
    died = next(it for it in found["incidents"] if it["job_id"] == UUID)
    assert found["jobs"][f"1001:{UUID}"]["script"] == "finetune.py"
    browsed = Browsed(browser, f"{cluster.url}/#view=fleet&incident={died['id']}", f"#incident-{died['id']}")
    page = browsed.page
    box = page.locator(f"#incident-{died['id']}")
    assert box.get_attribute("open") is not None and "exit status 1 after ValueError" in box.inner_text()
    assert "finetune.py of 1001, since" in box.inner_text() and UUID not in box.inner_text()
    other = page.locator("#incidents details", has_text="pretrain-70b of")
    assert other.get_attribute("open") is None
    other.locator("summary").click()
    page.wait_for_timeout(1500)  # it is drawn anew meanwhile
    assert "Now, " in other.inner_text() and "its peers 0.050 s" in other.inner_text()
    other.get_by_role("link", name="What to change in this job").click()
    page.locator("#changes-card:not([hidden])").wait_for()
    page.locator("h1:visible", has_text="Rank 29 on gpu-03").wait_for()
    browsed = Browsed(browser, f"{cluster.url}/#incident=12", "#incidents-explain:text('Incident 12 is not known')")
    assert browsed.errors == []


def test_from_the_fleet_to_a_node_and_to_a_job(browser: Any, cluster: Any) -> None:
    browsed = Browsed(browser, cluster.url, "#nodes tbody tr")
    page = browsed.page
    page.get_by_role("link", name="Fleet", exact=True).click()
    page.locator("#jobs tbody tr").first.wait_for()
    sentence = page.inner_text("#fleet-sentence")
    assert sentence == "2 of 12 nodes fail the checks, 1 does not answer; 2 of 2 running jobs have a culprit."
    assert "Slow between gpu-02 and gpu-05." in page.inner_text("#rings-explain")
    assert page.locator("#matrix td[data-rate=slow]").all_inner_texts() == ["9.50", "9.50"], "a link has two cells"
    assert page.locator("#tiles a").count() == 12 and page.locator("#tiles a[data-tone=fail]").count() == 2
    pretrain = page.locator("#jobs tbody tr", has_text="pretrain-70b").inner_text()
    assert "Rank 29 on gpu-03 is slow in forward" in pretrain and "pretrain.py" in pretrain
    died = page.locator("#jobs tbody tr", has_text=UUID)
    assert died.locator("a").inner_text() == "finetune.py", "a job without a name of its own goes by its script"
    page.locator("#tiles a[data-tone=fail]").first.click()
    page.locator("#node-sentence", has_text="gpu-03 fails its checks.").wait_for()
    assert "24–31" in page.inner_text("#node-facts").replace("\u2060", "")
    assert page.locator("#findings article").count() == 3, "its own findings alone"
    assert "kernel release" in page.inner_text("#node-differs")
    assert "rank 29 on gpu-03" in page.inner_text("#incidents")
    assert browsed.errors == []
    page.go_back()
    page.locator("#jobs a", has_text="finetune.py").click()
    page.locator("#badge", has_text="Died first").wait_for()
    assert page.get_by_role("link", name="Job", exact=True).get_attribute("aria-current") == "page"
    assert page.locator("#job option", has_text="finetune.py").count() == 1
