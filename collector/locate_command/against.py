"""`laggard locate --against RUN`: two runs of one program, each from a recording or from a collector."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import structs

from laggard.collector.locate_command.recording import check_job
from laggard.kit.errors import UsageError
from laggard.kit.progress import Progress, size_of, size_text
from laggard.kit.words import joined, printable_line
from laggard.locate.against.compare import compare
from laggard.locate.against.describe import places_of_changes
from laggard.locate.against.digest import digest_of
from laggard.locate.describe import culprit_text, sentence
from laggard.model import Culprit, Location, Note, Verdict
from laggard.recording.judged import JudgedRecording, judge_recording
from laggard.stacks.sampled import Sampled
from laggard.wire.digest import Comparison, Digest

_KEPT: Final = re.compile(r"last|first|incident:[0-9]{1,16}")
"""The runs that a collector keeps; a file of such a name is `./last`."""

_STILL: Final = {"hung", "deadlock", "mismatch", "not_arrived", "waiting", "hang", "stacks"}
"""Kinds of culprits and notes of a job that waits and does not go on."""

_NO_STEPS = "holds no step after the warm-up: there is nothing to compare"
_NO_TIMES = "does not tell what steps are made of: --against compares laggard's recordings and profiler traces"


def compared(url: str, paths: Sequence[str] | None, job: str | None, run: str) -> Comparison:
    """The recording at `paths`, or without one the job that the collector at `url` watches, beside the run that was
    asked for. Raises UsageError."""
    if not run.strip() or (paths is not None and not all(path.strip() for path in paths)):
        which = "--against" if not run.strip() else "--trace"
        raise UsageError(f"{which} names nothing: is a variable empty? Give a recording, a file or a directory")
    if paths is None:
        from laggard.collector.locate_command.collector import digest_kept, digest_now

        now, location = digest_now(url, job)
        if _KEPT.fullmatch(run):
            return _told(compare(digest_kept(url, job, run), now, run), location)
        recorded = _recorded([run])
        if recorded.digest is None:
            return _told(_nothing_to_compare(None, recorded, now.job_id, run), location, recorded.lacks)
        return _told(compare(recorded.digest, now, printable_line(run, 120)), location, recorded.lacks)
    if _KEPT.fullmatch(run) and not os.path.exists(run):
        raise UsageError(f"--against {run} is kept by a collector: leave out --trace, or name a recording")
    with Progress() as progress:
        size_bytes = size_of([*paths, run])
        progress.begin_reading(f"reading {size_text(size_bytes)}", size_bytes)
        judged = judge_recording(paths)
        check_job(job, judged)
        now_read, before = _digest(judged, ", ".join(paths)), _recorded([run])
    lacks = (*now_read.lacks, *before.lacks)
    if now_read.digest is None or before.digest is None:
        found = _nothing_to_compare(now_read, before, judged.location.job_id, run)
    else:
        found = compare(before.digest, now_read.digest, printable_line(run, 120))
        found = structs.replace(
            found, notes=(*found.notes, *_same_run(paths, run), *_place_notes(found, judged, before))
        )
    return _told(found, judged.location, lacks)


class _Read(NamedTuple):
    """A recording's digest; None where damage left no step of it. `lacks`: notes on what of it was lost."""

    digest: Digest | None
    lacks: tuple[Note, ...]
    stacks: tuple[Sampled, ...]


def _recorded(paths: Sequence[str]) -> _Read:
    return _digest(judge_recording(paths), ", ".join(paths))


def _digest(judged: JudgedRecording, path: str) -> _Read:
    """Raises UsageError where the recording tells no steps; where it lost them, they are lacking."""
    timings = judged.timings
    found = digest_of(timings, owner=judged.location.owner)
    if not timings.steps_recorded or (found and not timings.waits_recorded and len(timings.ranks) > 1):
        raise UsageError(f"{printable_line(path, 200)} {_NO_TIMES}")
    lacks = tuple(note for note in judged.location.notes if note.kind == "lacks")
    if found is None and not (lacks and len(timings.ranks)):
        raise UsageError(f"{printable_line(path, 200)} {_NO_STEPS}")
    return _Read(found, lacks, judged.stacks)


def _nothing_to_compare(now: _Read | None, before: _Read, job_id: str | None, run: str) -> Comparison:
    told = (("this run", now), ("the run before", before))
    which = [name for name, each in told if each is not None and each.digest is None]
    text = f"{joined(which)} {_NO_STEPS}"
    against = printable_line(run, 120)
    return Comparison(
        verdict=Verdict.UNKNOWN, job_id=job_id, against=against, step=None, notes=(Note("too_few_steps", text),)
    )


def _same_run(paths: Sequence[str], run: str) -> tuple[Note, ...]:
    """The note on a run that is compared with itself, by mistake as a rule."""
    if {os.path.realpath(path) for path in paths} != {os.path.realpath(run)}:
        return ()
    return (Note("same_run", "both are the same recording: it is compared with itself"),)


def _place_notes(found: Comparison, judged: JudgedRecording, before: _Read) -> tuple[Note, ...]:
    if not any(change.seconds > 0 for change in found.changes):
        return ()
    return places_of_changes(found.changes, judged.stacks, before.stacks)


def _stands_still(location: Location) -> bool:
    kinds = {note.kind for note in location.notes} | {culprit.kind for culprit in location.culprits}
    return location.verdict is not Verdict.OK and bool(kinds & _STILL)


def _told(found: Comparison, location: Location, lacks: Sequence[Note] = ()) -> Comparison:
    """The comparison, with the culprits that the other ranks of this run show, and what of the runs was lost; `unknown`
    at least where it came to a standstill: its steps tell of the time before that alone."""
    if _stands_still(location):
        stack = next((culprit.stack for culprit in location.culprits if culprit.stack), None)
        where = f", in {stack.place}" if stack else ""
        still = Note("standstill", f"this run came to a standstill: {sentence(location).rstrip('.')}{where}")
        verdict = Verdict.UNKNOWN if found.verdict is Verdict.OK else found.verdict
        found = structs.replace(found, verdict=verdict, notes=(*found.notes, still))
    notes = tuple(
        Note("culprit", f"by the other ranks of this run, {_with_place(it)}", ranks=it.ranks[:64], node=it.node)
        for it in location.culprits[:3]
    )
    return structs.replace(found, notes=(*found.notes, *notes, *dict.fromkeys(lacks)))


def _with_place(culprit: Culprit) -> str:
    return f"{culprit_text(culprit)}{f': {culprit.stack.text}' if culprit.stack else ''}"
