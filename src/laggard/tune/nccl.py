"""NCCL's variables as something to tune: only the collectives and sizes that a job spends its time in are measured.
nccl-tests measures them, `laggard ring`, or any command that prints as they do.

A time counts only if the same run checked its results and found none wrong.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from laggard import wire
from laggard.kit.constants import OPS
from laggard.kit.errors import UsageError
from laggard.kit.words import printable_line
from laggard.model import Verdict
from laggard.nccl.tests_output import parse_tests_output
from laggard.nccl.variables import parse_version
from laggard.recommend.advice.situation import Situation
from laggard.recording.reader import read_recording
from laggard.rings.document import Ring
from laggard.rings.options import parse_size
from laggard.tune.campaign import Change, Subject
from laggard.tune.nccl_variables import TRANSPORTS, Facts, nccl_space
from laggard.tune.plan import Configuration, Outcome, Settings, Status, check_space
from laggard.tune.trial import Ended, failure_of, fill, parse_command, run_command

if TYPE_CHECKING:
    from laggard.locate.collectives import Collectives


MEASURED: Final = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all")
"""Operations that nccl-tests has a program for."""
_TIME_SHARE: Final = 0.95
"""The share of the time in collectives beyond which messages are left out."""
MAX_MESSAGES: Final = 6
_MIN_MESSAGE_BYTES: Final = 1024


class Message(NamedTuple):
    op: str
    size_bytes: int
    """The bytes as nccl-tests counts."""
    times: float = 1.0
    """The weight with which it counts: in a recording, so many a step and rank."""

    @property
    def label(self) -> str:
        return f"{self.op} {self.size_bytes}"


class Profile(NamedTuple):
    messages: tuple[Message, ...]
    share: float
    """The share of the time in collectives that the messages stand for."""
    source: str


def parse_messages(text: str) -> Profile:
    """Reads `all_reduce:64M,all_gather:1G`. Raises UsageError."""
    found = []
    for word in text.split(","):
        op, _, size = word.partition(":")
        if op not in MEASURED:
            raise UsageError(f"--messages {word!r}: give OPERATION:SIZE, with one of {', '.join(MEASURED)}")
        try:
            found.append(Message(op, parse_size(size)))
        except ValueError as error:
            raise UsageError(f"--messages {word!r}: {error}") from None
    return Profile(tuple(dict.fromkeys(found)), 1.0, "as given")


def of_recording(paths: Sequence[str]) -> Profile:
    """Raises UsageError for a recording without collectives."""
    timings = read_recording(paths).timings
    if timings.collectives is None or not len(timings.collectives.op):
        raise UsageError(f"{paths[0]} has no collectives: record with `laggard run --record DIR`, or give --messages")
    steps = max(1, int(np.isfinite(timings.step_seconds).sum()))
    return profile_of(timings.collectives, steps, paths[0])


def profile_of(collectives: Collectives, rank_steps: int, source: str) -> Profile:
    """Returns the messages with the most time, sizes rounded to powers of two. A collective's time is that of the rank
    that came last, which alone waited for nobody: the shortest of its group's. `rank_steps`: steps times ranks."""
    known = (collectives.size >= _MIN_MESSAGE_BYTES) & (collectives.end > collectives.start) & (collectives.op >= 0)
    seconds = np.where(known, collectives.end - collectives.start, 0.0)
    rounded = np.exp2(np.round(np.log2(np.maximum(collectives.size, 1)))).astype(np.int64)
    rows = []
    for op in np.unique(collectives.op[known]):
        if OPS[op] in MEASURED:
            for size in np.unique(rounded[known & (collectives.op == op)]):
                own = known & (collectives.op == op) & (rounded == size)
                rows.append((float(np.median(seconds[own]) * own.sum()), OPS[op], int(size), int(own.sum())))
    rows.sort(reverse=True)
    whole = sum(row[0] for row in rows)
    if not whole:
        raise UsageError(f"{source} has no collective of {_MIN_MESSAGE_BYTES} B or more that ended: give --messages")
    kept, share = [], 0.0
    for time, name, size, count in rows[:MAX_MESSAGES]:
        if share >= _TIME_SHARE:
            break
        kept.append(Message(name, size, count / rank_steps))
        share += time / whole
    return Profile(tuple(kept), min(share, 1.0), source)


