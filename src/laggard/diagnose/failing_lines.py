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

from laggard.diagnose.job.lines import JobLine, LineParser, sparse
from laggard.diagnose.job.progress import PROGRESS_WORDS, LastProgress, last_progress
from laggard.kit.words import counted, printable_line
from laggard.wire.diagnosis import LeftLine

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


_WORDS: Final = (
    "rror", "ERR", "atal", "FATAL", "ail", "FAIL", "annot", "an't", "ould not", "ouldn't", "nable", "efused",
    "enied", "imed out", "imes out", "imeout", "ime-out", "illed", "KILLED", "OOM", "bort", "ABORT", "anic", "PANIC",
    "xception", "nterrupt", "nexpected", "ncorrect", "UNCORRECT", "nrecoverable", "xit", "ignal", "SIG", "died",
    "dead", "rash", "lost ", "egfault", "egmentation", "nreachable", "espond", "o such", "o space", "ore dumped",
    "CRIT", "ritical", "nvalid", "ismatch", "eadlock", "hung", "ut of memory", "llegal", "ermitted", "oo many",
    "tale", "reset", "RESET", "Bus", "BackOff", "Evicted", "NotReady", "roken pipe", "ot connected", "ot known",
    "llocate", "equires", "allen off", "nsupported", "ot supported", "navailable", "EMERG", "ALERT", "SEVERE", "[E ",
    "[F ", "E0", "E1", "F0", "F1",
)  # fmt: skip
"""Each line that says that something failed has one of these."""
_LEVEL = re.compile(
    r"(?:^|[\s\[(<|:\"'])(?:(?P<quiet>TRACE|DEBUG|INFO|NOTICE|SUCCESS|trace|debug|info|notice)"
    r"|(?P<warned>WARN(?:ING)?|[Ww]arn(?:ing)?)|(?P<failed>ERROR|SEVERE|[Ee]rror)"
    r"|(?P<fatal>FATAL|CRITICAL|EMERG(?:ENCY)?|ALERT|PANIC|[Ff]atal(?: [Ee]rror)?|critical|panic))"
    r"(?=[\s\]):|>,\"'-])"
)
_LEVEL_CHARACTERS: Final = 160
_LETTER = re.compile(r"\W{0,2}(?P<glog>[IWEF])\d{3,4} \d\d:\d\d:\d\d|\[(?P<c10d>[IWEF]) ")
_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Failure|Fault|Interrupt|Timeout|Expired)(?:: \S|:?$)")
_NAME = re.compile(
    r"\b(?:[A-Z][A-Z0-9]*_ERR(?:OR)?_[A-Z0-9_]{2,60}\b(?! ?=)"
    r"|[A-Z]\w+BackOff|OOMKilled|Evicted|NotReady\b)"
)
"""Of a constant, as libraries print it, and of a reason of Kubernetes."""
_EVENT = re.compile(r"\bWarning\s{2,}[A-Z]\w+")
"""Of Kubernetes, which knows no graver level: words decide."""
_HARMLESS_ERRNO: Final = (
    "EEXIST", "EISDIR", "ENOTDIR", "EINTR", "EAGAIN", "EINPROGRESS", "EALREADY", "ENOENT", "ECHILD",
)  # fmt: skip
_ERRNO: Final = "|".join(
    re.escape(os.strerror(number)) for number, name in sorted(errno.errorcode.items()) if name not in _HARMLESS_ERRNO
)
_SIGNALS: Final = "|".join(
    re.escape(signal.strsignal(number) or "")
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGKILL)
)
_BY_LIBC = re.compile(rf"(?:[:(\['\"] ?|^)(?:{_ERRNO})(?![\w-])|(?:^|: ?)(?:{_SIGNALS})(?=$| \()")
_BEGIN: Final = r"(?i)(?<![\w./=\"',-])(?:"
_END: Final = r")(?![\w/=-]|\.\w|\"? ?[:=] ?\"?(?:\d|true|false|none|null|off|on|no|yes)\b)"
"""A word counts neither within a name, a path or an option, nor as the name of a number or a setting."""
_STATUS: Final = r"(?:(?:exit|return|error|status|non-zero)[ -]?)*(?:code|status|signal)?[ :=(]*"
_FATAL = re.compile(
    _BEGIN
    + r"core dumped|segfault|kernel panic|unrecoverable|uncorrectable [a-z]+ error|fallen off|aborting|out of memory"
    r"|unexpectedly (?:\w+ ){0,2}(?:disconnect|exit|terminat|clos|end|di)\w*|OOM[ -]?killed|killed (?:by|with|due)"
    r"|(?:has|have|was|were|been|got|is) (?:\w+ )?(?:died|crashed|killed|aborted|lost)|lost (?:communication|contact)"
    r"|reset required|requires? (?:a )?reset|code=\w+, status=[1-9]\d*(?:/\S+)?"
    r"|(?:terminated|exited|exits|ended|died|finished|failed) (?:with|by|on|due to) (?:an? )?"
    + _STATUS
    + r"(?:-?[1-9]\d{0,2}\b|SIG[A-Z]+|non-?zero)"
    r"|(?:exit|return)(?:ed)?[ -]?(?:code|status)s? *(?:[:=]|is|was)? *-?[1-9]\d{0,2}\b"
    r"|(?:got|caught|received|by|on) (?:\w+ )?signal:? ?(?:[1-9]\d?|SIG[A-Z]+)\b|signal: (?:[1-9]|\w+ \([1-9])" + _END
)
_FAILED = re.compile(
    _BEGIN
    + r"failed|failure|fails|error(?! (?:rate|handl|log|report|code:? 0))|cannot|can't|can not|could not|couldn't"
    r"|unable to|refused|denied|timed out|times out|not responding|(?:did|does|do) not respond|unreachable"
    r"|no such (?:file|device|process)|is dead|deadlock(?:ed)?|is hung|mismatch(?:ed)?|illegal memory access"
    r"|(?:operation|connection|request|socket|heartbeat|barrier|collective) timeout"
    r"|time-?out (?:waiting|while|after|reached|exceeded|expired|occurred)" + _END
)
_OF_NOTHING: Final = r"\b(?:no|0|zero|without|not an?|never|any|free of) (?:\w+ ){0,2}(?:errors?|fail\w*)\b"
_OF_A_CONDITION: Final = (
    r"\b(?:if|when|whether|unless|in case|on|upon|after|until|or) (?:\w+ ){0,5}"
    r"(?:fail|error|times? ?out|crash|exit)"
    r"|\b(?:may|might|could|can|would|should|will|to) (?:\w+ )?"
    r"(?:fail|crash|cause|result|time out|exit|abort|be (?:killed|lost))"
)
_OF_WHAT_GOES_ON: Final = (
    r"\b(?:ignor|skipp?|fall(?:ing)? back|fallback|recover|resum|reconnect|succe|harmless|benign|expected|deprecat"
    r"|restored|continu|non-?fatal|corrected|passed)\w*|\bPASS\b|readiness probe|(?:decreas|reduc)ing"
)
_OF_A_PROGRAM: Final = (
    r"^\s*(?:#|//|\*|>|--?\w|usage:|@|(?:def|class|raise|except|assert|return|import|from|if|else|while) )"
    r"|^\s*(?:export |\+ )?\w+="
)
_OF_A_FIELD: Final = (
    r"^[\s|]*\"?[\w. ()/-]{1,60}\"?\s*[:=.]+\s*(?:\"?-?[\d.,]+(?: ?[\w%]{1,4})?\"?|true|false|null|none|no|yes|N/A|OK"
    r"|error|warn(?:ing)?|info|debug|critical|fatal"
    r"|disabled|enabled|\[\]|\{\})[\s,|]*$"
    r"|(?:errors?|failed|failures?)\w*\s*[:=]\s*(?:0\b|none|no\b|-|N/A)"
)
_SAYS_NOTHING = re.compile(
    "(?i)" + "|".join((_OF_NOTHING, _OF_A_CONDITION, _OF_WHAT_GOES_ON, _OF_A_PROGRAM, _OF_A_FIELD))
)
_RETRIED = re.compile(
    r"(?i)\b(?:retr(?:y|ies|ying|ied)|try(?:ing)? again|(?:re-?)?attempt(?:s|ing)?|back(?:ing)? off|waiting)\b"
)
_EXHAUSTED = re.compile(
    r"(?i)\b(?:giv(?:e|es|ing|en) up|gave up|exceeded|exhausted|after \d+ (?:retries|tries|attempts)|max)"
)
ENDED_WELL = re.compile(
    r"(?i)^# out of bounds values : 0 ok"
    r"|\b(?:(?:completed|finished|ended|exited|succeeded|terminated)(?: \w+)? (?:successfully|normally|cleanly)"
    r"|(?:training|run|job|test|all)\b.{0,40} (?:complete|completed|done|finished|succeeded|passed)\b"
    r"|(?:group|workers?) (?:successfully )?finished\b"
    r"|exit(?:ed)?(?: with)?(?: code| status)?:? 0\b|status=0/SUCCESS)|^done[.!]?$"
)
_REASON = re.compile(r"\b(Reason|Last error|Solution|Cause|Caused by|Hint|Message|because of): ?(?=\S)(.{1,300})")
_NAMED = re.compile(
    r"(?i)\b(?P<what>peer(?: host)?|(?:local|remote) host|host(?:name)?|on node|node(?: name)?|pod(?: name)?"
    r"|rank(?: ?ID)?"
    r"|dst_rank|device|GPUs?|NIC|port|job(?: ?ID)?|exec|ssh)"
    r"(?: ?[:=#] {0,3}| ?\[| |(?<=GPU))(?P<name>(?=[\w/.:-]*\d)[\w/.:-]{1,80})"
)
_DEVICE = re.compile(
    r"(?<![\w/])(?:/dev/[\w/-]{1,60}|mlx5_\d+|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
    r"|\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?|(?:nvidia|ib|bond|eth|en[ops])\d\w{0,12})(?!\w)"
)
_GAP = re.compile(r"[\s=*_+-]*$")


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
    if level == "quiet" or _SAYS_NOTHING.search(text):
        return None
    says = _said(text)
    if level == "warned":
        return Grade.WARNED if says else None
    if level == "fatal":
        return Grade.FATAL
    return max(says or Grade.FAILED, Grade.FAILED) if level == "failed" or line.logged else says


