"""Reads a job's output, from one rank or all, in pieces and in bounded memory: which lines say why the job ended.

Few lines do, so that a piece is searched for words first, and only the lines that have one are parsed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from laggard.diagnose.entities import Side, only
from laggard.diagnose.failing_lines import ENDED_WELL, Grade, grade_of
from laggard.diagnose.job import lines
from laggard.diagnose.job.around import Around
from laggard.diagnose.job.events import (
    EXCEPTION_NAME,
    MAX_EVENTS,
    Event,
    Group,
    Place,
    Rule,
    Weight,
    WorkStatus,
    Writer,
)
from laggard.diagnose.job.exits import read_exit
from laggard.diagnose.job.rules import NAN_LOSS, NCCL_REASON, WEAK_TEXT, reason_rule, rule_for
from laggard.diagnose.rules import table

_MAX_STREAMS: Final = 8192
_MAX_SHAPES: Final = 8192
_MAX_RANKS: Final = 1 << 18
_MAX_STATUSES: Final = 1 << 15
_MAX_LOCATED_EVENTS: Final = 256
_MAX_REPEATS: Final = 64
_MAX_LAST_LINES: Final = 64
_QUOTE: Final = "> "
_MAX_SAID: Final = 512
_MIN_WARNED: Final = 3
"""How often a warning comes before it is taken for what the job waits for: the first may be of a start."""
_OFTEN_CAUGHT: Final = ("download",)
"""The kinds of exceptions that programs catch and go on without, as of telemetry: a line of them counts with its
traceback, or as the last one."""
_DULL_LINES: Final = 64
"""The number of lines of one shape that say nothing, after which further ones are not looked at."""

_LINES_PER_CANDIDATE: Final = 8
"""The number of lines of which one has a word, from where on lines are looked at one by one."""

MIN_FINITE_LINES: Final = 3
"""The number of lines of progress without NaN after which a loss that was NaN is no failure."""

_NUMBER = re.compile(r"[0-9]+")
_NUMBERS_THAT_COUNT = re.compile(r"(?:error|status|Errno|[Ss]ignal:?)[ =](?:[A-Z_]{1,40}\()?(-?\d{1,3})\b")
_STATUS_WORDS = re.compile(r"xit|ignal|status|code|enqueued")  # numbers that decide what a line says
_EXCEPTION = re.compile(rf"({EXCEPTION_NAME})(?:: (.*))?$")
_CLASS = re.compile(r"(?:\w+\.)*[A-Z]")  # of Python's: C++ has names that begin otherwise, and statistics count them
_QUIET = re.compile(r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|SUCCESS)\b", re.IGNORECASE)
_NOT_RAISED = re.compile(r"Exception ignored in|Exception in thread|Traceback of|\S+Warning: ")
_WARNED = table("job").of("warned")[0].regex
"""A line below an error's level that announces a traceback. What is only told at INFO before it does not."""
_RANK_SEEN = re.compile(r"\[(?:rank ?|Rank )(\d{1,7})\](?! Watchdog caught)")
_WORLD_SIZE = re.compile(r"(?:world_?size|WORLD_SIZE|n[rR]anks)['\"]?\s?[:= ]\s?['\"]?(\d{1,7})\b")
_STATUS = table("job").of("work_status")[0].regex
_OWN_NUMBER = re.compile(r"\[(?:(PG [^\]]{0,120}?) )?Rank (\d{1,7})\]")
_ONE_NODE = re.compile(r"\bn(?:um_)?nodes['\"]?\s?[:= ]\s?['\"]?1\b(?!:)")
_PASSED_ON = re.compile(r".{0,200}?NCCL INFO [\w/.-]{1,60}:\d+ -> \d")
"""A call of NCCL that gives on the error of the call below it."""
_NCCL_HEAD = re.compile(r"([A-Za-z0-9][\w.-]{0,252}):\d+:\d+ \[-?\d+\] ")
_TIMED_OUT = re.compile(r"\[Rank (\d{1,7})\] Watchdog caught .*?WorkNCCL\((?:SeqNum=(\d+), )?OpType=(\w+)")


_NO_GROUP: Final = Group()
_NOBODY: Final = lines.JobLine("").stream
_GROUP = re.compile(r"PG(?: ID)? (\d{1,9})(?: PG GUID (\d{1,9}))?(?: ?\(([^()]{1,80})\))?")


