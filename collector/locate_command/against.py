"""`laggard locate --against RUN`: two runs of one program, each from a recording or from a collector."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

from laggard.collector.locate_command.recording import check_job
from laggard.errors import UsageError
from laggard.locate.against.compare import compare
from laggard.locate.against.digest import Described, digest_of
from laggard.locate.describe import culprit_text, sentence
from laggard.model import Location, Note, Verdict
from laggard.recording.judged import JudgedRecording, judge_recording
from laggard.terminal.progress import Progress, size_of, size_text
from laggard.text.words import printable_line
from laggard.wire.comparison import Comparison
from laggard.wire.digest import Digest

_KEPT: Final = re.compile(r"last|first|incident:[0-9]{1,16}")
"""The runs that a collector keeps; a file of such a name is `./last`."""

_STILL: Final = {"hung", "deadlock", "mismatch", "not_arrived", "waiting", "hang", "stacks"}
"""Kinds of culprits and notes of a job that waits and does not go on."""

_NO_STEPS = "holds no step after the warm-up: there is nothing to compare"
_NO_TIMES = "does not tell what steps are made of: --against compares laggard's recordings and profiler traces"


def compared(url: str, paths: Sequence[str] | None, job: str | None, run: str) -> Comparison:
    """The recording at `paths`, or without one the job that the collector at `url` watches, beside the run that was
    asked for. Raises UsageError."""
    if paths is None:
        from laggard.collector.locate_command import kept_digests

        now, location = kept_digests.digest_now(url, job)
        before = kept_digests.digest_kept(url, job, run) if _KEPT.fullmatch(run) else _recorded(run)
    elif _KEPT.fullmatch(run) and not os.path.exists(run):
        raise UsageError(f"--against {run} is kept by a collector: leave out --trace, or name a recording")
    else:
        with Progress() as progress:
            size_bytes = size_of([*paths, run])
            progress.begin_reading(f"reading {size_text(size_bytes)}", size_bytes)
            judged = judge_recording(paths)
            check_job(job, judged)
            location = judged.location
            now, before = _digest(judged, ", ".join(paths)), _recorded(run)
    found = compare(before, now, printable_line(run, 120))
    return _with_peers_evidence(found, location)


def _recorded(path: str) -> Digest:
    return _digest(judge_recording([path]), path)


def _digest(judged: JudgedRecording, path: str) -> Digest:
    timings = judged.timings
    found = digest_of(timings, Described(owner=judged.location.owner))
    if not timings.steps_recorded or (found and not timings.waits_recorded and len(timings.ranks) > 1):
        raise UsageError(f"{printable_line(path, 200)} {_NO_TIMES}")
    if found is None:
        raise UsageError(f"{printable_line(path, 200)} {_NO_STEPS}")
    return found


def _stands_still(location: Location) -> bool:
    kinds = {note.kind for note in location.notes} | {culprit.kind for culprit in location.culprits}
    return location.verdict is not Verdict.OK and bool(kinds & _STILL)


def _with_peers_evidence(found: Comparison, location: Location) -> Comparison:
    """The comparison, with the culprits that the other ranks of this run show; `unknown` at least where it came to a
    standstill: its steps tell of the time before that alone."""
    from msgspec import structs

    if _stands_still(location):
        stack = next((culprit.stack for culprit in location.culprits if culprit.stack), None)
        where = f", in {stack.place}" if stack else ""
        still = Note("standstill", f"this run came to a standstill: {sentence(location).rstrip('.')}{where}")
        verdict = Verdict.UNKNOWN if found.verdict is Verdict.OK else found.verdict
        found = structs.replace(found, verdict=verdict, notes=(*found.notes, still))
    notes = tuple(
        Note("culprit", f"by the other ranks of this run, {culprit_text(it)}", ranks=it.ranks[:64], node=it.node)
        for it in location.culprits[:3]
    )
    return structs.replace(found, notes=(*found.notes, *notes))
