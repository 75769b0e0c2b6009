"""Every view of the page at four sizes, light and dark: nothing is cut off, nothing bars a reader, the browser has no
complaint. A picture of each is kept."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec import structs
from support.browsing import OUT, Browsed, needs_chromium
from support.collectors import CollectorProcess, FakeAgent
from support.daemons import laggard
from support.paths import TESTS
from support.steps import StepRow

from laggard.model import Finding, RankEnd, Report, Verdict
from laggard.wire import decode, encode
from laggard.wire.ranks import CollectiveLane, CollectiveRow, CollectivesDocument, RankCollectives, RanksDocument

pytestmark = [pytest.mark.slow, needs_chromium]

SIZES = {"large": (1920, 1080), "wide": (1440, 900), "tablet": (820, 1180), "phone": (390, 844)}
SCHEMES = ("light", "dark")
UUID = "f24ea483-3d25-4341-9af2-3b8a83418aea"
VIEWS = {
    "job": ("/?job=2001%3Apretrain-70b", "#rank-card:not([hidden])"),
    "rank": ("/?job=2001%3Apretrain-70b#measure=waited&order=host&zoom=0-16&rank=5", "#rank-card:not([hidden])"),
    "died": (f"/?job=2002%3A{UUID}", "#badge:text('Died first')"),
    "fleet": ("/#view=fleet", "#jobs tbody tr"),
    "node": ("/#node=gpu-03", "#node-facts div"),
    "no-node": ("/#node=nobody", "#node-sentence:text('No agent reports')"),
    "report": ("the kept page", "#timeline > *"),
}
LOOKS = [(size, scheme) for size in SIZES for scheme in SCHEMES]


SLOW, STEPS = 29, 60
FINDINGS = decode((TESTS / "data" / "pages" / "findings.json").read_bytes(), dict[int, tuple[Finding, ...]])
"""By node, in the words of the probes on the recorded machines gpu_throttled, pcie_gpu_narrow and acs_on."""


class TrainingAgent(FakeAgent):
    """It also has the collectives of the ranks of pretrain-70b, for whichever of them it is asked."""

    def __init__(self, ranks: Callable[[float], RanksDocument] | RanksDocument, report: Report) -> None:
        super().__init__(self._told, report)
        self._documents, self._rows = ranks, dict[int, Sequence[StepRow]]()

    def _told(self, since: float) -> RanksDocument:
        document = self._documents(since) if callable(self._documents) else self._documents
        self._rows = {row.rank: getattr(row, "rows", ()) for row in document.ranks}
        return document

    def answer(self, path: str) -> bytes | None:
        if not path.startswith("/api/v1/collectives"):
            return super().answer(path)
        ranks = [int(number) for number in parse_qs(urlsplit(path).query)["rank"]]
        node = f"gpu-{ranks[0] // 8:02d}"
        found = tuple(collectives(rank, self._rows[rank]) for rank in ranks)
        return encode(CollectivesDocument(node, 2001, "pretrain-70b", found))


def steps_of(rank: int) -> list[StepRow]:
    """Steps of 0.25 s: the ranks differ by some milliseconds, and SLOW needs 0.1 s more from step 12 on."""
    rows = []
    for step in range(STEPS):
        noise = 0.0005 * ((rank * 7 + step * 13) % 11)
        extra = noise + (0.1 if rank == SLOW and step >= 12 else 0.0)
        start = 100.0 + 0.25 * step
        phases = (0.01, 0.05 + extra, 0.08 - noise / 2, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0)
        rows.append(StepRow(step, start, start + 0.25, phases, max(0.0, 0.25 - sum(phases))))
    return rows


def collectives(rank: int, steps: Sequence[StepRow]) -> RankCollectives:
    """In each step an all_gather before the forward pass and an all_reduce at its end, where the others wait."""
    lanes = (CollectiveLane("all_gather", "fsdp", "fsdp:0-63", -1), CollectiveLane("all_reduce", "dp", "dp:0-63", -1))
    rows = []
    for step in steps:
        work = step.start + sum(step.phases)
        rows.append(CollectiveRow(step.step, 0, step.step, step.start + 0.01, step.start + 0.022, 0.0, 1 << 24))
        rows.append(CollectiveRow(step.step, 1, step.step, work - 0.012, step.end - 1e-4, step.waited, 1 << 26))
    return RankCollectives(rank, lanes, tuple(rows))


@pytest.fixture(scope="module")
def cluster(make: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Twelve nodes: two jobs, two nodes that fail, one of which also differs, and one that is silent."""
    agents = []
    for number in range(11):
        name = f"gpu-{number:02d}"
        documents = make.ranks_document(name, [])
        if number < 8:
            said = {"script": "pretrain.py", "started": time.time() - 7200}
            its = {"node": name, "job_id": "pretrain-70b", "owner": 2001, "facts": said}
            ranks = [make.rank_row(it, 64, steps_of(it), **its) for it in range(number * 8, number * 8 + 8)]
            documents = make.going_on(make.ranks_document(name, ranks))
        elif number == 8:
            documents = make.ranks_document(name, _died(make, name))
        release = "5.15.0-113-generic" if number == 3 else "6.8.0-40-generic"
        identity = {"product": "DGX H100", "gpu_models": ["NVIDIA H100 80GB HBM3"], "kernel_release": release}
        facts = {"identity": identity, **({"ring": _ring()} if number == 0 else {})}
        agents.append(TrainingAgent(documents, _report(make.report(name), FINDINGS.get(number, ()), facts)))
    targets = [word for agent in agents for word in ("--target", agent.address)]
    config = tmp_path_factory.mktemp("collector") / "collector.yaml"
    config.write_text(f"incidents_database: {config.parent / 'incidents.sqlite'}\n")
    collector = CollectorProcess(
        config.parent / "log", [*targets, "--target", "127.0.0.1:9", "--interval", "1", "--config", str(config)]
    )
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


