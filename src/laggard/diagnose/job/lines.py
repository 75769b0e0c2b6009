"""Takes a line of a job's output out of what launchers, pods, terminals and log shippers put in front of it. Only
lines that have one of the rules' words are looked at.

The forms: torchrun's tee (`[rank3]:`, `[default3]:`), `srun -l` (`3: `), Open MPI's `--tag-output` (`[1,3]<stderr>:`),
pdsh and DeepSpeed (`worker-1: `), kubectl and stern (`[pod/name/container] `), Ray (`(Worker pid=12, ip=10.0.0.1) `),
JSON lines with the text under any key, containerd's and journald's heads, docker compose, dates of loggers, colours,
and progress bars that end in a carriage return. Loggers' heads are taken off where they say ERROR or worse: what they
say below that ends no job. Any other head is learned from a line that has it before a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from laggard.diagnose.rules import table, words
from laggard.kit.words import printable_line

MAX_LINE_CHARACTERS: Final = 2000
_MAX_HEADS: Final = 12
_MAX_HEAD_CHARACTERS: Final = 160
_MAX_LEARNED: Final = 32

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]{0,200}\x07|\[(?:0|[0-9;]{1,8}[0-9])m")
"""The last form is one that lost its escape character when it was copied."""
_TRACEBACK: Final = "Traceback (most recent call last)"
_QUIET = re.compile(r"\b(?:WARN(?:ING)?|INFO|DEBUG|NOTICE|TRACE|SUCCESS)\b", re.IGNORECASE)
_TABLE: Final = table("heads")
_HEADS: Final = {
    first: tuple((row.regex, row.more) for row in _TABLE.rows if re.match(row.more.get("first", "."), first, re.DOTALL))
    for first in map(chr, range(128))
}
"""The heads that a line may begin with, by its first character. Any that is none of ASCII's is as NUL."""


def _strip_head(text: str, found: dict[str, object]) -> str | None:
    """Returns the text without its first head, whose values go to `found`; None where it has none."""
    for pattern, more in _HEADS.get(text[:1], _HEADS["\0"]):
        match = pattern.match(text)
        if match is None or ("unless" in more and not found.keys().isdisjoint(more["unless"].split())):
            continue
        told = {name: value for name, value in match.groupdict().items() if value}
        if "day" in told:
            _note_date(told, found)
        heads = _writer(told) | ({"logged": found.get("logged", text)} if "logged" in more else {})
        found |= heads | found if "weak" in more else heads
        if "within" in more and (inner := re.search(more["within"], match[0])):
            found |= _writer(inner.groupdict()) | found
        return text[match.end() :]
    return None


_WRITERS: Final = tuple(row.regex for row in _TABLE.rows if row.kind in ("launcher", "compose", "task", "host"))


def strip_writer(line: str) -> tuple[str, str] | None:
    """The host, the pod or `task 3`, as a line's first head names it, and the text behind that; None: it names none."""
    head = next(filter(None, (pattern.match(line) for pattern in _WRITERS)), None)
    told = _writer(head.groupdict()) if head else {}
    name = told.get("host") or (f"task {told['task']}" if "task" in told else "")
    return (str(name), line[head.end() :]) if head and name else None


def _writer(told: Mapping[str, str | None]) -> dict[str, object]:
    numbers = {name: int(value) for name in ("rank", "task", "local_rank") if (value := told.get(name))}
    return numbers | ({"host": told["host"]} if told.get("host") else {})


class JobLine(NamedTuple):
    """One line, with what stood in front of it. None: it did not say."""

    text: str
    rank: int | None = None
    """The rank in the job."""
    task: int | None = None
    """The number that srun or mpirun gave the process: its rank, where each rank is a task of its own."""
    local_rank: int | None = None
    host: str | None = None
    seconds: float | None = None
    """The date, as seconds since 1970 in whatever zone the writer used. Dates without a year are put into 2000."""
    dated: bool = False
    """True where `seconds` has a year. Times without a year compare only with each other."""
    logged: str = ""
    """The text with its logger's head, where it had one: some programs' lines are known by that."""
    traced: bool = False
    """True where the line held a whole traceback, of which `text` is the last line."""

    @property
    def stream(self) -> tuple[object, ...]:
        """Tells apart the processes whose lines are mixed in a file."""
        return self.rank, self.task, self.local_rank, self.host


