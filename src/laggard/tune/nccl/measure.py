"""One configuration of NCCL's variables measured: nccl-tests, `laggard ring`, or any command that prints as they do.

A time counts only if the same run checked its results and found none wrong.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from laggard import wire
from laggard.model import Verdict
from laggard.nccl.tests_output import parse_tests_output
from laggard.rings.document import Ring
from laggard.text.words import printable_line
from laggard.tune.nccl.messages import Message
from laggard.tune.outcome import Outcome, Status
from laggard.tune.space import Configuration
from laggard.tune.trial.failure import failure_of
from laggard.tune.trial.process import Ended, run_command
from laggard.tune.trial.template import fill

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
