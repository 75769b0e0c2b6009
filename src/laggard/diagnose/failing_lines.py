"""The layer below the rules, which knows no tool: the lines of a text that say by themselves that something failed, and
of whom. It accuses nobody and finds nothing: it keeps a text that no rule knows from being called sound.

A line says so by its level (`FATAL`, `slurmd: error:`, glog's `E0708`), by an exception's name, by an exit status or a
signal, by errno's words, or by a verb with a subject (`failed to`, `cannot`, `refused`, `timed out`). Counters,
settings, conditions, what is said at INFO, what is tried again, and what a training or a success follows say nothing.
"""

from __future__ import annotations

import enum
import errno
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

import msgspec

from laggard.diagnose.job.lines import PROGRESS_WORDS, JobLine, LastProgress, LineParser, last_progress, sparse
from laggard.diagnose.kinds import advice_for, is_cause, is_vague
from laggard.diagnose.rules import patterns, words
from laggard.kit.words import counted, printable_line
from laggard.model import Fix
from laggard.wire.diagnosis import LeftLine

_P: Final = patterns("failing")

MAX_LEFT: Final = 8
"""The most lines that are kept of a text; the others are counted."""
_MAX_LOOKED_AT: Final = 50_000
_LINE_CHARACTERS: Final = 1000
_SHOWN_CHARACTERS: Final = 240
_MAX_NAMED: Final = 4
_AROUND: Final = 12
"""The lines of a paragraph around a line that are looked at for whom it is about, and for its reason."""
_SURVIVING_LINES: Final = 3
"""The lines of a training after which what was said before them ended nothing."""
_MIN_REPEATED: Final = 3
"""How often a warning comes before its last words are those of a failure: one may be of a start, two of a retry."""
_LAST_LINES: Final = 6
"""The lines of the end in which a job that ended well says so."""


class Grade(enum.IntEnum):
    WARNED = 1
    """It counts only beside graver ones."""
    FAILED = 2
    FATAL = 3
    """Something ended, or wants a repair."""


class Left(NamedTuple):
    """`lines`: the gravest first, then in order; at most MAX_LEFT of `total`."""

    total: int = 0
    lines: tuple[LeftLine, ...] = ()
    read: int = 0
    """The lines that were read."""
    last: LastProgress | None = None
    """The last line that tells of a step or a loss."""
    is_cut: bool = False
    """True: a part of the text was not read, so that lines have no numbers."""

    def __str__(self) -> str:
        """The lines in words; empty: there is none."""
        if not self.lines:
            return ""
        first = self.lines[0]
        who = f" ({first.who})" if first.who else ""
        where = f"line {first.line:,}{who}" if first.line else f"the line{who}"
        reason = f"; the text itself gives {first.reason}" if first.reason else ""
        says = (
            "1 line says that something failed, it is"
            if self.total == 1
            else (f"{self.total:,} lines say that something failed, the first is")
        )
        return f"{says} {where}: `{first.text}`{reason}"

    def nothing(self) -> str:
        """What is known where no line says that anything failed."""
        seen = "the lines that were read" if self.is_cut else counted(self.read, "line")
        known = f"none of {seen} says that anything failed, or that the job ended"
        if self.last is None:
            return known
        where = f"line {self.last.line:,}, " if not self.is_cut else ""
        return f"{known}; the last that tells of a step or loss: {where}`{self.last.text}`"

    def moved(self, by: int) -> Left:
        """The same with other numbers of lines."""
        lines = (msgspec.structs.replace(it, line=it.line + by) for it in self.lines if it.line)
        last = self.last._replace(line=self.last.line + by) if self.last else None
        return self._replace(lines=tuple(lines), last=last)

    def without_numbers(self) -> Left:
        """The same of a file of which a part was not read."""
        lines = (msgspec.structs.replace(it, line=None) for it in self.lines)
        return self._replace(lines=tuple(lines), is_cut=True)


"""The patterns of rules/failing.ini, by name."""
ENDED_WELL: Final = _P["ended_well"]
_WORDS: Final = words("failing")
"""Each line that says that something failed has one of these."""
_LEVEL_CHARACTERS: Final = 160
_HARMLESS_ERRNO: Final = _P["harmless_errno"].pattern.split()
_ERRNO: Final = "|".join(
    re.escape(os.strerror(number)) for number, name in sorted(errno.errorcode.items()) if name not in _HARMLESS_ERRNO
)
_SIGNALS: Final = "|".join(
    re.escape(signal.strsignal(number) or "")
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGKILL)
)
_BY_LIBC = re.compile(rf"(?:[:(\['\"] ?|^)(?:{_ERRNO})(?![\w-])|(?:^|: ?)(?:{_SIGNALS})(?=$| \()")