class LineParser:
    """Parses lines. Heads nest in any order: a pod's date before srun's number before torch's rank."""

    def __init__(self) -> None:
        self._learned: dict[str, re.Pattern[str]] = {}

    def parse(self, raw: str) -> JobLine:
        text = raw[:MAX_LINE_CHARACTERS].rstrip()
        if "\x1b" in text or "[0m" in text:
            text = _COLOURS.sub("", text)
        found: dict[str, object] = {}
        if text[:2] in ('{"', "[{") or text.startswith("{ ") or _JSON_FIELD.match(text):
            text = _unwrap_json(text, found)
        for _ in range(_MAX_HEADS):
            rest = _strip_head(text, found)
            rest = self._strip_learned(text) if rest is None else rest
            if rest is None:
                break
            text = rest
        return JobLine(text, **found)  # type: ignore[arg-type]

    def _strip_learned(self, text: str) -> str | None:
        """The text without a head that stood before a traceback, in this line or in one before it."""
        for pattern in self._learned.values():
            if match := pattern.match(text):
                return text[match.end() :]
        at = text.find(_TRACEBACK, 1, _MAX_HEAD_CHARACTERS)
        if at < 0 or not text[:at].strip() or _QUIET.search(text[:at]):
            return None
        if len(self._learned) < _MAX_LEARNED:
            pattern = _shape_of_head(text[:at])
            self._learned[pattern.pattern] = pattern
        return text[at:]


def _shape_of_head(head: str) -> re.Pattern[str]:
    """Matches heads that differ in numbers and in the width of blanks alone."""
    parts = re.split(r"(\d+|\s+)", head.rstrip())
    shape = "".join(r"\d+" if part.isdecimal() else r"\s+" if part.isspace() else re.escape(part) for part in parts)
    return re.compile(shape + (r"\s" if head[-1:].isspace() else ""))


def _note_date(told: Mapping[str, str], found: dict[str, object]) -> None:
    """The first date with a year counts, else the first: shippers write it."""
    dated = "year" in told
    if "seconds" in found and (found["dated"] or not dated):
        return
    month, day, hour, minute, second = (int(told[name]) for name in ("month", "day", "hour", "minute", "second"))
    try:
        moment = datetime(int(told.get("year", 2000)), month, day, hour, minute, second)
    except ValueError:
        return
    found["seconds"] = (moment - datetime(1970, 1, 1)).total_seconds() + float(f"0.{told.get('fraction') or 0}")
    found["dated"] = dated


_TEXT_KEYS: Final = (
    *("log", "message", "msg", "MESSAGE", "line", "text", "textPayload", "body", "event", "content", "data"),
    *("exc_info", "exception", "traceback", "stack", "stack_trace", "error"),
)
"""The keys under which programs and log shippers put a line's text, in JSON, the likeliest first."""
_HOST_KEYS: Final = ("pod_name", "pod", "hostname", "host", "node_name", "nodename")
_JSON_RANK = re.compile(r'"(?:global_)?rank": ?"?(\d{1,7})\b')
_TIME_KEYS = re.compile(rf'"(?:@?time(?:stamp|Stamp)?|ts|date|asctime)": ?"{_TABLE.macros["DATE"]}')
_JSON_STRINGS = re.compile(r'"([\w@.]{1,40})"\s?:\s?"((?:[^"\\]|\\.)*)(?:"|$)')
_JSON_FIELD = re.compile(rf' +"(?:{"|".join(_TEXT_KEYS)})": "')
"""A field of an object that is printed on several lines."""
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def _unwrap_json(text: str, found: dict[str, object]) -> str:
    """The text that programs, container runtimes and log shippers wrap in JSON, under whichever key and however deep:
    `{"time":...,"log":"...\\n","stream":"stdout"}`. Of a text that is a whole traceback: its last line."""
    strings: dict[str, str] = {}
    for match in _JSON_STRINGS.finditer(text):
        strings.setdefault(match[1], match[2])
    values = [_unescape(strings[key]) for key in _TEXT_KEYS if strings.get(key)]
    if not values:
        return text
    if date := _TIME_KEYS.search(text):
        _note_date(date.groupdict(), found)
    if host := next(filter(None, map(strings.get, _HOST_KEYS)), ""):
        found["host"] = host
    if rank := _JSON_RANK.search(text):
        found["rank"] = int(rank[1])
    value = next((each for each in values if _TRACEBACK in each and "\n" in each.strip()), values[0])
    lines = [line.rstrip() for line in _COLOURS.sub("", value).split("\n") if line.strip()]
    if len(lines) > 1 and any(_TRACEBACK in line for line in lines):
        found["traced"] = True
        return next((line for line in reversed(lines) if not line.startswith(" ")), lines[-1])
    return lines[0] if lines else ""


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else _ESCAPED.get(match[2], match[2]), text)