def _report(healthy: Report, findings: Sequence[Finding], facts: dict[str, Any]) -> Report:
    return structs.replace(
        healthy, verdict=Verdict.FAIL if findings else Verdict.OK, findings=tuple(findings), facts=facts
    )


def _died(make: Any, node: str) -> list[Any]:
    """Two ranks under a number of torchrun's; rank 1 ends with an exception."""
    steps = [make.step_row(step) for step in range(20)]
    job = {
        "node": node,
        "job_id": UUID,
        "owner": 2002,
        "facts": {"script": "finetune.py", "started": time.time() - 600},
    }
    end = RankEnd(time.time() - 90, exit_code=1, exception="ValueError")
    dead = make.rank_row(1, 2, steps, state="died", phase="forward", end=end, **job)
    return [make.rank_row(0, 2, steps, **job), dead]


def _address(cluster: Any, view: str, folder: Path) -> str:
    """Of the view; the kept page is made first."""
    if view != "report":
        return str(cluster.url) + VIEWS[view][0]
    job, page = "2001:pretrain-70b", folder / "pretrain-70b.html"
    done = laggard("locate", "--collector", cluster.url, "--job", job, "--html", page)
    assert done.returncode == 1, done.stderr
    return page.as_uri()


@pytest.mark.parametrize("view", VIEWS)
def test_every_size_and_scheme(browser: Any, cluster: Any, view: str, tmp_path: Path) -> None:
    address, ready = _address(cluster, view, tmp_path), VIEWS[view][1]
    for size, scheme in LOOKS:
        width, height = SIZES[size]
        look = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
        browsed = Browsed(browser, address, ready, **look)
        page = browsed.page
        page.locator(ready).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{view} is wider than a {size}"
        if view == "report":
            assert "in all_reduce of dp:0-63" in page.inner_text("#waits-sentence"), "the agents were asked for it"
        assert page.locator("h1:visible").count() == 1, f"{view}: one heading says what it is"
        barriers = browsed.barriers()
        assert barriers == [], f"{view}, {size}, {scheme}: {barriers}"
        keep(page, f"{view}-{size}-{scheme}")
        assert browsed.errors == [], f"{view}, {size}, {scheme}"
        page.context.close()


def keep(page: Any, name: str) -> None:
    """In out/; of the job also README's picture, which is docs/page.png."""
    OUT.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=OUT / f"{name}.jpg", type="jpeg", quality=60, full_page=True)
    if name == "job-wide-light":
        page.screenshot(path=OUT / "page.png", full_page=True, clip={"x": 120, "y": 0, "width": 1200, "height": 1330})


def test_a_link_opens_an_incident_with_its_job_by_name(browser: Any, cluster: Any) -> None:
    found = cluster.get("/api/v1/incidents").json()
    died = next(it for it in found["incidents"] if it["job_id"] == UUID)
    assert found["jobs"][f"2002:{UUID}"]["script"] == "finetune.py"
    of_node = {node: cluster.get("/api/v1/incidents", node=node).json()["incidents"] for node in ("gpu-08", "gpu-01")}
    assert [it["id"] for it in of_node["gpu-08"]] == [died["id"]] and of_node["gpu-01"] == []
    browsed = Browsed(browser, f"{cluster.url}/#view=fleet&incident={died['id']}", f"#incident-{died['id']}")
    page = browsed.page
    box = page.locator(f"#incident-{died['id']}")
    assert box.get_attribute("open") is not None and "exit status 1 after ValueError" in box.inner_text()
    assert "finetune.py of 2002, since" in box.inner_text() and UUID not in box.inner_text()
    other = page.locator("#incidents details", has_text="pretrain-70b of")
    assert other.get_attribute("open") is None
    other.locator("summary").click()
    page.wait_for_timeout(1500)  # it is drawn anew meanwhile
    assert "Now, " in other.inner_text() and "its peers 5" in other.inner_text()
    other.get_by_role("link", name="What to change in this job").click()
    page.locator("#changes-card:not([hidden])").wait_for()
    page.locator("h1:visible", has_text="Rank 29 on gpu-03").wait_for()
    browsed = Browsed(browser, f"{cluster.url}/#incident=12", "#incidents-explain:text('Incident 12 is not known')")
    assert browsed.errors == []