_NO_ADVICE: Final = Fix("")


class _Seen(NamedTuple):
    grade: Grade
    number: int
    line: JobLine
    around: tuple[str, str]
    """What stands before it and behind it."""
    retried: bool
    training: int
    """The lines of training before it."""


def grade_of(line: JobLine, raw: str) -> Grade | None:
    """Returns how grave a line is by its own words; None: it says of no failure. `raw`: the line with its head."""
    text = line.text
    level = _level_of(raw[:_LEVEL_CHARACTERS])
    if level == "quiet" or _P["nothing"].search(text):
        return None
    says = _said(text)
    if level == "warned":
        return Grade.WARNED if says else None
    if level == "fatal":
        return Grade.FATAL
    return max(says or Grade.FAILED, Grade.FAILED) if level == "failed" or line.logged else says


def says_the_end(text: str) -> bool:
    """Whether a record says that something ended, or wants a repair; also one that is called a warning."""
    if _P["nothing"].search(text):
        return False
    return Grade.FATAL in (_said(text), grade_of(LineParser().parse(text), text))


def _level_of(head: str) -> str:
    """The name of the level's group in _LEVEL; empty: the line has none."""
    if letter := _P["letter"].match(head):
        return {"I": "quiet", "W": "warned", "E": "failed", "F": "fatal"}[letter["glog"] or letter["c10d"]]
    found = None if _P["event"].search(head) else _P["level"].search(head)
    name = found.lastgroup if found else None
    return "" if name is None or name == "own" or (name == "failed" and not _said(head)) else name


def _said(text: str) -> Grade | None:
    if _P["fatal"].search(text):
        return Grade.FATAL
    return (
        Grade.FAILED
        if _P["failed"].search(text) or _P["name"].search(text) or _BY_LIBC.search(text) or _P["exception"].match(text)
        else None
    )


def read_left(pieces: Iterable[str], takes: Callable[[str], bool] | None = None) -> Left:
    """Reads a text in pieces that end with a line. `takes`: the lines that a reader took, which say nothing here."""
    seen: dict[Grade, list[_Seen]] = {grade: [] for grade in Grade}
    totals = dict.fromkeys(Grade, 0)
    parser, number, training, end = LineParser(), 1, 0, ""
    looked_at, last = 0, None
    for piece in pieces:
        counted_to = line_at = 0
        for start, stop in sparse(piece, _WORDS) if looked_at < _MAX_LOOKED_AT else ():
            looked_at += 1
            raw = piece[start:stop]
            if takes and takes(raw):
                continue
            line = parser.parse(raw[:_LINE_CHARACTERS])
            grade = grade_of(line, raw)
            if grade is None:
                continue
            number += piece.count("\n", line_at, start)
            training += _training(piece, counted_to, start)
            line_at = counted_to = start
            totals[grade] += 1
            kept = seen[grade]
            if len(kept) >= MAX_LEFT:  # of many, the first and the latest tell whether it went on
                kept[-1] = _seen(grade, number, line, piece, start, stop, training)
            else:
                kept.append(_seen(grade, number, line, piece, start, stop, training))
        last = last_progress(piece, number - 1 - piece.count("\n", 0, line_at)) or last
        number += piece.count("\n", line_at)
        if looked_at:  # of what stands before the first, nobody asks
            training += _training(piece, counted_to, len(piece))
        end = (end + piece)[-_AROUND * _SHOWN_CHARACTERS :]
    read = number - 1 + bool(end and not end.endswith("\n"))
    return _left(seen, totals, training, end)._replace(read=read, last=last)


def _training(piece: str, start: int, end: int) -> int:
    return sum(piece.count(word, start, end) for word in PROGRESS_WORDS)


def _seen(grade: Grade, number: int, line: JobLine, piece: str, start: int, stop: int, training: int) -> _Seen:
    reach = _AROUND * _SHOWN_CHARACTERS
    around = piece[max(0, start - reach) : start], piece[stop : stop + reach]
    retried = bool(_P["retried"].search(line.text)) and not _P["exhausted"].search(line.text)
    return _Seen(grade, number, line, around, retried, training)


