"""Reads recordings, of whatever kind: recognises each file, and hands them to the reader of their kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from laggard.collector.recording.flight_recorder.reader import read_dumps
from laggard.collector.recording.inspector import read_inspector
from laggard.collector.recording.job import RecordedJob
from laggard.collector.recording.kinds import Kind, kind_of
from laggard.collector.recording.kineto.reader import read_traces
from laggard.collector.recording.lines import read_lines
from laggard.collector.recording.recorded_timings import RecordedTimings
from laggard.errors import UsageError
from laggard.text.words import counted

WHAT_IS_READ = "laggard recordings, PyTorch Flight Recorder dumps, PyTorch profiler traces, NCCL Inspector's logs"
NO_RECORDING = f'is no recording: {WHAT_IS_READ} are read (a laggard recording begins with {{"laggard_recording": 1}})'


def read_recording(paths: Sequence[str | Path]) -> RecordedTimings:
    """Reads the recording in files or directories. Raises UsageError where there is none, or where they are of several
    kinds."""
    gaps: list[str] = []
    by_kind: dict[Kind, list[Path]] = {}
    try:
        for path in paths:
            for file, kind in _recognised(Path(path), gaps):
                by_kind.setdefault(kind, []).append(file)
        if len(by_kind) > 1:
            raise UsageError(f"give files of one kind: there are {_found(by_kind)}")
        ((kind, files),) = by_kind.items()
        return _READERS[kind](files, gaps)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None


def _read_lines(files: Sequence[Path], gaps: list[str]) -> RecordedTimings:
    job = RecordedJob()
    job.gaps += gaps
    for file in files:
        if not read_lines(file, job):
            raise UsageError(f"{file} {NO_RECORDING}")
    return RecordedTimings(job.timings(), tuple(job.gaps), job.owner)


def _read_metrics(files: Sequence[Path], gaps: list[str]) -> RecordedTimings:
    return read_inspector((), gaps)


_READERS = {
    Kind.LINES: _read_lines,
    Kind.FLIGHT_RECORDER: read_dumps,
    Kind.KINETO: read_traces,
    Kind.INSPECTOR: read_inspector,
    Kind.INSPECTOR_METRICS: _read_metrics,
}


def _found(by_kind: dict[Kind, list[Path]]) -> str:
    return " and ".join(f"{counted(len(files), kind.value)} ({files[0]}, ...)" for kind, files in by_kind.items())


def _recognised(path: Path, gaps: list[str]) -> list[tuple[Path, Kind]]:
    """The files at `path`, each with its kind. In a directory what is no recording is passed over, and told in
    `gaps`."""
    if not path.is_dir():
        if not path.is_file():
            raise UsageError(f"no recording at {path}")
        kind = kind_of(path)
        if kind is None:
            raise UsageError(f"{path} {NO_RECORDING if path.stat().st_size else 'is empty'}")
        return [(path, kind)]
    inside = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
    found = [(entry, kind_of(entry)) for entry in inside]
    passed_over = [entry.name for entry, kind in found if kind is None]
    if len(passed_over) == len(inside):
        raise UsageError(f"{path} holds no recording; `laggard run --record {path}` writes one")
    if passed_over:
        gaps.append(f"{path}: {counted(len(passed_over), 'file')} passed over, no recording: {_few(passed_over)}")
    return [(entry, kind) for entry, kind in found if kind is not None]


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
