"""Cases of laggard-bench in which laggard once named somebody else, or nobody."""

from __future__ import annotations

from pathlib import Path

from laggard_bench.cases import make_case

from laggard.locate.verdict import locate
from laggard.recording.reader import read_recording


def test_a_way_that_is_slow_too_and_costs_little_speaks_for_no_adapter(tmp_path: Path) -> None:
    """The adapter of rank 12 carries pairs of a pipeline, experts' exchange, and a gradient of a few bytes."""
    make_case(6, "0332-port", tmp_path)
    (culprit,) = locate(read_recording([tmp_path / "0332" / "recording"]).timings).culprits
    assert (culprit.kind, culprit.ranks) == ("slow_link", (12,))


def test_a_switch_between_two_stages_of_a_pipeline_is_named_by_the_machines_behind_it(tmp_path: Path) -> None:
    """The round trips between the last two of four stages take 87 times as long as those between others."""
    make_case(10, "0119-leaf", tmp_path)
    (culprit,) = locate(read_recording([tmp_path / "0119" / "recording"]).timings).culprits
    assert culprit.nodes == ("gpu0251", "gpu0252", "gpu0253", "gpu0254")
