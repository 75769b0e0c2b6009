"""`laggard.stacks/1`: the stacks that ranks took of themselves, which an agent reads from the files beside their rank
files when it is asked for them; and the question by which an operator has a collector ask ranks."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from laggard.stacks.ask import MAX_SAMPLES, MAX_SECONDS, SAMPLES, SECONDS
from laggard.stacks.sampled import MAX_BYTES, Sampled, encode, from_value

STACKS_SCHEMA = "laggard.stacks/1"
STACKS_ASKED_SCHEMA = "laggard.stacks_asked/1"
MAX_RANKS = 4096
"""The most ranks of one job that are asked, and answered for, at once."""

Text = Annotated[str, Meta(max_length=300)]
Rank = Annotated[int, Meta(ge=0, le=2**31)]


class StackFrame(msgspec.Struct, frozen=True, array_like=True):
    """A frame of a thread: the function that it is in, the path of its file, and the line; null: not told. `kind`:
    generator, coroutine, compiled; empty: a plain function."""

    function: str
    file: str
    line: int | None
    kind: str = ""


class StackCount(msgspec.Struct, frozen=True):
    """Equal stacks of one thread, of which `times` samples were. `frames`: places in the rank's list of frames, the
    innermost first; `left_out`: frames in the middle that are not told. `phase` of the step, and the collective in
    which the thread `waits`; empty: none."""

    times: int
    frames: tuple[int, ...]
    phase: str = ""
    waits: str = ""
    left_out: int = 0


class StackThread(msgspec.Struct, frozen=True):
    """A thread, or with a `pid` a child process, and its stacks, those seen most often first."""

    name: str
    stacks: tuple[StackCount, ...]
    pid: int = 0


class RankStacks(msgspec.Struct, frozen=True):
    """The stacks of one rank's process; the first thread is the one that trains. `why`: asked, stalled, failed,
    terminated, held (C code kept Python's lock), crashed. `at`: Unix time on the node's clock; `seconds`: for how long
    samples were taken; `stalled_seconds`: for how long the training had made no progress; `ask`: what was answered;
    `kernel`: where the training thread stands in the kernel, in words, empty: not known, or it goes on."""

    rank: int
    job_id: str
    node: str
    pid: int
    why: str
    at: float
    seconds: float
    threads: tuple[StackThread, ...]
    frames: tuple[StackFrame, ...]
    stalled_seconds: float = 0.0
    ask: str = ""
    threads_left_out: int = 0
    laggard_stacks: int = 1
    kernel: str = ""


class MissingStacks(msgspec.Struct, frozen=True):
    """A rank of which there are no stacks, and why. `kernel`: where its main thread stands in the kernel, in words;
    empty: not known."""

    rank: int
    reason: str
    kernel: str = ""


class StacksDocument(msgspec.Struct, frozen=True):
    """The newest stacks of a job's ranks: of those that were asked for, on the node or in the job. `node` is empty
    where a collector answers for several."""

    owner: int
    job_id: str
    ranks: tuple[RankStacks, ...]
    missing: tuple[MissingStacks, ...] = ()
    node: str = ""
    schema: str = STACKS_SCHEMA


class StacksAsked(msgspec.Struct, frozen=True):
    """The answer to an ask: these ranks were asked to sample themselves for `seconds`, and their documents will have
    one of `idents` as `ask`. `missing`: ranks that were not asked, and why."""

    owner: int
    job_id: str
    idents: tuple[str, ...]
    ranks: tuple[int, ...]
    seconds: float
    missing: tuple[MissingStacks, ...] = ()
    schema: str = STACKS_ASKED_SCHEMA


class StacksAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`laggard.stacks_ask/1`: an operator has the ranks of a job sample themselves; no `ranks`: all. `at`: Unix time;
    `nonce`: used once; `proof`: by who knows the token."""

    at: Annotated[float, Meta(ge=0, le=1e11)]
    nonce: Text
    job: Text = ""
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=MAX_RANKS)] = ()
    samples: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] = SAMPLES
    seconds: Annotated[float, Meta(ge=0.1, le=MAX_SECONDS)] = SECONDS
    proof: Text = ""
    schema: Text = "laggard.stacks_ask/1"


def rank_stacks(sampled: Sampled, most: int = MAX_BYTES) -> RankStacks:
    """The document as it travels, of about `most` bytes of JSON at most."""
    return msgspec.json.decode(encode(sampled, min(most, MAX_BYTES)), type=RankStacks)


def sampled_of(stacks: RankStacks) -> Sampled:
    """The stacks that travelled, as values: bounded and printable. Raises SampledError."""
    return from_value(msgspec.to_builtins(stacks))
