"""Reads a job's output, from one rank or all, in pieces and in bounded memory: which lines say why the job ended.

Few lines do, so that a piece is searched for words first, and only the lines that have one are parsed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.entities import Side, only
from laggard.diagnose.failing_lines import ENDED_WELL, Grade, grade_of
from laggard.diagnose.job import lines
from laggard.diagnose.job.around import Around
from laggard.diagnose.job.events import EXCEPTION_NAME, MAX_EVENTS, Event, JobEvidence, Place, Rule, Weight, Writer
from laggard.diagnose.job.exits import Statuses, read_exit
from laggard.diagnose.job.of_lines import event_of, exception_event, with_hosts, with_rank, with_reason, writer_of
from laggard.diagnose.job.rules import NAN_LOSS, NCCL_REASON, rule_for
from laggard.diagnose.kinds import effect_of, is_vague
from laggard.diagnose.rules import table

_MAX_STREAMS: Final = 8192
_MAX_SHAPES: Final = 8192
_MAX_RANKS: Final = 1 << 18
_MAX_LOCATED_EVENTS: Final = 256
_MAX_REPEATS: Final = 64
_MAX_REPEATING: Final = 1 << 15
_MAX_LAST_LINES: Final = 64
_QUOTE: Final = "> "
_MAX_SAID: Final = 512
_SETTINGS_CHARACTERS: Final = 1 << 18
"""The most that is searched for variables, of all files: who starts says his settings first."""
_MAX_SETTINGS: Final = 256
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

_SETTING = re.compile(
    r"\b([A-Z][A-Z0-9]{1,30}_[A-Z0-9_]{2,60})(?: set (?:by environment )?to |=)['\"]?([^\s'\",;]{1,200})"
)
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
_ONE_NODE = re.compile(r"\bn(?:um_)?nodes['\"]?\s?[:= ]\s?['\"]?1\b(?!:)")
_PASSED_ON = re.compile(r".{0,200}?NCCL INFO [\w/.-]{1,60}:\d+ -> \d")
"""A call of NCCL that gives on the error of the call below it."""
_HEAD_OF_NCCL = re.compile(r"^\S+:\d+:\d+ (?:\[-?\d+\] )?(?=\S+ NCCL WARN )")


_NOBODY: Final = lines.JobLine("").stream


class JobLogReader:
    """Takes the files of one job, one after the other, each in pieces that end with a line."""

    def __init__(self) -> None:
        self._parser = lines.LineParser()
        self._events: list[Event] = []
        self._statuses = Statuses()
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
        self._settings: dict[str, str] = {}
        self._searched = 0
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
        return *found, self._nan is None, self._statuses.latest()

    def evidence(self, ended: bool = True) -> JobEvidence:
        """`ended`: the file was read to its end."""
        found = self._events
        if ended and all(event.weight is Weight.SUMMARY for event in found):
            found = [*found, *self._raised_before, *self._raised]
        if ended and not found:
            found = [it._replace(weight=Weight.WAITED) for it in self._warned.values() if self._waits(it)]
        events = with_hosts(tuple(map(with_rank, found) if self._one_node else found))
        if not sum(self._progress) and all(event.kind == "bare" for event in events):
            events = ()  # a single word, in a text that shows no training
        return JobEvidence(
            events,
            self._statuses.all(),
            frozenset(self._ranks),
            self._world_size,
            tuple(self._progress),
            None if self._is_finite_again() else self._nan,
            self._dropped,
            tuple(self._warned.values()),
            self._settings,
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
        if self._searched < _SETTINGS_CHARACTERS:
            self._searched += min(len(piece), _SETTINGS_CHARACTERS)
            for name, value in _SETTING.findall(piece, 0, _SETTINGS_CHARACTERS)[:_MAX_SETTINGS]:
                self._settings.setdefault(name, value)
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
        self._statuses.note(line)
        if exit_event := read_exit(line, place, lambda: around.before(8)):
            self._add(self._surrounded(exit_event, around))
            return
        if "nan" in text.lower() and NAN_LOSS.search(text):
            self._last_nan = place
            if self._nan is None:
                self._nan = Event(
                    "JOB_NAN_LOSS", "nan", Weight.FAILED, "the loss became NaN", text, place, writer_of(line)
                )
        self._match(around, place)

    def _match(self, around: Around, place: Place) -> None:
        line = around.line
        opened = self._tracebacks.get(line.stream)
        rule = self._rule_for(line.text) or (self._rule_for(line.logged) if line.logged else None)
        if rule and rule.weight is Weight.WARNED:
            self._warned[rule.kind] = event_of(rule, line, place)
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
            if opened.offset < 0:  # of an exception that ends nothing by itself, as in a thread
                self._note_said(around, place)
                return
            place = opened
        event = event_of(rule, line, place) if rule is not None else self._exception(around, place)
        located = len(self._events) < _MAX_LOCATED_EVENTS
        if located and event.kind.startswith("nccl") and (reason := around.last_error()):
            event = with_reason(event, reason)
        if raised and located:
            where, is_within = around.raised()
            event = event._replace(where=where, is_within=is_within)
        if raised and opened and (writer := self._announced.pop(line.stream, None)) and event.writer == Writer():
            event = event._replace(writer=writer)
        self._add_raised(self._surrounded(event, around), line)

    def _reason_of_nccl(self, around: Around) -> Rule | None:
        """The last warning before calls that give on its error is their reason, whatever it is."""
        text = around.line.text
        is_reason = " WARN " in text and NCCL_REASON.pattern.match(text) and not is_vague(text)
        below = (it.text for it in around.after(2)) if is_reason else ()
        return NCCL_REASON if any(map(_PASSED_ON.match, below)) else None

    def _note_said(self, around: Around, place: Place) -> None:
        line = around.line
        if (grade_of(line, around.piece[around.start : around.end]) or Grade.WARNED) is Grade.WARNED:
            return
        if len(self._said) >= 2 * _MAX_SAID:  # the first explain what waited, the last an end
            del self._said[_MAX_SAID]
        text = _HEAD_OF_NCCL.sub("", line.text)
        self._said.append(Event("JOB_EXCEPTION", "said", Weight.FAILED, text, line.text, place, writer_of(line)))

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
        event = exception_event(around.line, place)._replace(more=around.goes_on())
        effect = effect_of(around.line.text)
        if effect is None:
            return event
        if len(self._events) < _MAX_LOCATED_EVENTS and around.fetches():
            told = f"a DataLoader worker was gone when its batch was fetched: {around.line.text[:300]}"
            return event._replace(code="JOB_DATALOADER_DIED", kind="dataloader", summary=told)
        return event._replace(kind=effect.kind, weight=Weight[effect.more["weight"].upper()])

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
            event = event_of(rule, line, place) if rule else exception_event(line, place)
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
        if len(self._repeated) < _MAX_REPEATING or key in self._repeated:
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
            self._announced[line.stream] = writer_of(before)
        if ends_nothing or (ending := around.ending()) is None:
            return
        last, raised = ending
        if last.stream != line.stream:  # its lines have no heads
            self._tracebacks[last.stream] = self._tracebacks.pop(line.stream)
            self._announced[last.stream] = writer_of(line)
        if not _EXCEPTION.match(last.text) and self._rule_for(last.text) is None:
            del self._tracebacks[last.stream]
            event = exception_event(last, place)._replace(where=raised.where, is_within=raised.is_within)
            writer = self._announced.pop(last.stream, event.writer)
            self._add_raised(self._surrounded(event._replace(writer=writer), around), last)


def _count_progress(piece: str, start: int, end: int) -> int:
    return sum(piece.count(word, start, end) for word in lines.PROGRESS_WORDS)
