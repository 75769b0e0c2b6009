"""Renders this rank's metrics in Prometheus' text format, with the names, labels and values that an agent serves."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from laggard import __version__
from laggard.catalogue.rank_metrics import BUILD_INFO, Metric, RankStats, Samples, families, sum_collectives
from laggard.constants import PHASES
from laggard.rankfile.layout import WORD_ISSUED, WORD_PROGRESS
from laggard.trainer_hooks.output.identity import Identity
from laggard.trainer_hooks.record.recorder import INPUT, Recorder, clock

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_DRAIN_TIMEOUT_SECONDS = 0.5


def render_metrics(identity: Identity, recorder: Recorder) -> str:
    """The rank's metrics in the text format, version 0.0.4."""
    recorder.drain(_DRAIN_TIMEOUT_SECONDS)
    build = _family(BUILD_INFO, [((__version__,), 1.0)])
    return build + "".join(_family(metric, samples) for metric, samples in families([_stats(identity, recorder)]))


def _stats(identity: Identity, recorder: Recorder) -> RankStats:
    """The rank's present values. Another thread than the training's reads them, so one may be a moment older than
    another."""
    totals, words, now, wall = recorder.totals, recorder.live.words, clock(), time.time()
    issued, progress = words[WORD_ISSUED], words[WORD_PROGRESS]
    phases, lanes = totals.phases_ns, totals.lanes
    return RankStats(
        **identity._asdict(),
        owner=os.geteuid(),  # who owns the rank file, too
        up=True,
        steps=totals.steps,
        step_seconds=totals.step_ns / 1e9,
        own_seconds=(sum(phases) - phases[INPUT]) / 1e9,
        phase_seconds=[phases[place] / 1e9 for place in range(len(PHASES))],
        last_progress=wall - (now - progress) / 1e9 if progress else wall,
        last_beat=wall,
        in_flight_seconds=max(0, now - issued) / 1e9 if issued else 0.0,
        collectives=sum_collectives(
            ((lane.op, lane.role) for lane in recorder.lanes()[: len(lanes) // 3]),
            (lanes[place : place + 3] for place in range(0, len(lanes) // 3 * 3, 3)),
        ),
        lost=totals.lost + totals.errors,
    )


def _family(metric: Metric, samples: Samples) -> str:
    lines = [f"# HELP {metric.name} {_escaped(metric.help)}", f"# TYPE {metric.name} {metric.kind}"]
    lines += [f"{metric.name}{_labels(metric.labels, labels)} {float(value)!r}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(names: Iterable[str], values: Iterable[str]) -> str:
    pairs = sorted(zip(names, values, strict=True))
    return "{" + ",".join(f'{name}="{_escaped(value, quoted=True)}"' for name, value in pairs) + "}"


def _escaped(text: str, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text