class _Process(NamedTuple):
    """A process, by the heads of its lines and its number within a group."""

    stream: tuple[object, ...]
    number: int


class JobEvidence(NamedTuple):
    """The evidence that the files of one job hold; without arguments, that of files that no job wrote."""

    events: tuple[Event, ...] = ()
    statuses: tuple[WorkStatus, ...] = ()
    ranks_seen: frozenset[int] = frozenset()
    world_size: int | None = None
    progress: tuple[int, ...] = ()
    """The number of lines with a loss or a speed, for each file."""
    nan: Event | None = None
    """The first line whose loss is NaN."""
    dropped: int = 0
    """The number of events that were left out, because a process repeated itself or there were more than are kept."""
    warned: tuple[Event, ...] = ()
    """Warnings that may be the reason of a failure: they are none by themselves."""
    said: tuple[Event, ...] = ()
    """Lines that no rule takes and that say by themselves that something failed: of an end without a reason they are
    the reason."""


class JobLogReader:
    """Takes the files of one job, one after the other, each in pieces that end with a line."""

    def __init__(self) -> None:
        self._parser = lines.LineParser()
        self._events: list[Event] = []
        self._statuses: dict[tuple[Group, _Process], WorkStatus] = {}
        self._ranks: set[int] = set()
        self._world_size: int | None = None
        self._one_node = False
        self._progress: list[int] = []
        self._nan: Event | None = None
        self._last_nan: Place | None = None
        self._dropped = 0
        self._offset = 0
        self._last_date: tuple[float | None, bool] = (None, False)
        self._tracebacks: dict[tuple[object, ...], Place] = {}
        self._announced: dict[tuple[object, ...], Writer] = {}
        """Who wrote the line before a traceback that has no head itself, as loggers write it."""
        self._chained: dict[tuple[object, ...], int] = {}
        self._shapes: dict[str, Rule | None] = {}
        self._dull: dict[str, int] = {}
        """The number of lines that said nothing, by their shape, numbers aside."""
        self._repeated: dict[tuple[str, tuple[object, ...]], int] = {}
        self._raised: list[Event] = []
        """The exceptions of the last lines of the file, of which no traceback is there: its beginning was cut off."""
        self._raised_end = 0
        self._raised_before: list[Event] = []
        """Those of the files before."""
        self._warned: dict[str, Event] = {}
        """The last warning of each kind that may be the reason of a failure."""
        self._times_warned: Counter[str] = Counter()
        self._said: list[Event] = []
        self._dense = False
        """True where many lines have had one of the words."""

    def begin_file(self) -> None:
        self._progress.append(0)
        self._offset = self._raised_end = 0
        self._raised_before += self._raised[: MAX_EVENTS - len(self._raised_before)]
        self._raised.clear()
        self._last_date = (None, False)
        self._tracebacks.clear()
        self._chained.clear()
        self._repeated.clear()

    def feed(self, piece: str) -> None:
        self._note_ranks(piece)
        counted = looked_at = 0
        for start, end in self._interesting(piece) if self._dense else lines.sparse(piece):
            looked_at += 1
            shape = lines.shape_of(piece[start:end])
            if self._is_dull(shape):
                continue
            self._progress[-1] += _count_progress(piece, counted, start)
            counted = start
            known = self._known()
            self._read(piece, start, end)
            if known == self._known() and len(self._dull) < _MAX_SHAPES and not _STATUS_WORDS.search(shape):
                self._dull[shape] = self._dull.get(shape, 0) + 1
        self._progress[-1] += _count_progress(piece, counted, len(piece))
        self._forget_past(piece)
        self._forget_raised(piece, len(piece))
        self._offset += len(piece)
        if not self._dense:
            self._dense = looked_at > piece.count("\n") // _LINES_PER_CANDIDATE

    def _is_dull(self, shape: str) -> bool:
        return self._dull.get(shape, 0) >= _DULL_LINES and not self._tracebacks

    def _interesting(self, piece: str) -> Iterator[tuple[int, int]]:
        """The lines of candidates(), found line by line and without dull lines, which is faster where very many lines
        have one of the words."""
        start = 0
        for line, shape in zip(piece.split("\n"), lines.shapes_of(piece).split("\n"), strict=True):
            if self._is_dull(shape[: lines.SHAPE_CHARACTERS]):
                pass
            elif len(line) > lines.MAX_LINE_CHARACTERS or "\r" in line:
                yield from ((start + first, start + last) for first, last in lines.candidates(line))
            elif any(word in line for word in lines.WORDS):
                yield start, start + len(line)
            start += len(line) + 1

    def _known(self) -> tuple[object, ...]:
        """Changes with each line that says anything."""
        found = len(self._events), self._dropped, len(self._tracebacks), len(self._chained)
        return *found, self._nan is None, tuple(self._statuses.items())[-1:]

    def evidence(self, ended: bool = True) -> JobEvidence:
        """`ended`: the file was read to its end."""
        found = self._events
        if ended and all(event.weight is Weight.SUMMARY for event in found):
            found = [*found, *self._raised_before, *self._raised]
        if ended and not found:
            found = [it._replace(weight=Weight.WAITED) for it in self._warned.values() if self._waits(it)]
        events = _with_hosts(tuple(map(_with_rank, found) if self._one_node else found))
        if not sum(self._progress) and all(event.kind == "bare" for event in events):
            events = ()  # a single word, in a text that shows no training
        return JobEvidence(
            events,
            tuple(self._statuses.values()),
            frozenset(self._ranks),
            self._world_size,
            tuple(self._progress),
            None if self._is_finite_again() else self._nan,
            self._dropped,
            tuple(self._warned.values()),
            tuple(self._said),
        )

    def _waits(self, warned: Event) -> bool:
        """Whether a warning came again and again, and no training after it."""
        trained = self._progress[warned.place.file] > warned.place.progress
        return self._times_warned[warned.kind] >= _MIN_WARNED and not trained

    def _is_finite_again(self) -> bool:
        """Whether the loss was a number again after the last NaN: a step was skipped, and training went on."""
        last = self._last_nan
        return last is not None and self._progress[last.file] - last.progress > MIN_FINITE_LINES

    def _note_ranks(self, piece: str) -> None:
        if ("[rank" in piece or "[Rank " in piece) and len(self._ranks) < _MAX_RANKS:
            self._ranks.update(map(int, set(_RANK_SEEN.findall(piece))))
        if not self._one_node and "nodes" in piece:
            self._one_node = _ONE_NODE.search(piece) is not None
        if "world" in piece or "WORLD" in piece or "anks" in piece:
            sizes = [int(size) for size in _WORLD_SIZE.findall(piece)]
            self._world_size = max([*sizes, self._world_size or 0]) or None

    def _read(self, piece: str, start: int, end: int) -> None:
        around = Around(self._parser.parse, piece, start, end)
        line = around.line
        place = self._place(start, line)
        text = line.text
        if text.startswith("Traceback (most recent call last)"):
            self._open_traceback(around, place)
            return
        if "the above exception" in text:
            self._chained[line.stream] = len(self._events) - 1
            return
        self._note_status(line)
        if exit_event := read_exit(line, place, lambda: around.before(8)):
            self._add(self._surrounded(exit_event, around))
            return
        if "nan" in text.lower() and NAN_LOSS.search(text):
            self._last_nan = place
            if self._nan is None:
                self._nan = Event(
                    "JOB_NAN_LOSS", "nan", Weight.FAILED, "the loss became NaN", text, place, _writer(line)
                )
        self._match(around, place)

    def _match(self, around: Around, place: Place) -> None:
        line = around.line
        opened = self._tracebacks.get(line.stream)
        rule = self._rule_for(line.text) or (self._rule_for(line.logged) if line.logged else None)
        if rule and rule.weight is Weight.WARNED:
            self._warned[rule.kind] = _event_of(rule, line, place)
            self._times_warned[rule.kind] += 1
            return
        raised = _EXCEPTION.match(line.text)
        if rule is None and not raised:
            rule = self._reason_of_nccl(around)
            if rule is None:
                self._note_said(around, place)
        if (rule is None or rule.kind in _OFTEN_CAUGHT) and not (raised and (opened or line.traced)):
            is_cut = raised and line.rank is not None and not line.logged and around.raised().where
            if raised and not is_cut and _CLASS.match(raised[1]):
                self._note_raised(around, place, rule)
            if not is_cut:
                return
        if rule is not None and not opened and self._is_repeated(rule.kind, line):
            return
        if raised and opened:
            del self._tracebacks[line.stream]
            if opened.offset < 0:  # of an exception that ends nothing
                return
            place = opened
        event = _event_of(rule, line, place) if rule is not None else self._exception(around, place)
        located = len(self._events) < _MAX_LOCATED_EVENTS
        if located and event.kind.startswith("nccl") and (reason := around.last_error()):
            event = _with_reason(event, reason)
        if raised and located:
            where, is_within = around.raised()
            event = event._replace(where=where, is_within=is_within)
        if raised and opened and (writer := self._announced.pop(line.stream, None)) and event.writer == Writer():
            event = event._replace(writer=writer)
        self._add_raised(self._surrounded(event, around), line)

    def _reason_of_nccl(self, around: Around) -> Rule | None:
        """The last warning before calls that give on its error is their reason, whatever it is."""
        text = around.line.text
        is_reason = " WARN " in text and NCCL_REASON.pattern.match(text)
        below = (it.text for it in around.after(2)) if is_reason else ()
        return NCCL_REASON if any(map(_PASSED_ON.match, below)) else None

    def _note_said(self, around: Around, place: Place) -> None:
        line = around.line
        if (grade_of(line, around.piece[around.start : around.end]) or Grade.WARNED) is Grade.WARNED:
            return
        if len(self._said) >= 2 * _MAX_SAID:  # the first explain what waited, the last an end
            del self._said[_MAX_SAID]
        self._said.append(Event("JOB_EXCEPTION", "said", Weight.FAILED, line.text, line.text, place, _writer(line)))

    def _surrounded(self, event: Event, around: Around) -> Event:
        """The event with whom the lines around it name; where its writer is not told, as they tell it."""
        if len(self._events) >= _MAX_LOCATED_EVENTS:
            return event
        named, own = around.named(), event.writer
        if own.rank is None and own.task is None and own.local_rank is None:
            own = own._replace(host=own.host or only(named, "host", Side.WITNESS) or None)
        return event._replace(named=named, writer=own, next_rank=around.next_rank())

    def _exception(self, around: Around, place: Place) -> Event:
        """The event of an exception that no rule knows."""
        event = _exception_event(around.line, place)
        if not WEAK_TEXT.search(around.line.text):
            return event
        if len(self._events) < _MAX_LOCATED_EVENTS and around.fetches():
            told = f"a DataLoader worker was gone when its batch was fetched: {around.line.text[:300]}"
            return event._replace(code="JOB_DATALOADER_DIED", kind="dataloader", summary=told)
        return event._replace(kind="peer_gone", weight=Weight.SUMMARY)

    def _note_raised(self, around: Around, place: Place, rule: Rule | None) -> None:
        line = around.line
        self._forget_raised(around.piece, around.start)
        where, is_within = around.raised()
        # What a logger says of an exception in a training may be of one that was caught, unless code stands above it.
        head = line.logged.removesuffix(line.text)
        trains = self._progress[-1] + _count_progress(around.piece, 0, around.start)
        if _QUIET.search(head) or (head and not where and trains):
            return
        if len(self._raised) < _MAX_LAST_LINES:
            event = _event_of(rule, line, place) if rule else _exception_event(line, place)
            self._raised.append(event._replace(where=where, is_within=is_within))
        self._raised_end = self._offset + around.end

    def _forget_raised(self, piece: str, until: int) -> None:
        """Forgets the exceptions that something follows: what caught them went on."""
        if self._raised and piece[max(0, self._raised_end - self._offset) : until].strip():
            self._raised.clear()

    def _forget_past(self, piece: str) -> None:
        """Forgets what failed before the file says that all ended well: failures that it quotes (`> `), of an earlier
        run, and ends of processes after which the training went on, since they were started again."""
        own = [it for it in self._events if it.place.file == len(self._progress) - 1]
        past = [it for it in own if it.line.startswith(_QUOTE) or self._was_restarted(it)]
        if past:
            after = piece[max(0, past[-1].place.offset - self._offset) :].split("\n")[1:]
            if any(ENDED_WELL.search(text) for text in after if not text.startswith(_QUOTE)):
                self._events = [it for it in self._events if it not in past]

    def _was_restarted(self, event: Event) -> bool:
        return event.weight in (Weight.SUMMARY, Weight.DIED) and self._progress[-1] > event.place.progress

    def _add_raised(self, event: Event, line: lines.JobLine) -> None:
        """Adds an event; of exceptions that were raised one from another, the first that says more counts."""
        before = self._chained.pop(line.stream, None)
        if before is not None and before >= 0:
            first = self._events[before]
            if first.writer == event.writer and first.code == "JOB_EXCEPTION" != event.code:
                self._events[before] = event._replace(place=first.place)
            if first.writer == event.writer:
                return
        self._add(event)

    def _add(self, event: Event) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)
        else:
            self._dropped += 1

    def _is_repeated(self, kind: str, line: lines.JobLine) -> bool:
        """Counts an event of this kind and process. Returns whether there were so many that it need not be kept."""
        key = (kind, line.stream)
        count = self._repeated.get(key, 0) + 1
        if len(self._repeated) < _MAX_STATUSES or key in self._repeated:
            self._repeated[key] = count
        self._dropped += count > _MAX_REPEATS
        return count > _MAX_REPEATS

    def _rule_for(self, text: str) -> Rule | None:
        """The first rule that matches. Lines that differ in numbers alone have the same, unless the numbers count."""
        shape = _NUMBER.sub("0", text[:300])
        if counts := _NUMBERS_THAT_COUNT.findall(text[:300]):
            shape += " ".join(counts)
        if shape not in self._shapes:
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            self._shapes[shape] = rule_for(text)
        return self._shapes[shape]

    def _note_status(self, line: lines.JobLine) -> None:
        """Of the two numbers in `[rank218]: [PG ID 6 PG GUID 623(PIPELINE) Rank 13]` the one in front is the rank in
        the job, the other that within the group."""
        text = line.text
        if len(self._statuses) >= _MAX_STATUSES:
            return
        if "last enqueued" in text and (match := _STATUS.search(text)):
            group, number = _group_of(match[1]), int(match[2])
            process = _Process(line.stream, number)
            before = self._statuses.pop((_NO_GROUP, process), None) or self._statuses.get((group, process))
            timed_out = int(match[3]) if match[3] else before.timed_out if before else None
            op = before.op if before and before.timed_out in (None, timed_out) else ""
            rank = number if line.rank is None and group.is_default else line.rank
            status = WorkStatus(group, rank, number, timed_out, op, int(match[4]), int(match[5]))
            self._statuses[group, process] = status
        elif "Watchdog caught" in text and (match := _TIMED_OUT.search(text)):
            process, work = _Process(line.stream, int(match[1])), int(match[2]) if match[2] else None
            if not any(status.timed_out == work for status in self._of_process(process)):
                status = WorkStatus(_NO_GROUP, line.rank, process.number, work, match[3])
                self._statuses[_NO_GROUP, process] = status

    def _of_process(self, process: _Process) -> Iterator[WorkStatus]:
        return (status for (_, other), status in list(self._statuses.items())[-64:] if other == process)

    def _place(self, start: int, line: lines.JobLine) -> Place:
        if line.seconds is not None:
            self._last_date = (line.seconds, line.dated)
        seconds, dated = self._last_date
        return Place(len(self._progress) - 1, self._offset + start, seconds, dated, self._progress[-1])

    def _open_traceback(self, around: Around, place: Place) -> None:
        line = around.line
        before = next(iter(around.before(1)), None)
        text = before.text if before is not None and before.stream == line.stream else ""
        ends_nothing = bool(_NOT_RAISED.match(text) or _WARNED.search(text[:240]))
        if len(self._tracebacks) >= _MAX_STREAMS:
            self._tracebacks.clear()
        self._tracebacks[line.stream] = place._replace(offset=-1) if ends_nothing else place
        self._announced.pop(line.stream, None)
        if before is not None and line.stream == _NOBODY and before.stream != _NOBODY and before.logged:
            self._announced[line.stream] = _writer(before)
        if ends_nothing or (ending := around.ending()) is None:
            return
        last, raised = ending
        if last.stream != line.stream:  # its lines have no heads
            self._tracebacks[last.stream] = self._tracebacks.pop(line.stream)
            self._announced[last.stream] = _writer(line)
        if not _EXCEPTION.match(last.text) and self._rule_for(last.text) is None:
            del self._tracebacks[last.stream]
            event = _exception_event(last, place)._replace(where=raised.where, is_within=raised.is_within)
            writer = self._announced.pop(last.stream, event.writer)
            self._add_raised(self._surrounded(event._replace(writer=writer), around), last)