WORDS: Final = words("job")
"""The words of which each line that a rule matches has one."""
_MIN_SHAPED: Final = 1 << 14
_MAX_UNLIKE_SHARE: Final = 0.25
"""The largest share of a piece that lines of different shapes make up, for shapes to be searched in place of lines."""
SHAPE_CHARACTERS: Final = 200
"""The number of a line's first characters, numbers aside, that are its shape."""

_NUMBER = re.compile(r"[0-9]+")
_NO_DIGITS: Final = str.maketrans("", "", "0123456789")
_DIGITS: Final = str.maketrans("123456789", "0" * 9)


def sparse(piece: str, words: Sequence[str] = WORDS) -> Iterable[tuple[int, int]]:
    """The same places as those of candidates(), found by the shapes of lines: of thousands of lines most differ in
    numbers alone, and each shape is searched for words once."""
    if "\r" in piece or len(piece) < _MIN_SHAPED or not piece.isascii():  # other text takes four times the memory
        return candidates(piece, words)
    shapes = piece.translate(_NO_DIGITS).split("\n")
    unlike = set(shapes)
    if sum(map(len, unlike)) > len(piece) * _MAX_UNLIKE_SHARE:
        return candidates(piece, words)
    wanted = {shape for shape in unlike if any(word in shape for word in words)}
    return _places(piece, shapes, wanted, words) if wanted else ()


def _places(
    piece: str, shapes: Iterable[str], wanted: Collection[str], words: Sequence[str]
) -> Iterator[tuple[int, int]]:
    start = 0
    for line, shape in zip(piece.split("\n"), shapes, strict=True):
        if shape in wanted:
            if len(line) > MAX_LINE_CHARACTERS:
                yield from ((start + first, start + last) for first, last in candidates(line, words))
            else:
                yield start, start + len(line)
        start += len(line) + 1


def candidates(piece: str, words: Sequence[str] = WORDS) -> list[tuple[int, int]]:
    """The places of the lines that have one of the words, in order. A carriage return ends a line, too."""
    found: dict[int, int] = {}
    for word in words:
        at = piece.find(word)
        while at >= 0:
            first = max(0, at - MAX_LINE_CHARACTERS)
            start = max(piece.rfind("\n", first, at), piece.rfind("\r", first, at)) + 1
            turn = piece.find("\r", at, at + MAX_LINE_CHARACTERS)
            turn = len(piece) if turn < 0 else turn
            end = piece.find("\n", at, turn)  # within the turn: a text may have a million of these and no other end
            end = turn if end < 0 else end
            found[max(start, first)] = end
            at = piece.find(word, end)
    return sorted(found.items())


def shape_of(line: str) -> str:
    """The beginning of a line, with 0 for each number."""
    return _NUMBER.sub("0", line[:MAX_LINE_CHARACTERS])[:SHAPE_CHARACTERS]


def shapes_of(piece: str) -> str:
    """The piece with 0 for each number: as shape_of(), for all lines at once."""
    shapes = piece.translate(_DIGITS)
    while "00" in shapes:
        shapes = shapes.replace("00", "0")
    return shapes


PROGRESS_WORDS: Final = ("loss", "Loss ", "Loss:", "it/s", "s/it")
_MAX_SHOWN_CHARACTERS: Final = 100


class LastProgress(NamedTuple):
    """`line` counts from 1, in its file."""

    line: int
    text: str


def last_progress(piece: str, lines_before: int) -> LastProgress | None:
    """Returns the last line of a piece that has one of the words."""
    at = max(piece.rfind(word) for word in PROGRESS_WORDS)
    if at < 0:
        return None
    start = max(piece.rfind("\n", 0, at), piece.rfind("\r", max(0, at - 2000), at)) + 1
    text = piece[start : start + 400].partition("\n")[0].partition("\r")[0]
    return LastProgress(lines_before + piece.count("\n", 0, at) + 1, printable_line(text, _MAX_SHOWN_CHARACTERS))
