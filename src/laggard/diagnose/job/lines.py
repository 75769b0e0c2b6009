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
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

MAX_LINE_CHARACTERS: Final = 2000
_MAX_HEADS: Final = 12
_MAX_HEAD_CHARACTERS: Final = 160
_MAX_LEARNED: Final = 32

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]{0,200}\x07|\[(?:0|[0-9;]{1,8}[0-9])m")
"""The last form is one that lost its escape character when it was copied."""
_DATE = r"(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?:Z| ?[+-]\d\d:?\d\d)?"
_TRACEBACK: Final = "Traceback (most recent call last)"
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_OTHER_DATES = re.compile(
    rf"(?:\[?\d\d?/\d\d?/(?:\d\d){{1,2}}(?:,? |-){_TIME}\]?|\[{_TIME}\]|{_TIME})(?:Z|[+-]\d\d:?\d\d)?:?\s+"
    rf"|\[\d{{4}}-\d\d-\d\d[T ]{_TIME}(?: [A-Z]{{2,3}}\d{{1,5}}){{1,4}}\] "  # SGLang's ranks are those of its groups
    r"|\[\d{1,9}\] (?=\S)"  # the number of a line, or of a process
    r"|[0-9a-f]{6,64} \|\|? "  # a container
)
_LOUD = r"(?:ERROR|CRITICAL|FATAL|SEVERE)"
_QUIET = re.compile(r"\b(?:WARN(?:ING)?|INFO|DEBUG|NOTICE|TRACE|SUCCESS)\b", re.IGNORECASE)
_LOGGERS = re.compile(
    rf"(?:- )?[\w.<>/-]{{1,80}} - {_LOUD} - |(?:- )?{_LOUD} - (?:[\w.<>/-]{{1,80}} - )?"
    rf"|\| {_LOUD} *\| [^|]{{1,100}}? - "
    rf"|\[{_LOUD}\|[^\]]{{1,80}}\] (?:{_DATE} )?>> "
    rf"|{_LOUD}:[\w.]{{1,80}}:(?=\S| )"
    rf"|\[NeMo [EC] [^\]]{{1,100}}\] ?"
    rf"|\[?{_LOUD}\]?:?\s+(?:\d\d-\d\d {_TIME} )?(?:\[?[\w./-]{{1,60}}:\d+\]:? ?)?(?:\[[^\[\]]{{1,80}}\]:? ?){{0,4}}"
)
_RANK_WITHIN = re.compile(r"\[Rank (\d{1,7})\]")
_COMPOSE = re.compile(r"([A-Za-z][\w.-]{0,60}\d[\w.-]{0,20}) {1,20}\| ")
_PLAIN_DATE = re.compile(
    rf"\[?{_DATE}\]?:?(?! (?:[A-Z]{{2,3}}\d{{1,5}} ?){{1,4}}\])(?:\s+|$)(?:(?:stderr|stdout) [FP] )?"
)
_SYSLOG = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ([\w.-]+) ([\w./-]+)(?:\[\d+\])?: ")
_JOURNAL = re.compile(r"([\w.-]+) [\w./-]+\[\d+\]: ")
_GLOG = re.compile(r"\[?[EWIFC](\d\d?)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9})\s+(?:\d+ )?[\w./-]+:\d+\] ?")
_RANK = re.compile(r"\[[Rr]ank ?(\d{1,7})\]: ?|\[rank(?:=|: ?| )(\d{1,7})\]:? ?")
_RANK_INSIDE = re.compile(r".{1,160}?\[rank(\d{1,7})\]: ?")
_TENSORRT = re.compile(r"\[TRT-LLM\] (?:\[RANK (\d{1,7})\] )?\[E\] ")
_LOCAL = re.compile(r"\[(?:default|trainer|worker)_?(\d{1,5})\]: ?")
_MPI = re.compile(
    r"\[(?:prterun-[\w.@-]+,)?\d{1,6},(?:mpirank:)?(\d{1,7})(?:,([\w.-]+))?\]<(?:stderr|stdout|stddiag)>: ?"
)
_TP = re.compile(r"(?:\d{2} |Worker_)TP(\d{1,3})\b")
_TASK = re.compile(r" {0,6}(\d{1,6}): ")
_POD = re.compile(r"\[pod/([\w.-]+)/[\w.-]+\] ")
_ACTOR = re.compile(
    r"\((?=[^()]{0,200}?\b(?:pid|ip)=)[\w.:<>-]*(?:,? ?(?!ip=)[\w.]+=[\w.-]+){0,5}(?:,? ?ip=([\d.]+))?,?\) "
)
_HOST = re.compile(r"([A-Za-z0-9][\w-]*(?:\.[\w-]+)*): (?!\[[A-Z]+\])")  # what a level follows is a logger
_NO_HOST = re.compile(
    r"(?:.*(?:Error|Exception|Warning|Interrupt|Exit|Failure|Timeout|Expired|Empty|Iteration)|[\w.]*\.[A-Z]\w*[a-z]\w*|[A-Z]+|[A-Z]{1,4}\d{4,5}|[a-z]+d?|what"
    r"|[\w.-]*\.(?:sh|bash|sbatch|slurm)|slurmstepd|srun|nvidia-container-cli|sbatch|python[\d.]*|bash|loss|step|epoch|iter|iteration|mpirun|Signal|Fatal|Tried|exitcode)"
)
_WORKER_NAME = re.compile(r".*(?:\d|[.-]).*")


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
            rest = self._strip_one(text, found)
            if rest is None:
                break
            text = rest
        return JobLine(text, **found)  # type: ignore[arg-type]

    def _strip_one(self, text: str, found: dict[str, object]) -> str | None:
        rest = _strip_one(text, found)
        if rest is None and "rank" not in found and (match := _RANK_INSIDE.match(text)):
            found["rank"] = int(match[1])  # torchrun's own, behind a head that is not known
            return text[match.end() :]
        return rest if rest is not None else self._strip_learned(text)

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


def _strip_one(text: str, found: dict[str, object]) -> str | None:
    """Returns the text without its first head, whose values go to `found`; None where it has none."""
    first = text[:1]
    if first == "[":
        for pattern, name in ((_RANK, "rank"), (_LOCAL, "local_rank"), (_MPI, "task")):
            if match := pattern.match(text):
                value, *host = filter(None, match.groups())
                found |= {name: int(value), **({"host": host[0]} if host else {})}
                return text[match.end() :]
        if match := _TENSORRT.match(text):
            found |= {"rank": int(match[1])} if match[1] else {}
            return text[match.end() :]
        if match := _POD.match(text):
            found["host"] = match[1]
            return text[match.end() :]
    if (first.isdigit() or first == "[") and (match := _PLAIN_DATE.match(text)):
        _note_date(match.groups(), found)
        return text[match.end() :]
    if first == "(" and (match := _ACTOR.match(text)):
        if match[1]:
            found["host"] = match[1]
        _note_tensor_rank(match[0], found)
        return text[match.end() :]
    if (first in "[0123456789abcdef") and (match := _OTHER_DATES.match(text)):
        _note_tensor_rank(match[0], found)
        return text[match.end() :]
    if match := _LOGGERS.match(text):
        found.setdefault("logged", text)
        if (rank := _RANK_WITHIN.search(match[0])) and "rank" not in found:
            found["rank"] = int(rank[1])
        return text[match.end() :]
    return _strip_word(text, found)


def _note_tensor_rank(head: str, found: dict[str, object]) -> None:
    """Notes the rank in the tensor group, by which servers name a worker: it is the only one on most machines."""
    if match := _TP.search(head):
        found.setdefault("local_rank", int(match[1]))


def _strip_word(text: str, found: dict[str, object]) -> str | None:
    if match := _GLOG.match(text):
        month, day, hour, minute, second, fraction = match.groups()
        if "seconds" not in found:
            _note_date(("2000", month, day, hour, minute, second, fraction), found)
            found["dated"] = False
        return text[match.end() :]
    if match := _COMPOSE.match(text):
        found.setdefault("host", match[1])
        return text[match.end() :]
    if match := _SYSLOG.match(text) or _JOURNAL.match(text):
        found["host"] = match[1]
        return text[match.end() :]
    if "task" not in found and "rank" not in found and (match := _TASK.match(text)):
        found["task"] = int(match[1])
        return text[match.end() :]
    if (match := _HOST.match(text)) and _WORKER_NAME.fullmatch(match[1]) and not _NO_HOST.fullmatch(match[1]):
        found.setdefault("host", match[1])
        return text[match.end() :]
    return None


def _note_date(fields: tuple[str | None, ...], found: dict[str, object]) -> None:
    """The first date of a line counts: shippers write it, and with a year."""
    if "seconds" in found and found.get("dated"):
        return
    year, month, day, hour, minute, second = (int(field or 0) for field in fields[:6])
    try:
        moment = datetime(year, month, day, hour, minute, second)
    except ValueError:
        return
    found["seconds"] = (moment - datetime(1970, 1, 1)).total_seconds() + float(f"0.{fields[6] or 0}")
    found["dated"] = True


_TEXT_KEYS: Final = (
    *("log", "message", "msg", "MESSAGE", "line", "text", "textPayload", "body", "event", "content", "data"),
    *("exc_info", "exception", "traceback", "stack", "stack_trace", "error"),
)
"""The keys under which programs and log shippers put a line's text, in JSON, the likeliest first."""
_HOST_KEYS: Final = ("pod_name", "pod", "hostname", "host", "node_name", "nodename")
_JSON_RANK = re.compile(r'"(?:global_)?rank": ?"?(\d{1,7})\b')
_TIME_KEYS = re.compile(rf'"(?:@?time(?:stamp|Stamp)?|ts|date|asctime)": ?"{_DATE}')
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
        _note_date(date.groups(), found)
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


WORDS: Final = (
    "rror", "xception", "nterrupt", "imeout", "imed out", "xit", "return code", "illed", "OOM", "WARN", "atchdog",
    "NCCL work", "ignal", "arrier", "egmentation", "egfault", "vict", "reempt", "low on resource", "what()",
    "ailed", "terminated", "Traceback", "ut Of Memory", "ut of memory", "space left", "tale", "EXIT CODE", "SIGNAL: ",
    "ailure", "remainder of ranks", "lost communication", "invalid usage", "NET/OFI Request", "not connected", "nan",
    "NaN", "NAN", "Illegal", "Duplicate", "Memory access fault", "marked dead", "has died", "HSA_STATUS",
    "): invalid", "double free", "corrupted ", "onsolidate", "atal", "ATAL", "nexpectedly", "times out", "TIMED_OUT",
    "not equal", "xpected", "in time", "cannot be retrieved", "ERROR", "missing ranks",
)  # fmt: skip
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
