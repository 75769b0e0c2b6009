"""Joins what the files of a job say to one answer: hands their evidence to the joiner, and finds the lines again that
its answer rests on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.file_format import ACCUSED, FileContent
from laggard.diagnose.input_file import FoundLine, InputFile, LineFinder
from laggard.diagnose.job.events import Event, JobEvidence
from laggard.diagnose.job.reader import JobLogReader
from laggard.diagnose.joined.clock import time_text, wall_time, year_of
from laggard.diagnose.joined.exhibit import Exhibit, Origin, other_jobs, read_exhibit
from laggard.diagnose.joined.explains import MEMORY
from laggard.diagnose.joined.first import find_first
from laggard.diagnose.joined.roster import Clue, Fault, First, JobFile, Role, Roster, roster_of
from laggard.diagnose.joined.witnesses import witness_faults
from laggard.kit.words import capital, printable_line
from laggard.model import Finding, Severity
from laggard.probes.probe import finding
from laggard.wire.diagnosis import FileResult, JoinedAnswer, TimelineLine

MAX_LINE_CHARACTERS: Final = 160
_MAX_FAULTS: Final = 256
_GLIMPSE_BEGINNING: Final = 1 << 18
_GLIMPSE_END: Final = 1 << 16
_MAX_LARGE: Final = 64
"""The number of large files that are read once more."""
_RECORDINGS: Final = ("laggard recording", "Flight Recorder dump", "NCCL Inspector log")
_QUOTES: Final = ("first", "line", "last", "reason", "state")
_KILLED_PID = re.compile(r"exitcode\s*: -9 \(pid: (\d{1,10})\)|failed \(exitcode: -9\).*\(pid: (\d{1,10})\)")
_WALL_CLOCK: Final = 10**9


class JudgedFile(NamedTuple):
    """A file with what was found in it by itself. `words`: of its path, below what was given."""

    file: InputFile
    result: FileResult
    findings: tuple[Finding, ...]
    origin: Origin
    twins: tuple[Origin, ...] = ()
    """The origins of files with the same content."""


class JobRead(NamedTuple):
    evidence: JobEvidence
    files: tuple[str, ...]
    """The paths of the job's files, as the places of its events number them."""
    findings: tuple[Finding, ...]
    """The findings of the job's output by itself."""


class Joined(NamedTuple):
    answer: JoinedAnswer
    finding: Finding
    """The same as a finding."""
    notes: tuple[str, ...] = ()
    """The files that were left out, and why."""


def join(files: Sequence[JudgedFile], job: JobRead | None) -> Joined | None:
    """Returns the answer; None where no job failed in these files."""
    read = job or JobRead(JobEvidence(), (), ())
    exhibits = list(_exhibits(files, read))
    others = other_jobs(exhibits)
    if others:
        files = [it for it in files if it.file.path not in others]
        exhibits = [it for it in exhibits if it.path not in others]
        read = _read_again(files, read)
    by_path = {each.file.path: each for each in files}
    origins = _own_ranks(exhibits)
    job_files = [JobFile(path, origins.get(path, by_path[path].origin), by_path[path].twins) for path in read.files]
    dumps = {it.path for it in exhibits if it.stacks and not it.is_job}
    rest = [
        JobFile(it.file.path, it.origin, it.twins, it.file.path in dumps)
        for it in files
        if it.file.path not in read.files
    ]
    said = [each for it in exhibits for each in it.identities]
    roster = roster_of(read.evidence, (*job_files, *rest), said)
    finder = LineFinder(each.file for each in files)
    witnessed = list(witness_faults(exhibits, roster))
    faults = [*witnessed, *_faults(files, read, roster, finder)]
    first = find_first(roster, faults)
    if first is None:
        return None
    timeline = tuple(_timeline(first, finder, _year(roster.evidence.events)))
    told = {line.path for line in timeline} | {read.files[event.place.file] for event in read.evidence.events}
    silent = tuple(it.file.path for it in files if it.file.path not in told and it.result.kind and not it.findings)
    sentence = f"{capital(first.subject)} {first.says} ({first.code})."
    order = "cause" if first.by_cause else "time"
    answer = JoinedAnswer(sentence, order, timeline, first.host, first.ranks, silent)
    notes = tuple(f"{path} is of another job: {why}" for path, why in others.items())
    return Joined(answer, _as_finding(first, order), notes)