def _level_of(head: str) -> str:
    """The name of the level's group in _LEVEL; empty: the line has none."""
    if letter := _LETTER.match(head):
        return {"I": "quiet", "W": "warned", "E": "failed", "F": "fatal"}[letter["glog"] or letter["c10d"]]
    found = None if _EVENT.search(head) else _LEVEL.search(head)
    name = found.lastgroup if found else None
    return "" if name is None or (name == "failed" and not _said(head)) else name


def _said(text: str) -> Grade | None:
    if _FATAL.search(text):
        return Grade.FATAL
    return (
        Grade.FAILED
        if _FAILED.search(text) or _NAME.search(text) or _BY_LIBC.search(text) or _EXCEPTION.match(text)
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
    retried = bool(_RETRIED.search(line.text)) and not _EXHAUSTED.search(line.text)
    return _Seen(grade, number, line, around, retried, training)


def _left(seen: dict[Grade, list[_Seen]], totals: dict[Grade, int], training: int, end: str) -> Left:
    """What is left once what went on and what ended well is taken away. Warnings count beside graver lines alone."""
    graver = [it for grade in (Grade.FATAL, Grade.FAILED) for it in seen[grade] if not _went_on(it, training, end)]
    if not graver or ends_well(end):
        return Left()
    first = graver[0]
    before = [it for it in seen[Grade.WARNED] if 0 < first.number - it.number <= _AROUND][-1:]
    shown = [_shown(it) for it in (first, *before, *graver[1:])][:MAX_LEFT]
    if before and not shown[0].reason:
        shown[0] = msgspec.structs.replace(shown[0], reason=f"before it: {shown[1].text}")
    total = totals[Grade.FATAL] + totals[Grade.FAILED]
    return Left(max(len(graver), total), tuple(shown))


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
    reason = next((f"{it[1]}: {it[2]}" for line in (own, *after) if (it := _REASON.search(line))), "")
    return LeftLine(
        seen.number,
        printable_line(own, _SHOWN_CHARACTERS),
        ", ".join(_who(seen.line, own, before, after)),
        "" if reason in own else printable_line(reason, _SHOWN_CHARACTERS),
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
            if _GAP.match(text) and found:
                break
            found |= dict.fromkeys(_names(text))
    return sorted(found, key=lambda name: name.casefold().startswith("local"))[:_MAX_NAMED]


def _names(text: str) -> Iterator[str]:
    for match in _NAMED.finditer(text[:_LINE_CHARACTERS]):
        yield f"{match['what']} {match['name'].rstrip('.:,')}"
    for match in _DEVICE.finditer(text[:_LINE_CHARACTERS]):
        yield match[0]
