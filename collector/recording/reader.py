"""Reads recordings: files of JSON lines about steps, spans and collectives, one file a rank or one for all ranks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from laggard.collector.locate.job_timings import JobTimings
from laggard.collector.recording.job import RecordedJob
from laggard.errors import UsageError


@dataclasses.dataclass(frozen=True)
class RecordedTimings:
    """The timings in a recording, and lines that say what of it was lost or could not be used."""

    timings: JobTimings
    gaps: tuple[str, ...]


def read_recording(paths: Sequence[str | Path]) -> RecordedTimings:
    """Reads the recording in files or directories. Raises UsageError that names the file and line that is not one."""
    job = RecordedJob()
    for path in _files(paths):
        _read_file(path, job)
    return RecordedTimings(job.timings(), tuple(job.gaps))


def _files(paths: Sequence[str | Path]) -> Iterator[Path]:
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
            if not inside:
                raise UsageError(f"{path} holds no recording; `laggard run --record {path}` writes one")
            yield from inside
        elif path.is_file():
            yield path
        else:
            raise UsageError(f"no recording at {path}")


def _read_file(path: Path, job: RecordedJob) -> None:
    lines = _lines(path)
    head = _parse_json(lines[0]) if lines else None
    if not isinstance(head, dict) or head.get("laggard_recording") != 1:
        raise UsageError(f'{path} is not a laggard recording: its first line is not {{"laggard_recording": 1, ...}}')
    job.begin_file(head.get("job_id"))
    for number, line in enumerate(lines[1:], 2):
        _add_line(line, f"{path}:{number}", job)
    if head.get("ends"):
        job.end_file(str(path))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a laggard recording: it is not text") from None


def _add_line(line: str, where: str, job: RecordedJob) -> None:
    record = _parse_json(line)
    if not isinstance(record, dict):
        if line.endswith("\n") and line.strip():
            raise UsageError(f"{where} is not a JSON object")
        if line.strip():
            job.gaps.append(f"{where} is cut off: the last record is left out")
        return
    try:
        job.add(record)
    except KeyError as error:
        raise UsageError(f"{where}: a {record.get('kind')!r} record lacks {error}") from None
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}") from None


def _parse_json(line: str) -> Any:
    """The value in `line`; None where it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