def _exhibits(files: Iterable[JudgedFile], job: JobRead) -> Iterator[Exhibit]:
    """What each file says of processes, hosts and times. Of many large files the first are asked."""
    year, large = _year(job.evidence.events), 0
    for it in files:
        if it.result.kind in _RECORDINGS:
            continue
        content = it.file.read()
        large += content.held_bytes > _GLIMPSE_BEGINNING + _GLIMPSE_END
        if b"\0" in content.first_bytes or large > _MAX_LARGE:
            continue
        is_job = it.file.path in job.files
        read = read_exhibit(it.file.path, it.origin, _glimpse(content), it.result.kind or "", is_job, year)
        del content  # while the next one is read
        yield read._replace(twins=it.twins)


def _glimpse(content: FileContent) -> str:
    """The beginning and the end of a file."""
    beginning = end = ""
    for piece in content.pieces():
        room = _GLIMPSE_BEGINNING - len(beginning)
        beginning += piece[:room] if room > 0 else ""
        end = (end + piece[max(0, room) :])[-_GLIMPSE_END:]
    return beginning + end


def _own_ranks(exhibits: Sequence[Exhibit]) -> dict[str, Origin]:
    """The origins of files that are each of one rank, as their lines say, where several are; with their hosts."""
    alone = {it.path: next(iter(it.ranks)) for it in exhibits if it.is_job and len(it.ranks) == 1}
    apart = len(set(alone.values())) > 1
    found: dict[str, Origin] = {}
    for it in (it for it in exhibits if it.is_job):
        named = it.origin.rank is not None or it.origin.local_rank is not None
        rank = alone.get(it.path) if apart and not named else it.origin.rank
        found[it.path] = it.origin._replace(rank=rank, host=it.host)
    return found


def _read_again(files: Iterable[JudgedFile], job: JobRead) -> JobRead:
    """The job without the files that are of another one."""
    kept = [it for it in files if it.file.path in job.files]
    reader = JobLogReader()
    for it in kept:
        reader.begin_file()
        for piece in it.file.read().pieces():
            reader.feed(piece)
    return JobRead(reader.evidence(), tuple(it.file.path for it in kept), job.findings)


def _as_finding(first: First, order: str) -> Finding:
    evidence = {"host": first.host, "ranks": list(first.ranks) or None, "order": order}
    return finding(
        first.code,
        first.subject,
        first.says,
        evidence={name: value for name, value in evidence.items() if value is not None},
        fix=first.fix.text,
        commands=first.fix.commands,
        severity=Severity.CRITICAL,
    )


def _faults(files: Iterable[JudgedFile], job: JobRead, roster: Roster, finder: LineFinder) -> Iterator[Fault]:
    """The findings of files other than the job's output, each with its host and time."""
    pids = {pid for event in roster.evidence.events for pid in _killed_pids(event)}
    year = _year(roster.evidence.events)
    listed = [(each, found) for each in files for found in each.findings if found not in job.findings]
    for each, found in listed[:_MAX_FAULTS]:
        host = found.evidence.get("host") or found.evidence.get("node") or each.origin.host
        name = next((name for name in _QUOTES if found.evidence.get(name)), "")
        quote = str(found.evidence[name]) if name else ""
        line = (finder.find_last if name == "last" else finder.find)(each.file.path, quote)
        if found.code in MEMORY:
            killed = (finder.find(each.file.path, f"illed process {pid} (") for pid in pids)
            line = next(filter(None, killed), line)
        yield Fault(
            found.code,
            found.device,
            found.summary,
            found.severity is Severity.CRITICAL,
            each.file.path,
            _host(host, roster),
            line.text if line else quote,
            wall_time(str(found.evidence["time"])) if found.evidence.get("time") else _time_of(line, year),
            found.fix,
            tuple(found.evidence.get(ACCUSED) or ()),
        )


