"""docs/constants.md tells the thresholds of the verdict, as the code has them."""

from __future__ import annotations

import re

from support.made_pages import expect_current


def test_the_page_of_constants_is_current_and_has_the_thresholds_alone() -> None:
    names = re.findall(r"^\| `(\w+)` \|", expect_current("constants_docs", "constants.md"), re.MULTILINE)
    assert {"ERRORS", "OF_GPUS", "CHANNEL_COST_RATIO", "DECISION_ERRORS"} <= set(names)
    assert not {"MAX_BLOCKS", "MAX_REPLAYED", "BLOCK", "CONFIDENCE", "SEND", "STEP_COLUMNS"} & set(names)