def _count_progress(piece: str, start: int, end: int) -> int:
    return sum(piece.count(word, start, end) for word in lines.PROGRESS_WORDS)


def _event_of(rule: Rule, line: lines.JobLine, place: Place) -> Event:
    match = rule.pattern.match(line.text) or rule.pattern.match(line.logged)
    groups = [(group or "").strip() for group in match.groups()] if match else []
    is_bare = rule.weight is Weight.DIED and rule.pattern.match(line.text.split(" (")[0]) and _is_bare(line)
    accused = tuple(map(int, re.findall(r"\d{1,7}", groups[0])[:64])) if rule.kind == "monitored" else ()
    return Event(
        rule.code,
        "bare" if is_bare else rule.kind,
        rule.weight,
        _said(rule, line.text, line.logged)[:400],
        line.text,
        place,
        _named(match.groupdict() if match else {}, _writer(line)),
        accused=accused,
    )


def _named(fields: Mapping[str, str | None], writer: Writer) -> Writer:
    """The writer with the rank and the host that a rule's pattern names as those of the failure."""
    rank, host = fields.get("rank"), fields.get("host")
    return writer._replace(rank=int(rank[:7]) if rank else writer.rank, host=host or writer.host)


def _exception_event(line: lines.JobLine, place: Place) -> Event:
    return Event("JOB_EXCEPTION", "exception", Weight.FAILED, line.text[:400], line.text, place, _writer(line))