def _left(seen: dict[Grade, list[_Seen]], totals: dict[Grade, int], training: int, end: str) -> Left:
    """What is left once what went on and what ended well is taken away. Warnings count beside graver lines alone."""
    graver = [it for grade in (Grade.FATAL, Grade.FAILED) for it in seen[grade] if not _went_on(it, training, end)]
    graver = graver or _repeated(seen[Grade.WARNED], totals[Grade.WARNED], training, end)
    if not graver or ends_well(end):
        return Left()
    first = min(graver, key=_depth)
    graver.remove(first)
    before = [it for it in seen[Grade.WARNED] if 0 < first.number - it.number <= _AROUND][-1:]
    shown = [_shown(it) for it in (first, *before, *graver)][:MAX_LEFT]
    if before and not shown[0].reason:
        shown[0] = msgspec.structs.replace(shown[0], reason=f"before it: {shown[1].text}")
    total = totals[Grade.FATAL] + totals[Grade.FAILED]
    return Left(max(len(graver) + 1, total), tuple(shown))


def _depth(seen: _Seen) -> tuple[bool, int, bool]:
    """Sorts what tells of a cause before what tells of none; the graver first, and effects and ends after what tells
    more, as they came."""
    text = seen.line.text
    return not is_cause(text), -seen.grade, is_vague(text)


def _repeated(warned: list[_Seen], total: int, training: int, end: str) -> list[_Seen]:
    """Warnings that came again until the text ends, with no training after them: what they warn of has failed."""
    last = end.rstrip().rpartition("\n")[2]
    until_the_end = total >= _MIN_REPEATED and warned[-1].line.text in last
    return [it for it in warned if not _went_on(it, training, end)] if until_the_end else []


def _went_on(seen: _Seen, training: int, end: str) -> bool:
    last = end.rstrip().rpartition("\n")[2]
    return training - seen.training >= _SURVIVING_LINES or (seen.retried and seen.line.text not in last)


def ends_well(end: str) -> bool:
    """Whether the last lines of a text say that all ended well."""
    last = [line for line in end.split("\n") if line.strip()][-_LAST_LINES:]
    parser = LineParser()
    return any(ENDED_WELL.search(line) and grade_of(parser.parse(line), line) is None for line in last)


def _shown(seen: _Seen) -> LeftLine:
    before, after = seen.around[0].split("\n")[:-1][::-1][:_AROUND], seen.around[1].split("\n")[1:][:_AROUND]
    own = seen.line.logged or seen.line.text
    reason = next((f"{it[1]}: {it[2]}" for line in (own, *after) if (it := _P["reason"].search(line))), "")
    return LeftLine(
        seen.number,
        printable_line(own, _SHOWN_CHARACTERS),
        ", ".join(_who(seen.line, own, before, after)),
        "" if reason in own else printable_line(reason, _SHOWN_CHARACTERS),
        fix if (fix := advice_for((own, reason), _NO_ADVICE)).text else None,
    )


def _who(line: JobLine, own: str, before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Whom a line is about, as the text spells it: its head and itself name it, or else what stands nearest does, with
    what is listed below that. The one that another speaks of comes before the one that speaks."""
    head = [line.host] if line.host else []
    head += [f"rank {line.rank}"] if line.rank is not None else [f"task {line.task}"] if line.task is not None else []
    found = dict.fromkeys([*head, *_names(own)])
    near = [text for pair in zip_longest(before, after, fillvalue="") for text in pair]
    first = next((place for place, text in enumerate(near) if any(_names(text))), None)
    if not found and first is not None:
        listed = after[first // 2 :] if first % 2 else near[first : first + 1]
        for text in listed:
            if _P["gap"].match(text) and found:
                break
            found |= dict.fromkeys(_names(text))
    return sorted(found, key=lambda name: (_P["own_side"].match(name) is not None, not _P["other_side"].match(name)))[
        :_MAX_NAMED
    ]


def _names(text: str) -> Iterator[str]:
    for match in _P["named"].finditer(text[:_LINE_CHARACTERS]):
        yield f"{match['what']} {match['name'].rstrip('.:,')}"
    for match in _P["device"].finditer(text[:_LINE_CHARACTERS]):
        yield match[0]
