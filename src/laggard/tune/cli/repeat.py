"""`laggard tune ab`: the end of a campaign once more."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from laggard import wire
from laggard.errors import UsageError
from laggard.recommend.advice.situation import Situation
from laggard.terminal.output import show
from laggard.terminal.parts import Line
from laggard.tune.cli.settings import subject_for
from laggard.tune.report.conclude import evidence
from laggard.tune.report.text import changes_text
from laggard.tune.space import changes
from laggard.tune.statistics import Word, compare
from laggard.tune.study.store import campaign_of

_STYLES: Final = {Word.FASTER: "ok", Word.SLOWER: "fail", Word.TIE: "name"}


def repeat_final(arguments: argparse.Namespace, situation: Situation) -> int:
    """Measures a study's best configuration against its default again, in pairs."""
    if not arguments.study:
        raise UsageError("--study names the file of the campaign whose end is to be repeated")
    path = Path(arguments.study)
    campaign = campaign_of(path)
    if not campaign.get("best"):
        raise UsageError(f"{path} has no configuration that is faster than the default: there is nothing to compare")
    subject = subject_for(campaign["kind"], campaign["settings"], situation)
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(arguments.rounds):
        pair = list(zip((subject.space.default, campaign["best"]), times, strict=True))
        for place, (configuration, own) in enumerate(pair if turn % 2 == 0 else pair[::-1]):
            folder = path.with_suffix(".trials") / f"ab-{os.getpid()}-{turn}-{place}"
            folder.mkdir(parents=True, exist_ok=True)
            outcome = subject.measure(configuration, folder)
            if outcome.seconds is None:
                raise UsageError(f"round {turn + 1} failed, {outcome.status.value}: {outcome.detail}")
            own.append(outcome.seconds)
    found = compare(*times)
    shown = changes_text(changes(subject.space, campaign["best"]))
    if arguments.format == "json":
        sys.stdout.buffer.write(wire.encode({"schema": "laggard.tune_ab/1", **found._asdict()}) + b"\n")
    else:
        show([Line(f"{shown}: {found.word.value}; {evidence(found)}", _STYLES.get(found.word, "unknown"))])
    return 0
