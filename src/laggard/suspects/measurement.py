"""The measurement of a suspect: the good peers, the ring as a job of SLURM's, and what it found as the collector
keeps it."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from laggard import wire
from laggard.kit.address import without_login
from laggard.kit.collector_client import ask
from laggard.kit.errors import CannotTell
from laggard.kit.words import natural, printable_line
from laggard.model import Verdict
from laggard.rings.document import Ring
from laggard.suspects.scheduler import KnownNames, run
from laggard.wire import WireError, decode
from laggard.wire.exclusion import MAX_PEERS, MAX_SWAPS, ConfirmAsk, Confirmation, ConfirmedDocument, SwapFigure
from laggard.wire.nodes import NodeRow
from laggard.wire.signing import CONFIRM, signed

_STATE: Final = "node="
_JOB: Final = "job="
_FREE: Final = ("idle",)
_HELD: Final = ("allocated", "mixed", "completing", "alloc", "mix", "comp")
_MAX_DOCUMENT_BYTES: Final = 4 << 20
_END_SECONDS: Final = 10.0
_EXTRA_SECONDS: Final = 60.0
"""The time beyond the ring's own for the job's begin and end: prologs and epilogs."""


class SlurmNode(NamedTuple):
    """`state`: as sinfo has it; `reason`: why it is drained or down."""

    name: str
    partitions: tuple[str, ...]
    state: str
    reason: str

    @property
    def is_free(self) -> bool:
        return self.state in _FREE

    @property
    def is_held(self) -> bool:
        return self.state.rstrip("*+") in _HELD


class NotMeasured(Exception):
    """The suspect was not measured. The text is one line that says why, and what to do."""


def slurm_nodes(sinfo: str) -> dict[str, SlurmNode]:
    """Raises SchedulerAway."""
    text = run((sinfo, "--noheader", "--Node", "--all", f"--format={_STATE}%N|%P|%T|%E"), "SINFO_")
    nodes: dict[str, SlurmNode] = {}
    for name, partition, state, reason in _fields(text, _STATE):
        before = nodes[name].partitions if name in nodes else ()
        told = "" if reason == "none" else printable_line(reason, 200)
        nodes[name] = SlurmNode(name, (*before, partition.rstrip("*")), state, told)
    return nodes


def jobs_on(squeue: str, node: str) -> list[str]:
    """The jobs that hold a node, in words. Raises SchedulerAway."""
    states = "RUNNING,SUSPENDED,COMPLETING"
    command = (squeue, "--noheader", f"--nodelist={node}", f"--states={states}", f"--format={_JOB}%A|%u|%L|%j")
    found = _fields(run(command, "SQUEUE_"), _JOB)
    return [printable_line(f"job {job} of {user} ({name}), {left} left", 200) for job, user, left, name in found]


def _fields(text: str, mark: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        words = line[len(mark) :].strip().split("|", 3)
        if line.startswith(mark) and len(words) == 4:
            yield words


def choose_nodes(
    suspect: SlurmNode, peers: Sequence[str], nodes: dict[str, SlurmNode], partition: str | None, most: int
) -> tuple[str, tuple[str, ...]]:
    """Returns a partition that has the suspect, and its free nodes of `peers`, up to `most`, in their order: the
    partition that has the most of them."""
    known = KnownNames(nodes)
    free = [name for peer in peers if (name := known.find(peer)) is not None and nodes[name].is_free]
    choices = (partition,) if partition else suspect.partitions
    of_each = {it: tuple(name for name in free if it in nodes[name].partitions)[:most] for it in choices}
    best = max(of_each, key=lambda it: len(of_each[it]))
    return best, of_each[best]


class RingJob(NamedTuple):
    """`program`: the words that start laggard on the nodes. `wait_seconds`: how long SLURM may keep the job waiting."""

    suspect: str
    peers: tuple[str, ...]
    partition: str
    program: tuple[str, ...]
    wait_seconds: float
    seconds: float
    deadline_seconds: float
    token_file: str | None

    def command(self, srun: str) -> list[str]:
        nodes = (self.suspect, *self.peers)
        minutes = int(self.deadline_seconds + _EXTRA_SECONDS) // 60 + 1
        token = ("--token-file", self.token_file) if self.token_file else ()
        return [
            srun,
            "--job-name=laggard-confirm",
            f"--partition={self.partition}",
            f"--nodelist={','.join(nodes)}",
            f"--nodes={len(nodes)}",
            f"--ntasks={len(nodes)}",
            "--ntasks-per-node=1",
            "--exclusive",
            f"--immediate={max(1, round(self.wait_seconds))}",
            f"--time={minutes}",
            *self.program,
            *("ring", "--pairs", "--suspect", self.suspect, "--format", "json"),
            *("--seconds", f"{self.seconds:g}", "--deadline", f"{self.deadline_seconds:g}", *token),
        ]


def measure(srun: str, job: RingJob) -> Ring:
    """Runs the job to its end, which is bounded. Raises NotMeasured."""
    limit = job.wait_seconds + job.deadline_seconds + 2 * _EXTRA_SECONDS
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    if "SLURM_CONF" in os.environ:
        environ["SLURM_CONF"] = os.environ["SLURM_CONF"]
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                job.command(srun), env=environ, stdin=subprocess.DEVNULL, stdout=said, stderr=errors
            )
        except OSError as error:
            raise NotMeasured(f"{srun}: {(error.strerror or str(error)).lower()}") from None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise NotMeasured(f"the measurement did not end within {limit:.0f} s") from None
        finally:
            _end(process)
        said.seek(0)
        errors.seek(0)
        ring = ring_in(said.read(_MAX_DOCUMENT_BYTES))
        if ring is None:
            text = " ".join(errors.read(4096).decode(errors="replace").split())
            raise NotMeasured(f"srun ended with status {status}: {printable_line(text, 300) or 'nothing was said'}")
        return ring


def _end(process: subprocess.Popen[bytes]) -> None:
    """srun that is told to end gives the nodes back."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
            return
        process.kill()
        process.wait()


