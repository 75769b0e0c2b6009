"""The page for readers who do not tell all colours apart, who use the keyboard, or who hear it read."""

import base64
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.browsing import Browsed, needs_chromium
from support.large_cluster import made_snapshot, served, with_findings
from support.paths import DATA

pytestmark = [pytest.mark.slow, needs_chromium]

SLOW = 421 % 64
PHASES = ("input", "forward", "backward", "optimizer")
VIEWS = {
    "job": ("/", "#rank-card:not([hidden])", f"Rank {SLOW} on gpu-0004 is slow in forward"),
    "fleet": ("/#view=fleet", "#jobs tbody tr", "1 of 9 nodes holds up a job"),
    "node": ("/#node=gpu-0000", "#node-facts div", "gpu-0000 fails its checks"),
}

PIXELS = (DATA / "browser" / "pixels.js").read_text()

# The middle of each row's cells in the map, and the upper left corner of the first bar of each phase.
PLACES = (DATA / "browser" / "places.js").read_text()

TABBED = (DATA / "browser" / "tabbed.js").read_text()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """64 ranks on eight nodes, of which one slow; one of them and a ninth node fail their checks."""
    with served(with_findings(made_snapshot(64, steps=60))) as address:
        yield address


def _distance(one: list[int], other: list[int]) -> int:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_culprit_and_the_phases_are_told_apart(browser: Any, url: str, scheme: str) -> None:
    browsed = Browsed(browser, f"{url}/#zoom=32-40", "#rank-card:not([hidden])", color_scheme=scheme)
    page = browsed.page
    page.locator("#zoom-words", has_text="8 of 64 ranks").wait_for()
    places = page.evaluate(PLACES.replace("ROWS", "8"))
    eyes, reader = page.context.new_cdp_session(page), browser.new_page()
    near = {}
    for kind in ("achromatopsia", "protanopia", "deuteranopia", "tritanopia"):
        eyes.send("Emulation.setEmulatedVisionDeficiency", {"type": kind})
        shot = base64.b64encode(page.screenshot(full_page=True)).decode()
        seen = reader.evaluate(PIXELS, [shot, places])
        rows, phases = seen[:8], dict(zip(PHASES, seen[8:], strict=True))
        culprit = rows.pop(SLOW - 32)
        if kind == "achromatopsia":
            assert max(culprit) - min(culprit) < 8, f"no colour is seen, and still {culprit}: is this kind imitated?"
        assert min(_distance(culprit, peer) for peer in rows) > 120, f"{kind}: the culprit {culprit} is like its peers"
        pairs = itertools.combinations(phases, 2)
        near[kind] = [pair for pair in pairs if _distance(*(phases[name] for name in pair)) < 60]
    without_colour = near.pop("achromatopsia")
    assert not any(near.values()), f"phases whose colours are alike: {near}"
    signs = page.locator("#timeline .legend-key i:not(.part-waited)").all_inner_texts()
    assert len(set(signs)) == len(signs) == 4, (
        f"each phase that has time has a letter: in grey {without_colour} are alike"
    )
    drawn = set(page.locator("#timeline .letter").all_text_contents())
    assert {"F", "B"} <= drawn <= set(signs), "the letter stands in each bar that has room for it"
    assert page.locator("#timeline rect.part-waited").first.get_attribute("fill") == "url(#waiting)", (
        "waiting is striped"
    )
    reader.close()
    page.context.close()


@pytest.mark.parametrize(
    ("view", "reached"),
    [
        ("job", ("to-fleet", "heat-canvas", "order", "rank", "button copy")),
        ("fleet", ("to-job", "find", "named", "button copy")),
    ],
)
def test_the_tab_key_reaches_what_can_be_used_and_shows_where_it_is(
    browser: Any, url: str, view: str, reached: tuple[str, ...]
) -> None:
    address, ready, _ = VIEWS[view]
    page = Browsed(browser, url + address, ready).page
    walked = []
    for _ in range(120):
        page.keyboard.press("Tab")
        walked.append(page.evaluate(TABBED))
        if walked[-1][1] == "BODY":
            break
    names = [name for name, _, _ in walked]
    assert set(reached) <= set(names), f"not reached: {set(reached) - set(names)} among {names}"
    assert [name for name, tag, shown in walked if tag != "BODY" and not shown] == [], "focus is not shown there"
    assert names.index("to-job") < names.index(reached[1]), "the views come before what is in them"
    page.context.close()


@pytest.mark.parametrize("view", VIEWS)
def test_a_screen_reader_hears_the_answer_first(browser: Any, url: str, view: str) -> None:
    address, ready, answer = VIEWS[view]
    page = Browsed(browser, url + address, ready).page
    page.locator("h1:visible", has_text=answer).wait_for()
    heard = page.locator("main").aria_snapshot()
    headings = re.findall(r'heading "([^"]*)" \[level=(\d)\]', heard)
    assert headings[0][0].startswith(answer) and headings[0][1] == "1", heard[:600]
    assert [level for _, level in headings].count("1") == 1, "one heading says what the view is"
    before = heard[: heard.index("heading ")]
    assert not re.search(r"\b(table|link|button|textbox|img)\b", before), f"before the answer: {before}"
    if view == "job":
        titles = [title for title, _ in headings]
        assert titles.index("What to do") == 1 and titles.index("Ranks by step") == 2, titles
        assert f'img "Heat map of 64 ranks by 60 steps. {answer}' in heard, "the map is named, with what it shows"
        assert 'button "Copy the commands for GPU_XID"' in heard
    page.context.close()
