"""The verdict on a recording. Nothing of a collector or of its page is loaded, unless the page is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING

from laggard.kit.errors import UsageError
from laggard.kit.parts import Line
from laggard.kit.progress import Progress, size_of, size_text
from laggard.model import Location
from laggard.recording.judged import JudgedRecording, judge_recording
from laggard.wire.job_words import ended_job_prefix, recorded_text

if TYPE_CHECKING:
    from laggard.collector.web.page_html import KeptPage
    from laggard.recommend.advice.values import Item


class RecordingSource:
    """A Source: files or directories, judged here. `asked`: the job that the user named."""

    def __init__(self, paths: Sequence[str], asked: str | None, judged: JudgedRecording) -> None:
        self._paths = paths
        self._asked = asked
        self._judged = judged

    @property
    def location(self) -> Location:
        return self._judged.location

    @property
    def recommend_words(self) -> Sequence[str]:
        return self._paths

    def name_before(self) -> str:
        return "" if self._asked else ended_job_prefix(self.location)

    def changes(self) -> Sequence[Item]:
        from laggard.recommend.advice.situation import Situation, with_job
        from laggard.recommend.advice.watched import recommend_watched

        return recommend_watched(with_job(Situation(), self._judged.timings, self.location.culprits)).items

    def job_lines(self) -> Iterator[Line]:
        location, timings = self._judged.location, self._judged.timings
        if text := recorded_text(location.job_id, location.owner, timings.script, timings.started_at):
            yield Line(f"  Job {text}", "aside")

    def page(self) -> KeptPage:
        from laggard.collector.locate_command.page import page_of_recording

        return page_of_recording(self._judged, self._paths)

    def write_perfetto(self, path: str) -> tuple[str, bool]:
        """What was written, in one line, and whether steps were left out. Raises UsageError."""
        import msgspec

        from laggard.collector.locate_command.whole_file import write_whole
        from laggard.recording.perfetto import trace_of

        trace = trace_of(self._judged)
        separators = chain((b'{"traceEvents":[\n',), repeat(b",\n"))
        lines = (before + msgspec.json.encode(event) for before, event in zip(separators, trace.events, strict=False))
        write_whole(path, chain(lines, (b"\n]}\n",)))
        kept = f", the newest {trace.steps} of its {trace.recorded} steps" if trace.steps < trace.recorded else ""
        return f"the trace for ui.perfetto.dev is in {path}{kept}", bool(kept)


def judge(paths: Sequence[str], job: str | None) -> RecordingSource:
    """Judges the recording at `paths`. Raises UsageError where there is none, or where it is not of `job`."""
    with Progress() as progress:
        size_bytes = size_of(paths)
        progress.begin_reading(f"reading {size_text(size_bytes)}", size_bytes)
        judged = judge_recording(paths)
    check_job(job, judged)
    return RecordingSource(paths, job, judged)


def check_job(asked: str | None, judged: JudgedRecording) -> None:
    """Raises UsageError where another job was asked for than the recording holds."""
    held, script = judged.location.job_id, judged.timings.script
    name = (asked or "").rpartition(":")[2] if asked != held else held
    if asked and held and name not in (held, script) and not held.startswith(name or ""):
        raise UsageError(f"the recording is of job {held}{f' ({script})' if script else ''}, not of {asked}")
