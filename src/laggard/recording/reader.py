"""Reads recordings, of whatever kind: recognises each file, and hands them to the reader of their kind.

NCCL Inspector's logs hold no steps, so that there are no timings of them. The files of stacks in the folder of a
recording are what faulthandler wrote for ranks that could not write themselves any more, and where processes stood that
came to no step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from laggard.kit.errors import UsageError
from laggard.kit.majority import grouped
from laggard.kit.words import counted
from laggard.locate.job_timings import build_timings, live_timings
from laggard.nccl.inspector import NO_NUMBERS, InspectorLog, gaps_of, last_arrivals
from laggard.recording.job import RecordedJob
from laggard.recording.kinds import Kind, kind_of, read_lines
from laggard.recording.recorded_timings import RecordedTimings, read_marks, unseen_alone, unseen_of
from laggard.stacks.fault_text import read_faults
from laggard.stacks.sampled import HELD, STALLED, Sampled, SampledError
from laggard.stacks.sampled import read as read_sampled

WHAT_IS_READ = "laggard recordings, PyTorch Flight Recorder dumps, PyTorch profiler traces, NCCL Inspector's logs"
NO_RECORDING = f'is no recording: {WHAT_IS_READ} are read (a laggard recording begins with {{"laggard_recording": 1}})'

_RUN = re.compile(r"run-([1-9]\d{0,5})")
_HANG = re.compile(r"hang-\d{8}T\d{6}Z")  # what ranks keep of a standstill (trainer_hooks/output/hang_folder.py)
_EVENTS = ".events.json"  # where ranks stood at a standstill: `laggard diagnose` reads it
_MAX_ENTRIES = 100_000
_MAX_FOLDERS = 64  # that are looked into, and files of each, for where a recording may be


def read_recording(paths: Sequence[str | Path]) -> RecordedTimings:
    """Reads the recording in files or directories. Raises UsageError where there is none, or where they are of several
    kinds."""
    gaps: list[str] = []
    try:
        of_kind = grouped(_once(paths, gaps), lambda found: found[1])
        by_kind = {kind: [file for file, _ in found] for kind, found in of_kind.items()}
        marks = read_marks(by_kind.pop(Kind.MARK, ()), gaps)
        stacks = read_stacks(by_kind.pop(Kind.FAULTS, []), by_kind.pop(Kind.STACKS, []), gaps)
        if not by_kind and stacks:
            return stacks_alone(stacks)
        if not by_kind and marks:
            return unseen_alone(marks)
        if len(by_kind) > 1:
            found = (f"{counted(len(files), kind.value)} ({files[0]}, ...)" for kind, files in by_kind.items())
            raise UsageError(f"give files of one kind: there are {' and '.join(found)}")
        if not by_kind:
            raise UsageError(f"the rank had nothing to say: {', '.join(map(str, paths))}")
        ((kind, files),) = by_kind.items()
        read = _read(kind, files, gaps, stacks)
        job_id = read.timings.job_id or _job_of(stacks)
        all_of = (*read.stacks, *(it for it in stacks if it.job_id == job_id))
        kept = tuple(it for it in all_of if not _is_over(it, read.moved_at))
        return dataclasses.replace(read, stacks=kept, unseen=unseen_of(marks, read.timings.job_id))
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None


def _once(paths: Sequence[str | Path], gaps: list[str]) -> Iterator[tuple[Path, Kind]]:
    """The files at the paths, each once: a folder and a file in it may both be given."""
    seen: set[str] = set()
    repeated = 0
    for path in paths:
        for file, kind in _recognised(Path(path), gaps):
            place = os.path.realpath(file)
            if place not in seen:
                yield file, kind
            repeated += place in seen
            seen.add(place)
    if repeated:
        gaps.append(f"{counted(repeated, 'file')} given twice: read once")


def _is_over(sampled: Sampled, moved_at: Mapping[int, float]) -> bool:
    """Whether the stack is of a standstill after which the rank finished a step."""
    return sampled.why in (STALLED, HELD) and sampled.at < moved_at.get(sampled.rank, 0.0)


def _job_of(stacks: Sequence[Sampled]) -> str | None:
    """The job of the newest stacks, beside files that tell no job, as a Flight Recorder's dumps."""
    return max(stacks, key=lambda each: each.at).job_id if stacks else None


def _read_lines(files: Sequence[Path], gaps: list[str], beside: Sequence[Sampled]) -> RecordedTimings:
    job = RecordedJob(beside)
    job.gaps += gaps
    for file in files:
        if not read_lines(file, job):
            raise UsageError(f"{file} {NO_RECORDING}")
    timings = job.timings()
    return RecordedTimings(timings, tuple(job.gaps), job.owner, stacks=job.stacks, moved_at=job.moved_at)


def _read(kind: Kind, files: Sequence[Path], gaps: list[str], beside: Sequence[Sampled]) -> RecordedTimings:
    """Reads files of one kind. Of the readers only theirs is imported: most recordings are laggard's own."""
    if kind is Kind.LINES:
        return _read_lines(files, gaps, beside)
    if kind is Kind.FLIGHT_RECORDER:
        from laggard.recording.flight_recorder import read_dumps

        return read_dumps(files, gaps)
    if kind is Kind.KINETO:
        from laggard.recording.kineto import read_traces

        return read_traces(files, gaps)
    return read_inspector(files if kind is Kind.INSPECTOR else (), gaps)


