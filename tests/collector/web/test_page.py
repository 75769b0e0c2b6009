"""The page in Chromium: its scripts, pixels and layout; clicks, zoom and links."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from support.browsing import Browsed, needs_chromium

from laggard.model import Fix

pytestmark = [pytest.mark.slow, needs_chromium]

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"
Start = Callable[..., Any]


def row_colours(page: Any, rows: int) -> list[list[list[int]]]:
    """The colours along the middle of each row of the map, well inside of it."""
    return page.evaluate(  # type: ignore[no-any-return]
        """(rows) => {
            const canvas = document.getElementById("heat-canvas");
            const pen = canvas.getContext("2d");
            const height = (canvas.height - 26 * devicePixelRatio) / rows;
            const pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data;
            const at = (x, y) => {
                const place = 4 * (Math.floor(y) * canvas.width + Math.floor(x));
                return Array.from(pixels.slice(place, place + 3));
            };
            const columns = Array.from({ length: 40 }, (_, n) => canvas.width * (0.3 + 0.6 * n / 40));
            return Array.from({ length: rows }, (_, r) => columns.map((x) => at(x, height * (r + 0.35))));
        }""",
        rows,
    )


@pytest.fixture
def slow_job(watching: Start, fake_agent: Start, make: Any) -> Any:
    agents = [
        fake_agent(make.training("n0", [0, 1], slow=2), make.report("n0")),
        fake_agent(make.training("n1", [2, 3], slow=2), make.report("n1", ["GPU_THROTTLED", "PCIE_LINK_DEGRADED"])),
    ]
    return watching(*agents, "127.0.0.1:9")


def _distance(one: list[int], other: list[int]) -> int:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.spine
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_slow_rank_stands_out(browser: Any, slow_job: Any, scheme: str) -> None:
    browsed = Browsed(browser, slow_job.url, color_scheme=scheme)
    page = browsed.page
    assert page.text_content("h1").startswith("Rank 2 on n1 is slow in forward: ")
    assert page.get_attribute("#answer", "data-verdict") == "fail"
    rows = row_colours(page, 4)
    medians = [sorted(row, key=sum)[len(row) // 2] for row in rows]
    for other in (0, 1, 3):
        assert _distance(medians[2], medians[other]) > 150
        assert _distance(medians[other], medians[0]) < 30
    assert "GPU_THROTTLED" in page.text_content("#nodes")
    assert "The job runs on these nodes. 2 agents answer." in page.inner_text("#nodes-explain")
    assert "1 agent never said which node it is on: see the fleet." in page.inner_text("#nodes-explain")
    page.locator("#incidents details", has_text="rank 2 on n1 is slow in forward").wait_for()
    assert "open" in page.inner_text("#incidents")
    page.locator("#incidents summary").click()
    story = page.inner_text("#incidents details")
    assert "in forward, its peers 50.0 ms" in story and "GPU_THROTTLED" in story and "What to do: " in story
    assert "1 open, 0 closed." in page.inner_text("#incidents-explain")
    browsed.screenshot(f"page-slow-rank-{scheme}")
    page.get_by_role("link", name="Fleet", exact=True).click()
    down = page.locator("#nodes tbody tr", has_text="127.0.0.1:9")
    down.wait_for()
    assert "down" in down.inner_text() and "connection refused" in down.inner_text()
    assert browsed.errors == []


def test_pointer_keys_table_and_measures(browser: Any, slow_job: Any) -> None:
    browsed = Browsed(browser, slow_job.url)
    page = browsed.page
    page.hover("#heat-canvas", position={"x": 600, "y": 75})
    tip = page.inner_text("#heat-tip")
    assert "Rank 2 on n1" in tip and "forward" in tip and "1.67× the median" in tip
    browsed.screenshot("page-tip")
    page.focus("#heat-canvas")
    page.keyboard.press("Escape")
    assert page.is_hidden("#heat-tip")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "Rank 1 on n0" in page.inner_text("#heat-tip")
    for measure, words in (("waited", "of the step"), ("forward", "against the median rank in the same step")):
        page.check(f"input[value={measure}]", force=True)
        page.locator("#legend-words", has_text=words).wait_for()
    page.click("summary")
    first = page.inner_text("#heat-table tbody tr:first-child")
    assert first.startswith("2\tn1\trunning") and "forward, +100" in first
    assert browsed.errors == []


def test_without_scripts_the_answer_is_there(browser: Any, slow_job: Any) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(slow_job.url)
    assert page.text_content("h1").startswith("Rank 2 on n1 is slow in forward: ")
    assert "/api/v1/nodes" in page.inner_text("#heat-empty")


def test_no_agent_no_rank_and_a_collector_that_dies(browser: Any, watching: Start) -> None:
    collector = watching("127.0.0.1:9", "127.0.0.1:10")
    browsed = Browsed(browser, collector.url)
    page = browsed.page
    assert page.text_content("h1") == "Cannot tell: no agent answers (2 of 2 down)."
    assert page.is_hidden("#heat") and page.is_visible("#heat-empty")
    assert page.is_hidden("#incidents-card") and page.is_hidden("#changes-card"), "an empty card is not drawn"
    browsed.screenshot("page-no-agent")
    assert browsed.errors == []
    collector.stop()
    page.wait_for_selector("#fresh[data-state=lost]")
    assert "has not answered" in page.text_content("#fresh")
    browsed.screenshot("page-collector-lost")


def test_hostile_text_is_text(browser: Any, watching: Start, fake_agent: Start, make: Any) -> None:
    documents = make.node(HOSTILE, [0, 1], slow=1, world_size=2, job_id=HOSTILE)
    agent = fake_agent(documents, make.report(HOSTILE, [HOSTILE]))
    other = fake_agent(make.node("n1", [0, 1], world_size=2, job_id="other"), make.report("n1"))
    collector = watching(agent, other)
    browsed = Browsed(browser, f"{collector.url}/?job=1000:{HOSTILE}")
    page = browsed.page
    page.wait_for_selector("#heat-canvas")
    assert HOSTILE in page.text_content("h1") and HOSTILE in page.text_content("#nodes")
    assert HOSTILE in page.text_content("#job") and page.locator("main img").count() == 0
    assert page.title() != "taken"
    browsed.screenshot("page-hostile")
    page.select_option("#job", "1000:other")
    page.locator("h1", has_text="No rank is slow").wait_for()
    assert browsed.errors == []


def test_what_is_well_is_one_line_that_opens(browser: Any, watching: Start, fake_agent: Start, make: Any) -> None:
    """A dozen nodes with a job each, on a phone: their number, and a screen or two."""
    agents = [
        fake_agent(make.node(f"n{number}", [0, 1], world_size=2, job_id=f"job{number}"), make.report(f"n{number}"))
        for number in range(12)
    ]
    collector = watching(*agents)
    browsed = Browsed(browser, f"{collector.url}/#view=fleet", viewport={"width": 390, "height": 844})
    page = browsed.page
    for table, button, words in (
        ("jobs", "jobs-fold", "12 jobs without a culprit"),
        ("nodes", "nodes-more", "12 nodes"),
    ):
        page.locator(f"#{button}", has_text=f"Show {words}").wait_for()
        assert page.locator(f"#{table} tbody tr").count() == 0 and page.is_hidden(f"#{table}")
    height = page.evaluate("document.documentElement.scrollHeight")
    assert height < 2 * 844, height
    browsed.screenshot("page-all-well-phone")
    for table, button in (("jobs", "jobs-fold"), ("nodes", "nodes-more")):
        page.click(f"#{button}")
        page.locator(f"#{table} tbody tr").nth(11).wait_for()
    assert page.evaluate("document.documentElement.scrollHeight") > 2 * height
    assert browsed.errors == []


def test_an_outlier_is_listed_under_the_nodes(browser: Any, watching: Start, fake_agent: Start, make: Any) -> None:
    agents = []
    for number in range(5):
        identity = {"product": "DGX H100", "gpu_models": ["NVIDIA H100 80GB HBM3"]}
        release = HOSTILE if number == 3 else "5.15.0-113-generic"
        report = structs.replace(make.report(f"n{number}"), facts={"identity": {**identity, "kernel_release": release}})
        agents.append(fake_agent(make.node(f"n{number}", [number], slow=3, world_size=5), report))
    lone = structs.replace(make.report("a100"), facts={"identity": {"product": "DGXA100"}})
    agents.append(fake_agent(make.ranks_document("a100", []), lone))
    collector = watching(*agents)
    browsed = Browsed(browser, f"{collector.url}/#view=fleet", "#fleet li")
    lines = browsed.page.locator("#fleet li").all_inner_texts()
    assert lines[0].startswith("n3: kernel release is <script>") and "4 of 5 nodes of the same hardware" in lines[0]
    assert lines[1].startswith("1 node of DGXA100 (a100): 3 are needed to compare")
    assert browsed.page.locator("#nodes tr", has_text="n3").locator(".code").all_inner_texts() == ["FLEET_OUTLIER"]
    browsed.screenshot("page-fleet")
    browsed = Browsed(browser, collector.url, "#fleet li")
    assert [line[:3] for line in browsed.page.locator("#fleet li").all_inner_texts()] == ["n3:"], (
        "the job's nodes alone"
    )
    assert browsed.errors == []


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