NAMES: Final = ("test", "op", "bytes", "env", "mpi_env", "export")
_RING: Final = "{python} -m laggard ring --op {op} --min-bytes {bytes} --max-bytes {bytes} --seconds 3 --format json"
_TESTS: Final = {
    "all_reduce": "all_reduce_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_gather": "all_gather_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "all_to_all": "alltoall_perf",
}
_OUT_OF_BOUNDS: Final = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_ON_CPUS: Final = "on CPUs NCCL's variables change nothing: --command says what runs on GPUs"
_SIZE_TOLERANCE: Final = 0.02
"""The share by which a measured size may differ from the one that was asked for: nccl-tests rounds a size down to whole
elements of all ranks."""


class Runner(NamedTuple):
    """The command that a trial runs. Empty `words`: `laggard ring` on this machine."""

    words: tuple[str, ...]
    messages: tuple[Message, ...]
    deadline_seconds: float
    environ: Mapping[str, str]

    def measure(self, configuration: Configuration, folder: Path) -> Outcome:
        """Returns the seconds of all messages together, each as often as it counts."""
        parts: dict[str, float] = {}
        for message in self.messages:
            outcome = self._one(configuration, message, folder)
            if outcome.seconds is None:
                return outcome
            parts[message.label] = outcome.seconds
        whole = sum(parts[each.label] * each.times for each in self.messages)
        return Outcome(Status.OK, whole, "", 0.0, parts)

    def _one(self, configuration: Configuration, message: Message, folder: Path) -> Outcome:
        words = command_of(self.words, configuration, message)
        try:
            ended = run_command(words, environment(self.environ, configuration), folder, self.deadline_seconds)
        except OSError as error:
            return Outcome(Status.CRASHED, None, f"{words[0]} cannot be started: {error.strerror}")
        (folder / f"{message.label.replace(' ', '-')}.out").write_text(ended.output, errors="replace")
        return judge(ended, message)


def environment(environ: Mapping[str, str], configuration: Configuration) -> dict[str, str]:
    """Returns the environment of a trial. None takes a variable away."""
    found = {name: value for name, value in environ.items() if name not in configuration}
    return found | {name: str(value) for name, value in configuration.items() if value is not None}


def command_of(words: Sequence[str], configuration: Configuration, message: Message) -> list[str]:
    pairs = [f"{name}={value}" for name, value in configuration.items() if value is not None]
    values: dict[str, str | Sequence[str]] = {
        "test": _TESTS[message.op],
        "op": message.op,
        "bytes": str(message.size_bytes),
        "env": pairs,
        "mpi_env": [word for pair in pairs for word in ("-x", pair)],
        "export": ",".join(["ALL", *pairs]),
        "python": sys.executable,
    }
    return fill(words or _RING.split(), values)


def own_environment() -> dict[str, str]:
    return dict(os.environ)


def judge(ended: Ended, message: Message) -> Outcome:
    """Returns what a run says of a message. Wrong results count before anything else: such a run may also fail."""
    wrong = _wrong_results(ended.output)
    if wrong:
        return Outcome(Status.WRONG, None, f"{message.label}: {wrong}")
    return failure_of(ended) or _read_time(ended.output, message)


def _wrong_results(output: str) -> str:
    """Returns what says that results were wrong; empty: nothing does."""
    for match in _OUT_OF_BOUNDS.finditer(output):
        if int(match[1]) or match[2] != "OK":
            return printable_line(match[0].lstrip("# "))
    wrong = sum(row.wrong or 0 for row in parse_tests_output(output).rows)
    ring = _ring(output)
    if ring is not None:
        wrong += sum(result.wrong for result in ring.results)
    return f"{wrong} wrong elements" if wrong else ""


def _read_time(output: str, message: Message) -> Outcome:
    """Returns the time of a message from what a run printed, GARBAGE where it or the check of results is not there."""
    ring = _ring(output)
    if ring is not None:
        return _of_ring(ring, message)
    found = parse_tests_output(output)
    rows = [row for row in found.rows if _is_size(row.size_bytes, message.size_bytes)]
    if not rows:
        return Outcome(Status.GARBAGE, None, f"no row of {message.size_bytes} B: {_first_line(output)}")
    if rows[-1].wrong is None:
        return Outcome(Status.GARBAGE, None, "the results were not checked: leave out -c 0")
    if not _OUT_OF_BOUNDS.search(output):
        return Outcome(Status.GARBAGE, None, "the output ends before the line `Out of bounds values`")
    if found.operation and found.operation != message.op.replace("_", ""):
        return Outcome(
            Status.GARBAGE, None, f"{found.operation} was measured, not {message.op}: use {{test}} or {{op}}"
        )
    return _checked(rows[-1].seconds)