def _recognised(path: Path, gaps: list[str]) -> list[tuple[Path, Kind]]:
    """The files at `path`, each with its kind. In a directory what is no recording is passed over, and told in
    `gaps`."""
    if not path.is_dir():
        if not path.is_file():
            raise UsageError(f"no recording at {path}; where a job made none, `laggard diagnose LOG` reads its log")
        kind = kind_of(path)
        if kind is None:
            raise UsageError(f"{path} {NO_RECORDING if path.stat().st_size else 'is empty'}")
        return [(path, kind)]
    path = _newest_run(path, gaps)
    found = _files_in(path)
    if not any(kind for _, kind in found):
        path = _newest_run(_only_folder(path, gaps), gaps)
        found = _files_in(path)
    passed_over = [entry.name for entry, kind in found if kind is None and not entry.name.endswith(_EVENTS)]
    if all(kind is None for _, kind in found):
        raise UsageError(f"{path} holds no recording; `laggard run --record {path}` writes one")
    if passed_over:
        gaps.append(f"{path}: {counted(len(passed_over), 'file')} passed over, no recording: {_few(passed_over)}")
    own = [(entry, kind) for entry, kind in found if kind is not None]
    return own + (_newest_hang(path, gaps) if any(kind is Kind.LINES for _, kind in own) else [])


def _newest_hang(path: Path, gaps: list[str]) -> list[tuple[Path, Kind]]:
    """The stacks that ranks kept of the recording's last standstill. Names tell the time, and sort by it."""
    names = (entry.name for entry in itertools.islice(path.iterdir(), _MAX_ENTRIES))
    newest = max((name for name in names if _HANG.fullmatch(name)), default=None)
    if newest is None or not (path / newest).is_dir():
        return []
    try:
        found = _files_in(path / newest)
    except OSError as error:  # it is its user's alone
        gaps.append(f"{path / newest} is left out: {error.strerror}")
        return []
    return [(entry, kind) for entry, kind in found if kind in (Kind.STACKS, Kind.FAULTS)]


def _newest_run(path: Path, gaps: list[str]) -> Path:
    """The folder of the newest run that was recorded into `path`: the hooks put a second run into `path`/run-2."""
    found = (_RUN.fullmatch(entry.name) for entry in itertools.islice(path.iterdir(), _MAX_ENTRIES))
    newest = max((int(each[1]) for each in found if each), default=0)
    folder = path / f"run-{newest}"
    if not newest or not folder.is_dir():
        return path
    gaps.append(f"several runs are recorded in {path}: this is the newest, in {folder}")
    return folder


def _files_in(path: Path) -> list[tuple[Path, Kind | None]]:
    inside = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
    return [(entry, kind_of(entry)) for entry in inside]


def _only_folder(path: Path, gaps: list[str]) -> Path:
    """The one folder in `path` that holds a recording; `path` where there is none. Raises UsageError where there are
    several."""
    inside = itertools.islice((entry for entry in sorted(path.iterdir()) if entry.is_dir()), _MAX_FOLDERS)
    holding = [folder for folder in inside if not folder.name.startswith(".") and _holds_recording(folder)]
    if len(holding) > 1:
        raise UsageError(f"{path} holds several recordings, choose one: {_few([str(folder) for folder in holding])}")
    if holding:
        gaps.append(f"read from {holding[0]}, the only recording in {path}")
    return holding[0] if holding else path


def _holds_recording(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        files = itertools.islice((entry for entry in folder.iterdir() if entry.is_file()), _MAX_FOLDERS)
        return any(kind_of(entry) is not None for entry in files)
    return False


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


MAX_BYTES = 4 << 30
"""The most bytes of all files together, unpacked: some ten million collectives."""

_PIECE = 1 << 20


def read_inspector(paths: Sequence[Path], gaps: list[str]) -> RecordedTimings:
    """The timings by the logs of a job's processes. Without any, only metrics were given. Raises OSError."""
    log = InspectorLog()
    left = MAX_BYTES
    for path in paths:
        for piece in _pieces(path, gaps):
            left -= len(piece)
            if left < 0:
                break
            log.feed(piece)
        log.end()
    arrivals = last_arrivals(log)
    found = list(gaps_of(log, arrivals)) if paths else [NO_NUMBERS]
    if left < 0:
        found.append(f"only the first {MAX_BYTES >> 30} GiB were read")
    return RecordedTimings(build_timings(None, 0, {}, {}, {}), (*gaps, *found), arrivals=arrivals)


def _pieces(path: Path, gaps: list[str]) -> Iterator[str]:
    with open(path, "rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else open(path, "rb") as file:
            while piece := file.read(_PIECE):
                yield piece.decode(errors="replace")
    except (EOFError, gzip.BadGzipFile) as error:
        gaps.append(f"{path}: cut off or damaged ({error})")


MAX_FILES = 100_000


def read_stacks(faults: Iterable[Path], stacks: Iterable[Path], gaps: list[str]) -> list[Sampled]:
    """What these files say. One that cannot be read is told in `gaps`."""
    found: list[Sampled] = []
    kinds: tuple[tuple[Iterable[Path], Callable[[str], Sampled | None]], ...] = (
        (faults, read_faults),
        (stacks, read_sampled),
    )
    for files, read_one in kinds:
        for file in itertools.islice(files, MAX_FILES):
            try:
                sampled = read_one(str(file))
            except SampledError as error:
                gaps.append(f"{file} is left out: {error}")
            else:
                found += [sampled] if sampled is not None else []
    return found


def stacks_alone(stacks: Sequence[Sampled]) -> RecordedTimings:
    """The timings where no rank was recorded: those of the job whose stacks are the newest."""
    newest = max(stacks, key=lambda each: each.at)
    own = tuple(each for each in stacks if each.job_id == newest.job_id)
    size = max(each.rank for each in own) + 1
    return RecordedTimings(live_timings(newest.job_id, size, {}, {}, {}, {}), (), stacks=own)