def _time_of(line: FoundLine | None, year: int | None) -> float | None:
    return None if line is None else wall_time(line.text, year)


def _killed_pids(event: Event) -> tuple[str, ...]:
    return tuple(filter(None, found.groups())) if (found := _KILLED_PID.search(event.line)) else ()


def _host(told: object, roster: Roster) -> str | None:
    """The host as the job's ranks name it: a kernel's log may have its full name."""
    if not isinstance(told, str) or not told:
        return None
    named = roster.names.get(told, told)
    alike = [host for host in roster.all_hosts if host.partition(".")[0] == named.partition(".")[0]]
    return alike[0] if len(alike) == 1 else named


def _year(events: Iterable[Event]) -> int | None:
    dated = (event.place.seconds for event in events if event.place.dated and event.place.seconds)
    return next((year_of(seconds) for seconds in dated), None)


def _timeline(first: First, finder: LineFinder, year: int | None) -> Iterator[TimelineLine]:
    shown: dict[tuple[str, int | None, str], TimelineLine] = {}
    longest: dict[tuple[int, ...], tuple[Clue, FoundLine]] = {}
    for clue in first.clues:
        if clue.is_last_line and (last := finder.last(clue.path)) and any(map(str.isalnum, last.text)):
            kept = longest.setdefault(clue.ranks, (clue, last))
            if (last.number or 0) > (kept[1].number or 0):  # of stdout and stderr, that in which the rank wrote more
                longest[clue.ranks] = clue, last
    shown |= {(clue.path, last.number, last.text): _line(clue, last, year) for clue, last in longest.values()}
    for clue in (clue for clue in first.clues if not clue.is_last_line):
        found = finder.find(clue.path, clue.quote, clue.offset)
        line = _line(clue, found or FoundLine(None, clue.quote), year)
        shown.setdefault((line.path, line.line, line.text), line)
    lines = list(shown.values())
    timed = all(line.at for line in lines if line.role == Role.THEN.value)
    order = [role.value for role in Role]
    yield from sorted(lines, key=lambda line: (order.index(line.role), line.at or "" if timed else ""))


def _line(clue: Clue, found: FoundLine, year: int | None) -> TimelineLine:
    seconds = wall_time(found.text, year) or (clue.seconds if clue.seconds and clue.seconds > _WALL_CLOCK else None)
    return TimelineLine(
        clue.role.value,
        clue.path,
        found.number,
        _shown(found.text, clue.quote),
        time_text(seconds) if seconds else None,
        clue.host,
        clue.ranks,
    )


def _shown(line: str, quote: str) -> str:
    """The line; without its head where it is too long with it."""
    text = printable_line(line)
    at = text.find(printable_line(quote[:80])) if len(text) > MAX_LINE_CHARACTERS and quote else 0
    return printable_line(text[max(0, at) :], MAX_LINE_CHARACTERS)


def supersede(findings: Sequence[Finding], job: JobRead | None, together: Joined) -> list[Finding]:
    """The findings with the joined one first, in place of what it says better: the job's own, and the same fault."""
    joined = together.finding
    shown = {line.text for line in together.answer.timeline if line.role == Role.FIRST.value}
    own = () if job is None else job.findings[:1]
    ranks = joined.evidence.get("ranks")
    rest = (
        it
        for it in findings
        if it not in own
        and (it.code, it.device) != (joined.code, joined.device)
        and not (it.code == joined.code and (it.device in joined.summary or it.evidence.get("line") in shown))
        and not (ranks and it.evidence.get(ACCUSED) == ranks)
    )
    return [joined, *rest]
