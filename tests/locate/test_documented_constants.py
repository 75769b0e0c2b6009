"""docs/development/constants.md tells the thresholds of the verdict, as the code has them."""

import math
import re

import numpy as np
from support.made_pages import expect_current
from support.paths import REPOSITORY

from laggard.locate.medians import others_median
from laggard.locate.slow.noise import blocks_of
from laggard.locate.slow.tested import Part, Units, judge

PAGE = REPOSITORY / "docs" / "development" / "location.md"


def test_the_page_of_constants_is_current_and_has_the_thresholds_alone() -> None:
    names = re.findall(r"^\| `(\w+)` \|", expect_current("constants_docs", "development/constants.md"), re.MULTILINE)
    assert {"ERRORS", "MOST", "PAIR_RATIO", "WINDOW_STEPS"} <= set(names)
    assert not {"MAX_BLOCKS", "MAX_REPLAYED", "CONFIDENCE", "SEND", "STEP_COLUMNS"} & set(names)


def test_the_worked_example_is_what_the_code_says() -> None:
    """Eight ranks with noise of 2 %, of which half lasts from step to step; rank 5 becomes 8 % slower in step 70."""
    generator = np.random.default_rng(4)
    noise, state = np.empty((120, 8)), generator.normal(0, 1, 8)
    for step in range(120):
        state = 0.5 * state + np.sqrt(0.75) * generator.normal(0, 1, 8)
        noise[step] = 0.02 * state
    busy = 1 + noise
    busy[70:, 5] += 0.08
    units = Units(busy - others_median(busy), np.ones(8, np.bool_))
    (found,) = judge(units, busy.max(axis=1) + 0.05, live=False).slow
    text = PAGE.read_text(encoding="utf-8")
    assert (found.unit, found.part) == (5, Part(60, 120))
    assert f"| steps 60 to 119 | {found.level:.1%} | {found.cost:.1%} |".replace("%", " %") in text
    assert f"| {found.chance:.2f} times that |" in text
    step = np.median(busy.max(axis=1) + 0.05)
    told = [f"{100 * math.sqrt(each.variance):.2f}" for each in blocks_of(units.excess / step)]
    assert f"| differ by, in % of a step | {' | '.join(told)} |" in text