@pytest.mark.parametrize("width, height", [(1280, 720), (390, 844)])
def test_the_first_screen_of_the_fleet_names_the_culprits(browser: Any, cluster: Any, width: int, height: int) -> None:
    browsed = Browsed(browser, f"{cluster.url}/#view=fleet", "#answers li", viewport={"width": width, "height": height})
    page = browsed.page
    lines = page.locator("#answers li")
    assert lines.locator("a").all_inner_texts() == ["pretrain-70b", "finetune.py"], "what loses most is first"
    assert f"Rank {SLOW} on gpu-03 is slow in forward" in lines.first.inner_text()
    bottoms = [lines.nth(place).bounding_box() for place in range(2)]
    assert all(box and box["y"] + box["height"] < height / 2 for box in bottoms)
    heading = page.locator("#fleet-sentence").bounding_box()
    assert heading and bottoms[1] and heading["y"] > bottoms[1]["y"], "they stand above everything else"
    tones = {tone: page.locator(f"#tiles-named [data-tone={tone}] i").first for tone in ("culprit", "fail")}
    colours = [mark.evaluate("it => getComputedStyle(it).backgroundColor") for mark in tones.values()]
    fit = page.locator("#tiles-legend [data-tone=ok]").evaluate("it => getComputedStyle(it).backgroundColor")
    assert len({*colours, fit}) == 3, "a third tone"
    assert "1 holding up a job" in page.inner_text("#tiles-legend")
    assert browsed.errors == []


def test_a_job_says_since_when_and_what_it_cost(browser: Any, cluster: Any) -> None:
    browsed = Browsed(browser, f"{cluster.url}/?job=2001%3Apretrain-70b", "#figures dt:text('named first')")
    figures = browsed.page.inner_text("#figures")
    opened = next(it for it in cluster.get("/api/v1/incidents").json()["incidents"] if it["job_id"] == "pretrain-70b")
    shown = "(at) => new Date(1000 * at).toLocaleTimeString(undefined, { timeStyle: 'short' })"
    assert browsed.page.evaluate(shown, opened["opened_at"]) in figures
    assert "ago, since step " in figures and "GPU-hours lost so far" in figures


def test_from_the_fleet_to_a_node_and_to_a_job(browser: Any, cluster: Any) -> None:
    browsed = Browsed(browser, cluster.url, "#nodes tbody tr")
    page = browsed.page
    page.get_by_role("link", name="Fleet", exact=True).click()
    page.locator("#jobs tbody tr").first.wait_for()
    sentence = page.inner_text("#fleet-sentence")
    nodes = "1 of 12 nodes holds up a job, 1 more fails the checks, 1 does not answer"
    assert sentence == f"{nodes}; 2 of 2 running jobs have a culprit."
    assert "Slow between gpu-02 and gpu-05." in page.inner_text("#rings-explain")
    assert page.locator("#matrix td[data-rate=slow]").all_inner_texts() == ["9.50", "9.50"], "a link has two cells"
    named = page.locator("#tiles-named a").all_inner_texts()
    assert [text.split()[0] for text in named[:3]] == ["gpu-03", "gpu-09", "127.0.0.1:9"], "culprits, then what fails"
    assert len(named) == 3 and "ACS_ENABLED" in named[1], "a failing node stands with its finding"
    assert page.inner_text("#tiles-fit") == "9 nodes fit", "gpu-08, where a job's own code failed, is one of them"
    assert page.locator("#tiles-ok a:visible").count() == 0
    page.click("#tiles-fit")
    assert page.locator("#tiles-ok a:visible").count() == 9
    assert page.locator("#nodes tbody tr").count() == 3
    assert f"rank {SLOW} on gpu-03 is slow in forward (job pretrain-70b)" in page.inner_text("#nodes")
    pretrain = page.locator("#jobs tbody tr", has_text="pretrain-70b").inner_text()
    assert f"Rank {SLOW} on gpu-03 is slow in forward" in pretrain and "pretrain.py" in pretrain
    died = page.locator("#jobs tbody tr", has_text=UUID)
    assert died.locator("a").inner_text() == "finetune.py", "a job without a name of its own goes by its script"
    page.locator("#tiles-named a", has_text="gpu-03").click()
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