def ring_in(output: bytes) -> Ring | None:
    """The document of `laggard ring --format json` among other lines; None where there is none."""
    for line in output.splitlines():
        if line.startswith(b"{"):
            with contextlib.suppress(WireError):
                return decode(line, Ring)
    return None


# What a ring found of a suspect, as the collector keeps it. Pure, but for the word to the collector.

_MAX_NAME: Final = 256


def confirmation_of(ring: Ring, node: str, by: str, at: float) -> Confirmation | None:
    """The measurement of `node`, by the name that the collector has for it; None where the ring could not tell. The
    suspect's own exchanges come first."""
    suspect = ring.suspect
    if suspect is None or suspect.outcome not in ("confirmed", "acquitted"):
        return None
    names = {it.number: node if it.number == suspect.number else it.node[:_MAX_NAME] for it in ring.nodes}
    swaps = sorted(suspect.swaps, key=lambda it: suspect.number not in (it.first, it.second))
    figures = (
        SwapFigure(names.get(it.first, "?"), names.get(it.second, "?"), it.busbw_bytes_per_second) for it in swaps
    )
    return Confirmation(
        node=node,
        outcome=suspect.outcome,
        at=at,
        by=by,
        why=printable_line(suspect.why, 500),
        peers=tuple(name for number, name in names.items() if number != suspect.number)[:MAX_PEERS],
        rate_ratio=suspect.ratio,
        compute_ratio=suspect.compute_ratio,
        swaps=tuple(figures)[:MAX_SWAPS],
    )


def tell(collector: str, token: str, confirmation: Confirmation) -> ConfirmedDocument:
    """Has the collector keep the measurement. Raises UsageError."""
    question = ConfirmAsk(confirmation, time.time(), secrets.token_hex(16))
    body = ask(collector, "confirm", wire.encode(signed(token, CONFIRM, question)))
    try:
        return wire.decode(body, ConfirmedDocument)
    except wire.WireError as error:
        raise CannotTell(f"the collector at {without_login(collector)} is of another version: {error}") from None


MIN_RING_PEERS: Final = 2
"""The least number of peers: what is usual is measured among them."""

MAX_RING_PEERS: Final = 3
"""The number of peers where as many are free: with three, one that is slow itself hides nothing."""


def good_peers(suspect: str, rows: Iterable[NodeRow], suspects: Collection[str]) -> list[str]:
    """The nodes that pass their checks and are not suspected themselves: those first that a ring measured last, which
    says the most of them. Whether they are free the scheduler knows."""
    good = {
        row.node: math.inf if row.ring_age_seconds is None else row.ring_age_seconds
        for row in rows
        if row.node and row.state == "up" and row.verdict == Verdict.OK.value
    }
    names = (name for name in good if name != suspect and name not in suspects)
    return sorted(names, key=lambda name: (good[name], natural(name)))