def _with_reason(event: Event, reason: str) -> Event:
    """The event with the reason that NCCL gave below `Last error:`; where that is a known one, of its code and kind."""
    rule = reason_rule(reason)
    if rule is None or event.kind not in ("nccl_system", "nccl_usage"):
        return event._replace(summary=f"{event.summary}: {reason}")
    summary = f"{_said(rule, f'NCCL WARN {reason}')}: {reason}"
    return event._replace(code=rule.code, kind=rule.kind, weight=rule.weight, summary=summary[:400])


def _said(rule: Rule, *texts: str) -> str:
    match = next(filter(None, map(rule.pattern.match, texts)), None)
    groups = [(group or "").strip() for group in match.groups()] if match else []
    return rule.summary.format(*groups, *[""] * 4).strip().rstrip(":. ")


def _with_hosts(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """The events with the host of their rank, where Megatron's rerun machine names it after them."""
    hosts = {it.writer.rank: it.writer.host for it in events if it.kind == "rerun" and it.writer.host}
    named = (it.writer._replace(host=it.writer.host or hosts.get(it.writer.rank)) for it in events)
    return tuple(it._replace(writer=writer) for it, writer in zip(events, named, strict=True)) if hosts else events


def _with_rank(event: Event) -> Event:
    """The same of a job on one node, on which a local rank is a rank."""
    own = event.writer
    return (
        event
        if own.rank is not None or own.local_rank is None
        else event._replace(writer=own._replace(rank=own.local_rank))
    )


def _is_bare(line: lines.JobLine) -> bool:
    return len(line.text) < 40 and line.rank is None and line.task is None and ":" not in line.text


def _group_of(text: str) -> Group:
    """The group of `PG ID 3 PG GUID 12(DATA_PARALLEL_GROUP)`, `PG ID 0 PG GUID 0`, `PG 3`, `PG 0 (default_pg)`. The ID
    is the group's place in a process's own list: without a GUID or a name there is nothing better."""
    match = _GROUP.match(text)
    if match is None:
        return Group(text.strip())
    index, guid, name = match[1], match[2] or "", match[3] or ""
    return Group(name or f"PG {guid or index}", guid)


def _writer(line: lines.JobLine) -> Writer:
    rank = line.rank
    if rank is None and (match := _OWN_NUMBER.search(line.text[:240])):
        rank = int(match[2]) if match[1] is None or _group_of(match[1]).is_default else None
    host = line.host
    if host is None and (match := _NCCL_HEAD.match(line.text)):
        host = match[1]
    return Writer(rank, line.task, line.local_rank, host)
