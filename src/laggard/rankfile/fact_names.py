"""Names of the facts that a training process writes about itself into its rank file, and the members of process groups,
short enough for one. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

TRANSPORT: Final = "transport"
"""The transports that its NCCL uses: the document that laggard.nccl.transport.Transport.to_json() writes."""

GPU: Final = "gpu"
"""The UUID of the GPU that it trains on, by the tensors of its model and collectives. Newer than the identity's."""

ENDING: Final = "ending"
"""The way in which Python left the process, where not with status 0: {exit_code, at_seconds (CLOCK_MONOTONIC),
exception (its type), others_failed: whether such an exception comes when other ranks are gone}."""

UNNAMED_COLLECTIVES: Final = "unnamed_collectives"
"""The reason why the hooks cannot name the collectives that C++ makes, a key of UNNAMED_REASONS; absent while they can,
or while C++ has made none."""

UNSEEN_WAITS: Final = "unseen_waits"
"""True where C++ waits for the rank's collectives step after step, so that its own time holds waits; absent else."""

TIMED_EVERY: Final = "timed_every"
"""The number of steps of which one is timed, in the mean, where steps on a GPU are short beside what events cost them;
absent where each step is. The others have no record, and their collectives are counted alone."""

HIDDEN_WAITS: Final = "hidden_waits"
"""The names, ascending, of libraries that the rank uses and whose kernels wait for other ranks by themselves; absent
where it uses none."""

SCRIPT: Final = "script"
"""The name of the script or module that trains, without its folder and without its arguments."""

STARTED: Final = "started"
"""The time at which the hooks began, in Unix seconds of the node's clock."""

ENVIRONMENT: Final = "environment"
"""What surrounds the training, name: value: versions (torch, nccl, driver, ...), and variables that are no secret."""

DEEPSPEED: Final = "deepspeed"
"""The settings of the DeepSpeed engine, as laggard.deepspeed_config.told_settings() writes them."""

GROUPS: Final = "groups"
"""The members of its process groups, {lane's group: members} as member_runs() writes them."""

OWN_THREADS: Final = "own_threads"
"""The Python threads beside the training, as they ran of late: {seconds, busy_seconds (CPU, all together), late_seconds
(how much too late a sleeping thread woke, on average, less its time in the run queue), names (of the busiest),
collecting_ratio (the share of the time since the hooks began in which Python collected garbage)}."""

DIGESTS: Final = "digests"
"""Digests of the parameters after steps, where LAGGARD_DIGEST_STEPS asks for them: {every (steps), first: [step,
value], last: [[step, value], ...]}; a value is 16 hexadecimal digits. `last` has the last 4, and the newest of every
16th, 256th and 4096th, so that ranks which are asked at different times have a step in common."""

DIGEST_SKIPPED: Final = "digest_skipped"
"""The reason why no digests are computed where they are asked for, a key of DIGEST_SKIPPED_REASONS."""

DIGEST_SHARDED: Final = "sharded"
DIGEST_UNREADABLE: Final = "unreadable"
DIGEST_NO_MODULE: Final = "no_module"

DIGEST_SKIPPED_REASONS: Final = {
    DIGEST_SHARDED: "they are sharded (FSDP, ZeRO-3, tensors of a device mesh), and no other rank has the same",
    DIGEST_UNREADABLE: "they are of a kind, or on a device, of which no digest is made",
    DIGEST_NO_MODULE: "no module was seen that trains; attach(module, optimizer) names it",
}
"""The reasons why parameters are not compared."""

RECORDER_OFF: Final = "flight_recorder_off"
RECORDER_SMALL: Final = "flight_recorder_small"
RECORDER_UNSAFE: Final = "flight_recorder_unsafe"
RECORDER_ABSENT: Final = "flight_recorder_absent"

UNNAMED_REASONS: Final = {
    RECORDER_OFF: (
        "torch's Flight Recorder is off",
        "TORCH_FR_BUFFER_SIZE=2000 (before torch 2.6: TORCH_NCCL_TRACE_BUFFER_SIZE=2000) in the job's environment"
        " turns it on",
    ),
    RECORDER_SMALL: (
        "torch's Flight Recorder is too small",
        "a larger TORCH_FR_BUFFER_SIZE in the job's environment holds the collectives of a step",
    ),
    RECORDER_UNSAFE: (
        "torch's Flight Recorder is not asked: without torch's cache of CUDA events an answer can crash the process",
        "torch 2.6 and newer have the cache unless TORCH_NCCL_CUDA_EVENT_CACHE=0 (torch 2.5: =1 in the job's"
        " environment)",
    ),
    RECORDER_ABSENT: (
        "this torch keeps no record of them that laggard can read",
        "NCCL's collectives are recorded from torch 2.6 on, gloo's from 2.8, those of other backends from 2.15",
    ),
}
"""The fault and the correction, by reason."""


MAX_RUNS: Final = 64
"""The most runs of a group; one of more is left out: its numbers follow no pattern."""

MAX_NUMBERS: Final = 600
"""The most numbers of all groups of a rank together: at seven digits each they take half of the room for facts."""


class Run(NamedTuple):
    """`length` ranks from `first` on, every `stride`-th."""

    first: int
    length: int
    stride: int


def member_runs(members: Sequence[int]) -> list[int] | None:
    """The runs of `members`, in their order, as one list: first, count, stride, first, count, ... None where there are
    more than MAX_RUNS."""
    numbers: list[int] = []
    place = 0
    while place < len(members):
        count, stride = _run_from(members, place)
        numbers += (members[place], count, stride)
        place += count
        if len(numbers) > 3 * MAX_RUNS:
            return None
    return numbers


def _run_from(members: Sequence[int], place: int) -> tuple[int, int]:
    """The number of the members from `place` on that have one distance, and that distance. Two alone are no run: the
    second may begin a longer one."""
    stride = members[place + 1] - members[place] if place + 1 < len(members) else 1
    count = 1
    while stride > 0 and place + count < len(members) and members[place + count] - members[place + count - 1] == stride:
        count += 1
    if stride <= 0 or (count == 2 and place + 2 < len(members)):
        return 1, 1
    return count, stride


def parse_runs(value: Any, world_size: int) -> tuple[Run, ...]:
    """The runs that member_runs() wrote; none where `value` is no such list, or names a rank that the job of
    `world_size` ranks has not."""
    if not isinstance(value, list) or len(value) % 3 or len(value) > 3 * MAX_RUNS:
        return ()
    if any(type(number) is not int or not 0 <= number < 1 << 31 for number in value):
        return ()
    runs = tuple(Run(*value[place : place + 3]) for place in range(0, len(value), 3))
    if any(run.length < 1 or run.stride < 1 or run.first + (run.length - 1) * run.stride >= world_size for run in runs):
        return ()
    return runs if sum(run.length for run in runs) <= world_size else ()


def index_in(runs: Sequence[Run], rank: int) -> int | None:
    """The place of `rank` among the members; None where it is none of them."""
    before = 0
    for run in runs:
        steps, rest = divmod(rank - run.first, run.stride)
        if not rest and 0 <= steps < run.length:
            return before + steps
        before += run.length
    return None


def size_of(runs: Sequence[Run]) -> int:
    return sum(run.length for run in runs)


def members_of(runs: Sequence[Run]) -> tuple[int, ...]:
    return tuple(rank for run in runs for rank in range(run.first, run.first + run.length * run.stride, run.stride))
