"""Makes cases for the judging of Flight Recorder dumps: jobs that stand still or run, and who is at fault.

Everything is drawn from a seed. A GPU stops before, within or after a collective of tensor, expert or data parallelism,
or a send of a pipeline; one or two of them; or a CPU does, or the program is wrong, or nothing is.
"""

import random
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from simulator.case import programme_of
from simulator.devices import Played, Stop, Trouble, collectives_of, play
from simulator.programme import Programme
from simulator.torch_dumps import RELEASES, Dumping, dump, numbered, write_dump

SMALL = (
    "dp=4,tp=2,pp=2,ep=2,zero=2,schedule=1f1b,micro=4,blocks=2",
    "dp=2,tp=4,pp=2,schedule=1f1b,micro=4,blocks=1,gradients=buckets",
    "dp=4,tp=4,zero=2,blocks=3",
    "dp=4,pp=4,schedule=gpipe,micro=4,blocks=2",
    "dp=16,ep=4,zero=2,blocks=2",
    "dp=16,gradients=buckets,blocks=5",
)
LARGE = (
    "dp=4,tp=4,pp=4,ep=2,zero=2,schedule=1f1b,micro=4,blocks=1",
    "dp=8,tp=8,zero=2,blocks=2",
    "dp=16,pp=4,schedule=1f1b,micro=4,blocks=1",
)
KINDS = (
    "gpu_tp", "gpu_pp", "gpu_ep", "gpu_dp", "gpu_compute", "two_gpus",
    "cpu", "mismatch", "deadlock", "slow", "complete",
)  # fmt: skip
STEPS = 4
PLACES = {"before": 0.0, "within": 0.5, "others finish": 1.0, "after": 1.5}


class DumpCase(NamedTuple):
    """A case: `culprits` are the ranks at fault, none where nobody is; `expected`: culprit, mismatch, deadlock or
    nobody. `without`: the ranks that left no dump, `empty`: those whose dump has no records."""

    kind: str
    seed: int
    layout: str
    place: str
    culprits: frozenset[int]
    expected: str
    trouble: Trouble
    without: frozenset[int]
    dumping: tuple[Dumping, ...]
    played: Played

    @property
    def world_size(self) -> int:
        return len(self.dumping)


class Impossible(ValueError):
    """The layout has no place for such a fault."""


@lru_cache(maxsize=32)
def _programme(layout: str) -> Programme:
    return programme_of(layout)


def dump_case(kind: str, seed: int) -> DumpCase:
    """The case of this kind and seed. Raises ValueError where there is no such kind."""
    if kind not in KINDS:
        raise ValueError(f"no kind {kind!r}; there are {', '.join(KINDS)}")
    for attempt in range(100):
        draw = random.Random(f"{kind} {seed} {attempt}")
        try:
            return _case(kind, seed, draw)
        except Impossible:
            continue
    raise Impossible(f"no layout has a place for {kind}")


def _case(kind: str, seed: int, draw: random.Random) -> DumpCase:
    layout = draw.choice(SMALL if draw.random() < 0.7 else LARGE)
    programme = _programme(layout)
    trouble, place = _trouble(kind, programme, draw)
    played = play(programme, STEPS, trouble)
    expected = {"mismatch": "mismatch", "deadlock": "deadlock", "slow": "nobody", "complete": "nobody"}
    culprits = played.stopped
    if kind == "mismatch" and trouble.mismatched is not None:
        culprits = frozenset({trouble.mismatched[0]})
    if kind == "deadlock":
        culprits = frozenset(rank for rank, *_ in trouble.swapped)
    wanted = expected.get(kind, "culprit")
    if wanted == "culprit" and not culprits:
        raise Impossible("it came not as far as that")
    world = programme.layout.world_size
    missing = draw.sample(range(world), draw.choice((1, 2))) if draw.random() < 0.3 else []
    dumping = _dumping(kind, programme, played, trouble, draw)
    return DumpCase(kind, seed, layout, place, culprits, wanted, trouble, frozenset(missing), dumping, played)


def _trouble(kind: str, programme: Programme, draw: random.Random) -> tuple[Trouble, str]:
    """What goes wrong, and where, in words."""
    waits = draw.random() < 0.5
    rank = draw.randrange(programme.layout.world_size)
    step = draw.randrange(1, STEPS - 1)
    if kind in ("slow", "complete"):
        slow = ((rank, draw.uniform(1.5, 4.0)),) if kind == "slow" else ()
        return Trouble(slow=slow, waits_for_steps=waits), ""
    if kind == "cpu":
        items = sorted((item.number, index) for index, item in enumerate(programme.items) if item.rank == rank)
        return Trouble(silent_hosts=((rank, step, draw.choice(items)[1]),), waits_for_steps=waits), ""
    if kind == "mismatch":
        role = draw.choice(["tp", "dp", "ep"])
        return Trouble(mismatched=(rank, step, _drawn(programme, rank, role, draw)), waits_for_steps=waits), role
    if kind == "deadlock":
        return _deadlock(programme, rank, step, draw), ""
    role = kind.removeprefix("gpu_")
    if kind == "two_gpus":
        other = draw.choice([one for one in range(programme.layout.world_size) if one != rank])
        one, place = _stop(programme, rank, step, draw.choice(["tp", "pp", "dp", "ep", "compute"]), draw)
        second, _ = _stop(programme, other, step, draw.choice(["tp", "pp", "dp", "ep", "compute"]), draw)
        return Trouble(stops=(one, second), waits_for_steps=waits), place
    stop, place = _stop(programme, rank, step, role, draw)
    return Trouble(stops=(stop,), waits_for_steps=waits), place


