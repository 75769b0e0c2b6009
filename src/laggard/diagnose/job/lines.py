"""Takes a line of a job's output out of what launchers, pods, terminals and log shippers put in front of it.

The forms: torchrun's tee (`[rank3]:`, `[default3]:`), `srun -l` (`3: `), Open MPI's `--tag-output` (`[1,3]<stderr>:`),
pdsh and DeepSpeed (`worker-1: `), kubectl and stern (`[pod/name/container] `), Ray (`(Worker pid=12, ip=10.0.0.1) `),
Docker's JSON, containerd's and journald's heads, dates of loggers, colours, and progress bars that end in a carriage
return.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, NamedTuple

MAX_LINE_CHARACTERS: Final = 2000
_MAX_HEADS: Final = 12

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]{0,200}\x07")
_DATE = r"(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?:Z| ?[+-]\d\d:?\d\d)?"
_PLAIN_DATE = re.compile(rf"\[?{_DATE}\]?:?(?:\s+|$)(?:(?:stderr|stdout) [FP] )?")
_SYSLOG = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ([\w.-]+) ([\w./-]+)(?:\[\d+\])?: ")
_JOURNAL = re.compile(r"([\w.-]+) [\w./-]+\[\d+\]: ")
_GLOG = re.compile(r"\[?[EWIFC](\d\d?)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9})\s+(?:\d+ )?[\w./-]+:\d+\] ?")
_RANK = re.compile(r"\[[Rr]ank ?(\d{1,7})\]: ?")
_LOCAL = re.compile(r"\[(?:default|trainer|worker)_?(\d{1,5})\]: ?")
_MPI = re.compile(r"\[(?:prterun-[\w.@-]+,)?\d{1,6},(\d{1,7})\]<(?:stderr|stdout|stddiag)>: ?")
_TASK = re.compile(r" {0,6}(\d{1,6}): ")
_POD = re.compile(r"\[pod/([\w.-]+)/[\w.-]+\] ")
_ACTOR = re.compile(r"\([\w.:<>-]*(?: ?[\w.]+=[\w.-]+,?){0,4} ?pid=\d+(?:, ip=([\d.]+))?\) ")
_HOST = re.compile(r"([A-Za-z0-9][\w-]*(?:\.[\w-]+)*): ")
_NO_HOST = re.compile(
    r"(?:.*(?:Error|Exception|Warning|Interrupt|Exit|Failure|Timeout|Expired|Empty|Iteration)|[A-Z]+|[a-z]+d?|what"
    r"|slurmstepd|srun|sbatch|python[\d.]*|bash|loss|step|epoch|iter|iteration|mpirun|Signal|Fatal|Tried|exitcode)"
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

    @property
    def stream(self) -> tuple[object, ...]:
        """Tells apart the processes whose lines are mixed in a file."""
        return self.rank, self.task, self.local_rank, self.host


class LineParser:
    """Parses lines. Heads nest in any order: a pod's date before srun's number before torch's rank."""

    def parse(self, raw: str) -> JobLine:
        text = raw[:MAX_LINE_CHARACTERS].rstrip()
        if "\x1b" in text:
            text = _COLOURS.sub("", text)
        found: dict[str, object] = {}
        if text.startswith("{"):
            text = _unwrap_json(text, found)
        for _ in range(_MAX_HEADS):
            rest = _strip_one(text, found)
            if rest is None:
                break
            text = rest
        return JobLine(text, **found)  # type: ignore[arg-type]


def _strip_one(text: str, found: dict[str, object]) -> str | None:
    """Returns the text without its first head, whose values go to `found`; None where it has none."""
    first = text[:1]
    if first == "[":
        for pattern, name in ((_RANK, "rank"), (_LOCAL, "local_rank"), (_MPI, "task")):
            if match := pattern.match(text):
                found[name] = int(match[1])
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
        return text[match.end() :]
    return _strip_word(text, found)


def _strip_word(text: str, found: dict[str, object]) -> str | None:
    if match := _GLOG.match(text):
        month, day, hour, minute, second, fraction = match.groups()
        if "seconds" not in found:
            _note_date(("2000", month, day, hour, minute, second, fraction), found)
            found["dated"] = False
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


def _unwrap_json(text: str, found: dict[str, object]) -> str:
    """The text that container runtimes and log shippers wrap in JSON: "
    "`{"log":"...\\n","stream":"stdout","time":...}`."""
    match = re.match(r'\{"(?:log|message|msg)": ?"((?:[^"\\]|\\.)*)"', text)
    if match is None:
        return text
    if date := re.search(rf'"(?:time|timestamp|ts)": ?"{_DATE}', text[match.end() :]):
        _note_date(date.groups(), found)
    inner = match[1].removesuffix("\\n").replace('\\"', '"').replace("\\t", "\t").replace("\\u001b", "\x1b")
    return _COLOURS.sub("", inner).replace("\\\\", "\\")
