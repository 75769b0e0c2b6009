"""`laggard locate --html`: one page that loads nothing, from every source, in a real browser."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.browsing import Browsed, needs_chromium
from support.daemons import laggard
from support.flight_recorder import dump, entry, write_dumps
from support.kineto import document, gpu_rank
from support.kineto import write as write_trace
from support.paths import DATA
from support.recordings import lines, write

from laggard.collector.web.page_html import bundle

NUMBERS = ("03323151-ff7e-41d6-958e-23a6d3593d8b", "job-d2a29fed3bf2")
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"


def _recording(tmp_path: Path, ranks: int = 4, slow: int | None = 2) -> Path:
    records = [record for rank in range(ranks) for record in lines(rank, 0.08 if rank == slow else 0.0)]
    for record in records:
        if record["kind"] == "rank":
            record["groups"]["g"]["ranks"] = list(range(ranks))
    return write(tmp_path / "job.jsonl", records)


def _opened(browser: Any, file: Path, **context: Any) -> Browsed:
    browsed = Browsed(browser, file.as_uri(), ready="#timeline > *", **context)
    assert browsed.requests == [file.as_uri()], "the page asked for something beside itself"
    return browsed


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_recording_becomes_one_page_with_the_answer_first(browser: Any, tmp_path: Path, scheme: str) -> None:
    found = laggard("locate", "--trace", _recording(tmp_path), "--html", tmp_path / "job.html")
    assert found.returncode == 1 and found.stderr == ""
    browsed = _opened(browser, tmp_path / "job.html", color_scheme=scheme)
    page = browsed.page
    assert page.inner_text("h1").startswith("Rank 2 on n2 is slow in forward: fixing it would save 80 ms")
    assert "CPU cores" in page.inner_text("#todo")
    assert "180 ms a step in forward, its peers 100 ms" in page.inner_text("#evidence")
    rows = page.locator(".timeline-table tbody tr").all_inner_texts()
    assert rows[0].startswith("Rank 2 on n2\t180 ms") and "all_reduce of g, 8 times" in rows[0]
    assert rows[1].startswith("Rank 0 on n0, a peer\t100 ms")
    assert page.locator("#timeline .span").count() == 16, "each step's all_reduce of both ranks, at its own time"
    said = page.inner_text("#waits-sentence")
    assert said == "Rank 0 waits the longest in all_reduce of g: 1.60 s; rank 2 waits 0.96 s, so it comes last.", said
    page.check("input[value=waited]", force=True)
    assert "of the step" in page.inner_text("#legend-words")
    browsed.screenshot(f"kept-page-{scheme}")
    assert browsed.barriers() == []
    assert browsed.errors == []


@pytest.mark.slow
@needs_chromium
def test_without_scripts_the_answer_is_there(browser: Any, tmp_path: Path) -> None:
    laggard("locate", "--trace", _recording(tmp_path), "--html", tmp_path / "job.html")
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto((tmp_path / "job.html").as_uri())
    assert page.inner_text("h1").startswith("Rank 2 on n2 is slow in forward")
    assert "CPU cores" in page.inner_text("#todo") and "Ranks 0-1 and 3 wait for it" in page.inner_text("#evidence")


@pytest.mark.slow
@needs_chromium
def test_a_collectors_job_brings_findings_and_what_to_change(
    browser: Any, tmp_path: Path, watching: Callable[..., Any], fake_agent: Callable[..., Any], make: Any
) -> None:
    agents = [
        fake_agent(make.node("n0", [0, 1], slow=2, job_id=HOSTILE), make.report("n0", ["GPU_TOO_HOT"])),
        fake_agent(make.node("n1", [2, 3], slow=2, job_id=HOSTILE), make.report("n1", ["GPU_THROTTLED"])),
    ]
    facts = {"script": "finetune.py", "started": 1_764_054_240.0}
    agents += [
        fake_agent(make.node(f"m{at}", [0], job_id=name, world_size=1, facts=facts)) for at, name in enumerate(NUMBERS)
    ]
    collector = watching(*agents)
    found = laggard("locate", "--collector", collector.url, "--job", HOSTILE, "--html", tmp_path / "job.html")
    assert found.returncode == 1, found.stderr
    browsed = _opened(browser, tmp_path / "job.html")
    page = browsed.page
    assert page.inner_text("h1").startswith("Rank 2 on n1 is slow in forward")
    assert "GPU_THROTTLED gpu0 on n1" in page.inner_text(".findings-list") and "replace it" in page.inner_text("main")
    assert "GPU_TOO_HOT" not in page.inner_text("main")  # of a node that is no culprit
    link = page.get_by_role("link", name="GPU_THROTTLED gpu0 on n1")
    assert link.get_attribute("href") == f"{collector.url}/findings/GPU_THROTTLED"
    assert HOSTILE in page.inner_text(".job") and page.title() != "taken" and page.locator("img").count() == 0
    assert browsed.errors == []
    live = Browsed(browser, collector.url, ready="#job option:nth-child(3)").page
    named = live.locator("#job option").all_inner_texts()
    assert sum(name.startswith("finetune.py (") for name in named) == 2, named
    assert any(name.endswith("has a culprit)") for name in named), named


AXIS = (DATA / "browser" / "axis.js").read_text()


@pytest.mark.slow
@needs_chromium
def test_a_long_healthy_jobs_page_has_numbers_of_steps_and_no_empty_card(browser: Any, tmp_path: Path) -> None:
    """331 steps in, and two steps a column: no column begins with a round number of steps."""
    records = [record for rank in range(2) for record in lines(rank, steps=200)]
    for record in records:
        if "step" in record:
            record["step"] += 331
    found = laggard("locate", "--trace", write(tmp_path / "job.jsonl", records), "--html", tmp_path / "job.html")
    assert found.returncode == 0, found.stdout + found.stderr
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.add_init_script(AXIS)
    page.goto((tmp_path / "job.html").as_uri())
    page.wait_for_function("window.written.includes('step')")
    steps = [int(text) for text in page.evaluate("window.written") if text.isdecimal() and int(text) > 100]
    assert len(set(steps)) > 3 and all(331 <= step <= 530 and step % 5 == 0 for step in steps), steps
    assert not page.is_visible("#timeline-title") and not page.is_visible("text=Nothing is recorded")


@pytest.mark.slow
@needs_chromium
def test_a_hang_from_dumps_has_a_page_without_steps(browser: Any, tmp_path: Path) -> None:
    group = ("0", "default_pg", (0, 1))
    dumps = {
        0: dump([group], [entry(("0", "default_pg"), "all_reduce", 7, "started")], {0: (7, 6)}),
        1: dump([group], [entry(("0", "default_pg"), "all_reduce", 6)], {0: (6, 6)}),
    }
    folder = write_dumps(tmp_path / "dumps", dumps)
    found = laggard("locate", "--trace", folder, "--html", tmp_path / "hang.html")
    assert found.returncode in (1, 2), found.stderr
    browsed = _opened(browser, tmp_path / "hang.html")
    assert "ank 1" in browsed.page.inner_text("h1") and "×" not in browsed.page.inner_text("#answer")
    assert "no heat map" in browsed.page.inner_text("#heat-empty")
    browsed.screenshot("kept-page-hang")
    assert browsed.barriers() == []
    assert browsed.errors == []


def test_what_cannot_be_written_leaves_the_old_page(tmp_path: Path) -> None:
    recording = _recording(tmp_path)
    page = tmp_path / "job.html"
    page.mkdir()
    (page / "kept").touch()
    found = laggard("locate", "--trace", recording, "--html", page)
    assert found.returncode == 64 and found.stderr.count("\n") == 1 and "cannot write" in found.stderr
    gone = tmp_path / "no" / "job.html"
    assert "No such file or directory" in laggard("locate", "--trace", recording, "--html", gone).stderr
    assert sorted(os.listdir(tmp_path)) == ["job.html", "job.jsonl"], "a half-written file was left"


def test_json_stays_one_document_beside_the_page(tmp_path: Path) -> None:
    recording, page = _recording(tmp_path, slow=None), tmp_path / "job.html"
    found = laggard("locate", "--trace", recording, "--html", page, "--format", "json")
    assert found.returncode == 0 and found.stdout.count("\n") == 1 and found.stdout.startswith("{")
    assert "No rank is slow" in page.read_text()


def test_modules_are_bundled_in_the_order_of_their_imports() -> None:
    modules = {
        "a.js": 'import { two } from "./b.js";\nimport { one } from "./c.js";\nconst x = one + two;\n',
        "b.js": 'import { one } from "./c.js";\nconst x = 1;\nexport const two = one + x;\n',
        "c.js": "export function one() {}\n",
    }
    script = bundle("a.js", modules)
    assert script.index("module_c =") < script.index("module_b =") < script.index("module_a =")
    assert "import" not in script and "export" not in script
    with pytest.raises(ValueError, match="cannot be bundled"):
        bundle("a.js", {"a.js": 'import * as all from "./b.js";\n'})


@pytest.mark.slow
@needs_chromium
def test_profiler_traces_become_a_page(browser: Any, tmp_path: Path) -> None:
    for rank in range(4):
        events = gpu_rank(rank, 0.08 if rank == 1 else 0.06, 0.08, group=range(4))
        write_trace(tmp_path / f"{rank}.json.gz", document(rank, 4, events))
    found = laggard("locate", "--trace", *sorted(tmp_path.glob("*.json.gz")), "--html", tmp_path / "traces.html")
    assert found.returncode == 1, found.stderr
    browsed = _opened(browser, tmp_path / "traces.html")
    assert "Rank 1 is slow" in browsed.page.inner_text("h1")
    assert browsed.page.locator(".timeline .asked").text_content() == "Rank 1"
    assert browsed.page.locator(".job").text_content() == "", "traces say nothing of a job"
    assert browsed.errors == []
