"""`laggard recommend FILE... --after FILE...`: what became of the advice for one run in another one, by their files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from laggard.diagnose.input_file import InputFile
from laggard.errors import UsageError
from laggard.locate.against.digest import Described, digest_of
from laggard.model import REPORT_SCHEMA, Report, Severity, Verdict
from laggard.recommend.advice.recommend import recommend
from laggard.recommend.inputs import Inputs, read_inputs
from laggard.recommend.outcome.advised import advised_of
from laggard.recommend.outcome.calibration import outcomes_by_kind
from laggard.recommend.outcome.judge import judged
from laggard.recommend.outcome.values import AdviceDocument, AdviceHistory, RunOutcomes, SeenRun
from laggard.recording.reader import read_recording
from laggard.text.words import printable_line

_MAX_REPORT_BYTES: Final = 16 << 20


def outcomes(paths: Sequence[str], before: Inputs, after: Sequence[str]) -> AdviceDocument:
    """`paths` and `before`: the files of the run that is advised. Raises UsageError."""
    old, now = _seen(paths, before), _seen(after, read_inputs(after))
    situation = before.situation
    advised = advised_of(recommend(situation).items, situation.culprits, sorted(old.findings))
    told = judged(advised, old, now, time.time())
    digest = old.digest
    run = RunOutcomes(
        owner=-1 if digest.owner is None else digest.owner,
        job_id=digest.job_id or "",
        script=digest.script or "",
        world_size=digest.world_size,
        started_at=digest.started_at or 0.0,
        made_at=digest.made_at or 0.0,
        advised=told,
    )
    return AdviceDocument(runs=(run,), kinds=outcomes_by_kind(told), now=time.time(), history=AdviceHistory("file"))


def _seen(paths: Sequence[str], inputs: Inputs) -> SeenRun:
    """Raises UsageError where there is no recording with steps among the files."""
    named = printable_line(", ".join(paths), 200)
    if not inputs.recordings:
        raise UsageError(f"{named}: give the run's recording, too (`laggard run --record DIR`)")
    recording = read_recording(inputs.recordings)
    digest = digest_of(recording.timings, Described(owner=recording.owner))
    if digest is None:
        raise UsageError(f"{named} holds no step after the warm-up: there is nothing to compare")
    reports = list(_reports(paths, inputs.recordings))
    findings = {
        (it.code, report.node) for report in reports for it in report.findings if it.severity is not Severity.INFO
    }
    answered = frozenset(report.node for report in reports if report.verdict is not Verdict.UNKNOWN)
    return SeenRun(digest, frozenset(findings), answered)


def _reports(paths: Sequence[str], recordings: Sequence[str]) -> Iterator[Report]:
    """The reports of nodes among the files; what is none was read as something else."""
    for path in paths:
        if path in recordings or path == "-":
            continue
        try:
            tree = json.loads(InputFile(path).read().text[:_MAX_REPORT_BYTES])
            if isinstance(tree, dict) and tree.get("schema") == REPORT_SCHEMA:
                yield msgspec.convert(tree, Report)
        except (ValueError, RecursionError):
            continue
