"""What a rank takes beside its peers: two numbers that compare at sight."""

import re

from hypothesis import given
from hypothesis import strategies as st

from laggard.kit.words import step_times_text

SECONDS = st.floats(0.0, 1e4)
SCALES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def test_in_one_unit_as_the_larger_is_read() -> None:
    assert step_times_text(0.10112, 0.000261, "forward") == "101 ms a step in forward, its peers 0.26 ms"
    assert step_times_text(0.00712, 0.108, "collectives") == "7.12 ms a step in collectives, its peers 108 ms"
    assert step_times_text(12.04, 0.5, "input", "the others") == "12.0 s a step in input, the others 0.50 s"


@given(SECONDS, SECONDS)
def test_both_have_the_same_unit_and_say_the_value(own: float, peers: float) -> None:
    found = re.fullmatch(
        r"([\d.]+) (\w+) a step in forward, its peers ([\d.]+) (\w+)", step_times_text(own, peers, "forward")
    )
    assert found and found[2] == found[4]
    for text, value in ((found[1], own), (found[3], peers)):
        scaled = value / SCALES[found[2]]
        assert abs(float(text) - scaled) <= max(0.005001, 0.0051 * scaled)
