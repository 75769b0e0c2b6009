"""Cases in other forms than the hooks' recordings: dumps of the Flight Recorder, profiler traces, NCCL Inspector's
logs, stacks; and the real recordings among the tests' data."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from simulator.dump_cases import KINDS, dump_case, write_case
from support import inspector_files, kineto, standing
from support.paths import DATA

from golden.case import Case, Culprit, Made, Truth

DUMPS_EACH = 4
"""The cases of each kind of dumps."""
STOPPED = ("hung", "dead")
SLOW_GPU = ("slow_compute", "slow_host")


def known(recording: Path, truth: Truth) -> Made:
    return Made(recording, lambda timings: truth)


def healthy(*verdicts: str) -> Truth:
    return Truth((), verdicts or ("ok",))


def at_fault(kinds: Sequence[str], *ranks: int, required: bool = True) -> Truth:
    culprit = Culprit(tuple(kinds), ranks, ranks, required)
    return Truth((culprit,), ("fail",) if required else ("fail", "unknown"))


def dumps() -> Iterator[Case]:
    for kind in KINDS:
        for seed in range(DUMPS_EACH):
            yield Case(f"dumps/{kind}/{seed + 1}", partial(_make_dumps, kind, seed))


def _make_dumps(kind: str, seed: int, folder: Path) -> Made:
    case = dump_case(kind, seed)
    write_case(case, folder / "dumps")
    ranks = sorted(case.culprits)
    if case.expected == "nobody":
        truth = healthy("unknown")
    elif case.expected == "culprit":  # who left no dump may be told in a note
        truth = at_fault(STOPPED, *ranks, required=bool(case.culprits - case.without))
    else:
        truth = at_fault((), *ranks, required=False)  # the program's mistake, told in a note of its own
    return known(folder / "dumps", truth)


def profiler_traces() -> Iterator[Case]:
    world = (0, 1, 2, 3)
    for name, slow, fields in (
        ("slow_gpu", 2, {"group": world}),
        ("slow_gpu_no_groups", 2, {}),
        ("healthy", -1, {"group": world}),
        ("three_steps", 2, {"group": world, "steps": 3}),
    ):
        yield Case(f"kineto/gpus/{name}", partial(_make_traces, slow, fields))
    yield Case("kineto/link/slow", _make_traces_of_pairs)


def _make_traces(slow: int, fields: Mapping[str, Any], folder: Path) -> Made:
    for rank in range(4):
        events = kineto.gpu_rank(rank, 0.08 if rank == slow else 0.06, 0.08, **fields)
        kineto.write(folder / f"rank-{rank}.json", kineto.document(rank, 4, events))
    return known(folder, healthy() if slow < 0 else at_fault(SLOW_GPU, slow, required="steps" not in fields))


def _make_traces_of_pairs(folder: Path) -> Made:
    """Eight ranks in pairs, of which one's transfers take thrice as long."""
    for rank in range(8):
        first = rank - rank % 2
        events = kineto.gpu_rank(rank, 0.06, 0.06, 0.014 if first == 2 else 0.005, group=(first, first + 1))
        kineto.write(folder / f"rank-{rank}.json", kineto.document(rank, 8, events, host_name=f"n{first}"))
    return known(folder, at_fault(("slow_link",), 2, 3))


def inspector_logs() -> Iterator[Case]:
    late = [[1000 + number % 7 + each % 3 + (0 if each == 2 else 4000) for each in range(4)] for number in range(40)]
    even = [[1000 + (200 if each != number % 4 else 0) for each in range(4)] for number in range(40)]
    yield Case("inspector/arrivals/late", partial(_make_logs, late, at_fault(SLOW_GPU, 2, required=False)))
    yield Case("inspector/arrivals/even", partial(_make_logs, even, healthy("ok", "unknown")))


def _make_logs(times: Sequence[Sequence[int]], truth: Truth, folder: Path) -> Made:
    inspector_files.write(folder / "logs", inspector_files.job(times))
    return known(folder / "logs", truth)


def stacks() -> Iterator[Case]:
    wait, fetch, save = standing.WAIT, standing.FETCH, standing.SAVE
    unknown = healthy("unknown")
    for name, stands, in_folder, truth in (
        ("one_fetches", (wait, fetch, wait), False, at_fault(STOPPED, 1)),
        ("one_fetches_in_a_folder", (wait, fetch, wait), True, at_fault(STOPPED, 1)),
        ("all_wait", (wait, wait, standing.BARRIER), False, unknown),
        ("nobody_waits", (fetch, fetch, save), False, unknown),
        ("two_of_four", (fetch, fetch, wait, wait), False, at_fault(STOPPED, 0, 1)),
        ("no_stack_of_one", (wait, fetch, ()), False, unknown),
    ):
        yield Case(f"stacks/standing/{name}", partial(_make_stacks, stands, in_folder, truth))


def _make_stacks(stands: Sequence[Any], in_folder: bool, truth: Truth, folder: Path) -> Made:
    left = {rank: [standing.took(rank, frames)] if frames else [] for rank, frames in enumerate(stands)}
    return known(Path(standing.recording(folder / "job", left, in_folder=in_folder)), truth)


def of_folders() -> Iterator[Case]:
    """The real recordings and dumps in tests/data/folders, whose README says what befell the jobs."""
    for name, truth in (
        ("hang-mismatch/recording", at_fault((), 2, required=False)),
        ("hang-mismatch/flight_recorder", at_fault((), 2, required=False)),
        ("oom-allocator/recording", at_fault(STOPPED, 0, required=False)),
        ("port-slow/recording", at_fault(("slow_link", "slow_host"), 1, required=False)),
    ):
        yield Case(f"folders/{name}", partial(_of_data, name, truth))


def _of_data(name: str, truth: Truth, folder: Path) -> Made:
    return known(DATA / "folders" / name, truth)