def _of_ring(ring: Ring, message: Message) -> Outcome:
    if ring.transport.get("backend") == "gloo":
        return Outcome(Status.GARBAGE, None, _ON_CPUS)
    if ring.unknown or ring.verdict is Verdict.UNKNOWN:
        return Outcome(Status.GARBAGE, None, printable_line(ring.unknown or "the ring is unknown", 160))
    own = [each for each in ring.results if each.op == message.op and _is_size(each.size_bytes, message.size_bytes)]
    if not own:
        return Outcome(Status.GARBAGE, None, f"the ring has no {message.label}")
    return _checked(own[-1].time_seconds)


def _checked(seconds: float) -> Outcome:
    if not 0 < seconds < math.inf:
        return Outcome(Status.GARBAGE, None, f"a time of {seconds} s")
    return Outcome(Status.OK, seconds)


def _is_size(measured: int, wanted: int) -> bool:
    return abs(measured - wanted) <= max(_SIZE_TOLERANCE * wanted, 64)


def _ring(output: str) -> Ring | None:
    start = output.find("{")
    if start < 0 or '"laggard.ring/1"' not in output:
        return None
    try:
        return wire.decode(output[start:].strip().encode(), Ring)
    except wire.WireError:
        return None


def _first_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return printable_line(lines[0], 80) if lines else "it printed nothing"


def nccl_subject(settings: Mapping[str, Any], situation: Situation) -> Subject:
    """Makes the subject from a campaign's settings, as they stand in its study. Raises UsageError."""
    messages = tuple(Message(op, size, times) for op, size, times in settings["messages"])
    command = settings["command"]
    words = parse_command(command, (*NAMES, "python"), ("bytes",)) if command else ()
    if command and not ("{test}" in command or "{op}" in command) and len({each.op for each in messages}) > 1:
        raise UsageError("--command lacks {test} or {op}: several operations are measured")
    current = settings["current"]
    facts = facts_of(settings, {each.op for each in messages})
    space = nccl_space(facts, current, settings["added"], settings["left_out"])
    check_space(space)
    runner = Runner(words, messages, settings["deadline"], {**own_environment(), **current})
    return Subject(
        kind="nccl",
        space=space,
        measure=runner.measure,
        objective="seconds of the messages of a step",
        changes=lambda best: _changes(space.default, best),
        situation=situation._replace(environment=current, environment_known=True),
        notes=_notes(settings),
        settings=settings,
    )


HARDWARE: Final = ("transport", "nodes", "local_ranks", "nics", "compute_capability", "nvlink_switch")
"""The flags that tell of the cluster: fields of Facts."""


def facts_of(settings: Mapping[str, Any], collectives: set[str]) -> Facts:
    version = parse_version(settings["nccl_version"])
    if not version:
        raise UsageError(f"--nccl-version {settings['nccl_version']!r} is no version, such as 2.27.5")
    if settings["transport"] not in TRANSPORTS:
        raise UsageError(f"--transport {settings['transport']!r} is none of {', '.join(TRANSPORTS)}")
    known = {name.removeprefix("nvlink_"): settings[name] for name in HARDWARE}
    return Facts(version=version, collectives=frozenset(collectives), **known)


def _changes(default: Settings, best: Settings) -> list[Change]:
    return [Change("nccl_env", name, default[name], value) for name, value in best.items() if value != default[name]]


def _notes(settings: Mapping[str, Any]) -> tuple[str, ...]:
    share = settings["share"]
    measured = ", ".join(f"{op} of {size} B" for op, size, _ in settings["messages"])
    return (
        f"Measured: {measured} ({share:.0%} of the time in collectives, {settings['source']}).",
        "Alone, without computing beside it: confirm in training with `laggard tune deepspeed` or by hand.",
    )


def settings_of(profile: Profile) -> dict[str, Any]:
    """Returns the part of a campaign's settings that says what is measured."""
    return {"messages": [list(each) for each in profile.messages], "share": profile.share, "source": profile.source}