def _drawn(programme: Programme, rank: int, role: str, draw: random.Random) -> int:
    """One of the rank's collectives in a group of that role."""
    there = list(collectives_of(programme, rank, role))
    there = [item for item in there if len(programme.items[item].record.group.ranks) > 1]  # type: ignore[union-attr]
    if not there:
        raise Impossible(f"no {role}")
    return draw.choice(there)


def _stop(programme: Programme, rank: int, step: int, role: str, draw: random.Random) -> tuple[Stop, str]:
    """A GPU's stop at a collective of that role: before it (in what it computes before), within, or after."""
    own = sorted((item.number, index) for index, item in enumerate(programme.items) if item.rank == rank)
    computing = [index for _, index in own if programme.items[index].computes and not programme.items[index].on_cpu]
    computing = [index for index in computing if programme.items[index].seconds > 0]
    if role == "compute":
        return Stop(rank, step, draw.choice(computing), draw.uniform(0.05, 0.95)), "computing"
    item = _drawn(programme, rank, role, draw)
    place = draw.choices(list(PLACES), (0.35, 0.35, 0.15, 0.15))[0]
    number = programme.items[item].number
    earlier = [index for index in computing if programme.items[index].number < number]
    later = [index for index in computing if programme.items[index].number > number]
    if place == "before" and earlier:
        return Stop(rank, step, earlier[-1], 0.5), f"before {role}"
    if place == "after" and later:
        return Stop(rank, step, later[0], 0.1), f"after {role}"
    if place == "others finish" and programme.items[item].record.peer is None:  # type: ignore[union-attr]
        return Stop(rank, step, item, 0.9, others_finish=True), f"within {role}, others finish"
    return Stop(rank, step, item, 0.5), f"within {role}"


def _deadlock(programme: Programme, rank: int, step: int, draw: random.Random) -> Trouble:
    """The rank calls two collectives of different groups, with none between them, in the other order, and another rank
    is in both groups."""
    own = [index for _, index in sorted((it.number, at) for at, it in enumerate(programme.items) if it.rank == rank)]
    calls = [at for at in own if programme.items[at].joint is not None]
    pairs = []
    for one, other in zip(calls, calls[1:], strict=False):
        groups = [programme.items[at].record.group for at in (one, other)]  # type: ignore[union-attr]
        alone = any(programme.items[at].record.peer is not None for at in (one, other))  # type: ignore[union-attr]
        beside = not all(programme.items[at].on_main for at in (one, other))
        if groups[0] != groups[1] and not alone and not beside and len(set(groups[0].ranks) & set(groups[1].ranks)) > 1:
            pairs.append((one, other))
    if not pairs:
        raise Impossible("no two groups have two ranks in common")
    return Trouble(swapped=((rank, step, *draw.choice(pairs)),), synchronous=True)


def _dumping(
    kind: str, programme: Programme, played: Played, trouble: Trouble, draw: random.Random
) -> tuple[Dumping, ...]:
    """How each rank dumps. A job that runs is dumped somewhere within, at moments up to seconds apart."""
    releases = [draw.choice(list(RELEASES))] * 4 + ([draw.choice(list(RELEASES))] if draw.random() < 0.15 else [])
    form = draw.choice(("pickle", "json"))
    timing = draw.random() < 0.35
    before = draw.choice((0, 0, 40, 4000))
    entries = draw.choice((2000, 2000, 2000, 2000, 100))
    kept_times = draw.random() < 0.6
    runs = kind == "slow"
    apart = draw.choice((0.0, 0.02, 0.3)) if runs else 5.0
    middle = played.last * draw.uniform(0.4, 0.7)
    nodes = [draw.uniform(-3.0, 3.0) for _ in range(programme.layout.nodes)]
    old = draw.randrange(programme.layout.world_size) if runs else -1
    found = []
    for rank in range(programme.layout.world_size):
        moment = middle + draw.uniform(0.0, apart) if runs else 1e9
        if rank == old:
            moment -= draw.choice((0.0, 0.2))
        written = draw.uniform(0.0, 0.3) if runs else 600.0 + draw.uniform(0.0, apart)
        bare = draw.random() < 0.06
        wrong = -1
        if trouble.mismatched is not None and trouble.mismatched[0] == rank:
            _, step, item = trouble.mismatched
            calls = played.calls[rank]
            wrong = next(
                (at for at, it in enumerate(calls) if it.step == step and it.item is programme.items[item]), -1
            )
        found.append(
            Dumping(
                torch=draw.choice(releases),
                form=form,
                timing=timing,
                moment=moment,
                written=written if kept_times else 4000.0,
                before=before,
                entries=0 if bare else entries,
                counts=not bare or draw.random() < 0.7,
                clock=nodes[programme.layout.node(rank)],
                wrong_call=wrong,
            )
        )
    return tuple(found)


def write_case(case: DumpCase, folder: Path) -> None:
    """Writes the dumps of a case into the folder, which it creates."""
    folder.mkdir(parents=True, exist_ok=True)
    programme = _programme(case.layout)
    numbers = numbered(programme)
    for rank, how in enumerate(case.dumping):
        if rank not in case.without:
            name = f"nccl_trace_rank_{rank}" + (".json" if how.form == "json" else "")
            write_dump(dump(case.played, rank, numbers, how), folder / name, how, case.played.last)
