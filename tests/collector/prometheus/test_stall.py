"""What Prometheus' samples say of a job that makes no steps: who keeps it from going on, or that nobody can tell."""

from __future__ import annotations

from typing import Any

import numpy as np

from laggard.collector.jobs.snapshot import unknown_location
from laggard.collector.prometheus.suspects import Ranks, stalled_by
from laggard.collector.prometheus.watch import snapshot_of
from laggard.model import JobKey


def ranks(up: list[float], **changes: Any) -> Ranks:
    ones = np.ones(len(up))
    values: dict[str, Any] = dict(
        numbers=np.arange(len(up)),
        nodes=("n0",) * len(up),
        up=np.array(up),
        in_flight=60.0 * ones,
        beat_moved=15.0 * ones,
        progress_moved=0.0 * ones,
        seconds=15.0,
    )
    return Ranks(**{**values, **changes})


def test_a_job_has_ended_where_its_processes_are_seen_to_be_gone() -> None:
    (note,) = stalled_by(ranks([0.0, 0.0]), 30.0).notes
    assert note.kind == "ended"
    assert not snapshot_of(JobKey(1, "a"), unknown_location(note.kind, note.text), 1.0).running


def test_a_job_of_which_prometheus_has_no_fresh_sample_may_still_run() -> None:
    """As after Prometheus itself was away: its incidents do not end, to begin again a minute later."""
    found = stalled_by(ranks([np.nan, np.nan, np.nan]), 30.0)
    (note,) = found.notes
    assert not found.culprits and note.kind == "silent_ranks" and note.ranks == (0, 1, 2)
    assert snapshot_of(JobKey(1, "a"), unknown_location(note.kind, note.text), 1.0).running
    old = snapshot_of(JobKey(1, "a"), unknown_location("stale", "the newest sample is 70 s old"), 1.0)
    assert old.running and not old.told, "nobody tells of it, and it is not known to have ended"


def test_a_rank_whose_process_is_gone_is_dead_while_others_wait() -> None:
    (culprit,) = stalled_by(ranks([1.0, 0.0, 1.0, 1.0], in_flight=np.array([60.0, 0.0, 60.0, 60.0])), 30.0).culprits
    assert (culprit.kind, culprit.ranks) == ("dead", (1,))
