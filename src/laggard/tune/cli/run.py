"""One campaign of `laggard tune`, with its study."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laggard.errors import UsageError
from laggard.tune.campaign import Budget, Campaign
from laggard.tune.report.conclude import conclude
from laggard.tune.report.documents import TuneDocument
from laggard.tune.report.text import progress_line
from laggard.tune.search.plan import Plan
from laggard.tune.space import Value
from laggard.tune.study.store import Study
from laggard.tune.subject import Subject


def study_path(arguments: argparse.Namespace) -> Path:
    return Path(arguments.study or f"laggard-tune-{arguments.what}.db")


def run(subject: Subject, arguments: argparse.Namespace, path: Path) -> tuple[TuneDocument, int, dict[str, Value]]:
    """Returns the document, the exit status, and the best configuration: the default where nothing is faster."""
    budget = Budget(arguments.trials, arguments.minutes, arguments.gpu_hours, arguments.gpus)
    plan = Plan(rounds=arguments.rounds, seed=arguments.seed, starts=subject.starts)
    with Study(path, f"laggard tune {subject.kind}", subject.space) as study:
        _check_same(study.campaign, subject.settings, path)
        study.note_campaign({"kind": subject.kind, "settings": subject.settings})
        campaign = Campaign(subject.space, plan, budget, study, path.with_suffix(".trials"))
        ended = campaign.run(subject.measure, lambda each: print(progress_line(each), file=sys.stderr, flush=True))
        best = ended.found.best.configuration if ended.found.best else None
        study.note_campaign({"kind": subject.kind, "settings": subject.settings, "best": best})
        document = conclude(subject, ended, study.trials(), str(path))
    status = 0 if ended.found.finalists or ended.search.board.ranking() else 2
    return document, status, best or subject.space.default


def _check_same(there: Mapping[str, Any], settings: Mapping[str, Any], path: Path) -> None:
    """Raises UsageError where the study's trials measured something else."""
    for name, value in there.get("settings", settings).items():
        if name in ("command", "messages", "config", "environment") and settings.get(name) != value:
            raise UsageError(f"{path} has trials of another --{name}: give --study another file")
