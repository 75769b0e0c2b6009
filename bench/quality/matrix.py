"""Which cases the benchmark runs. Everything is drawn from one seed; a fresh seed gives fresh cases."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from simulator.case import FORMS, Case
from simulator.faults import STOPS, Fault, When
from simulator.layout import LAYOUTS

SIZES = (0.02, 0.05, 0.1, 0.2, 0.5)
DEVELOPMENT_SEED = 1  # the seeds to work with; figures that count are of others

Draw = np.random.Generator

# What the table calls a fault, and how one of a size is drawn.
SLOW_FAULTS: dict[str, Callable[[float, Draw], tuple[Fault, ...]]] = {
    "GPU": lambda size, draw: (Fault("slow_gpu", size),),
    "GPU, forward": lambda size, draw: (Fault("slow_gpu", size, phase="forward"),),
    "GPU, backward": lambda size, draw: (Fault("slow_gpu", size, phase="backward"),),
    "host": lambda size, draw: (Fault("slow_host", size),),
    "host's CPU": lambda size, draw: (Fault("slow_cpu", size),),
    "input": lambda size, draw: (Fault("slow_input", size),),
    "NIC": lambda size, draw: (Fault("slow_nic", size),),
    "link": lambda size, draw: (Fault("slow_link", size),),
    "rail": lambda size, draw: (Fault("slow_rail", size),),
    "NVLink": lambda size, draw: (Fault("slow_nvlink", size),),
    "pauses": lambda size, draw: (Fault("pauses", size, when=When(every=float(draw.uniform(2, 5)))),),
    "garbage collection": lambda size, draw: (Fault("garbage", size, when=When(every=float(draw.uniform(3, 7)))),),
    "GPU, now and then": lambda size, draw: (Fault("slow_gpu", size, when=When(share=float(draw.uniform(0.2, 0.5)))),),
    "GPU, from mid-run": lambda size, draw: (Fault("slow_gpu", size, when=When(onset=int(draw.integers(14, 22)))),),
    "host, from mid-run": lambda size, draw: (Fault("slow_host", size, when=When(onset=int(draw.integers(14, 22)))),),
    "two at once": lambda size, draw: (
        Fault("slow_gpu", size),
        Fault("slow_input", size * float(draw.uniform(0.5, 1))),
    ),
}
INNOCENT_LAYOUTS = {
    "stage_imbalance": [name for name, layout in LAYOUTS.items() if layout.pp > 1],
    "hot_experts": [name for name, layout in LAYOUTS.items() if layout.ep > 1],
    "congestion": [name for name, layout in LAYOUTS.items() if layout.nodes > 1],
}
BACKGROUNDS = (("stage_imbalance",), ("sequence_lengths",), ("evaluation", "checkpoint"), ("logging",), ("thermal",))
INNOCENT_KINDS: tuple[tuple[str, ...], ...] = (
    (),
    ("stage_imbalance",),
    ("sequence_lengths",),
    ("hot_experts",),
    ("congestion",),
    ("thermal",),
    ("evaluation",),
    ("checkpoint",),
    ("logging",),
    ("garbage_collection",),
    ("warm_up",),
    ("loud",),
    ("calm",),
)


class Entry(NamedTuple):
    """A case of the benchmark: the row of the tables in which it stands, its size (0: none), and what is simulated: the
    first of `layouts` in which it can be."""

    row: str
    size: float
    form: str
    seed: int
    layouts: tuple[str, ...]
    faults: tuple[Fault, ...] = ()
    innocents: tuple[str, ...] = ()

    def cases(self) -> Iterator[Case]:
        for layout in self.layouts:
            yield Case(layout, self.form, self.seed, faults=self.faults, innocents=self.fitting(layout))

    def fitting(self, layout: str) -> tuple[str, ...]:
        return tuple(name for name in self.innocents if layout in INNOCENT_LAYOUTS.get(name, (layout,)))


def entries(seed: int, slow: int, stopped: int, innocent: int) -> list[Entry]:
    """Returns the benchmark's cases: `slow` of each fault and size, `stopped` of each way to stop, `innocent` of each
    innocent kind. Layouts and forms go round, so that each fault meets all of them."""
    draw = np.random.default_rng([seed, 0])
    forms = itertools.count(int(draw.integers(3)))
    names = tuple(LAYOUTS)
    bags: dict[tuple[Any, ...], list[str]] = {}  # of each size, the layouts that are still to come
    found: list[Entry] = []

    def add(row: str, size: float, allowed: Sequence[str], **what: Any) -> None:
        bag = bags.setdefault((size, *allowed), [])
        if not bag:
            bag += [str(name) for name in draw.permutation(allowed)]
        first = bag.pop()
        others = [str(name) for name in draw.permutation(allowed) if name != first]
        case_seed = int(draw.integers(2**31))
        found.append(Entry(row, size, FORMS[next(forms) % len(FORMS)], case_seed, (first, *others), **what))

    for (row, make), size, number in itertools.product(SLOW_FAULTS.items(), SIZES, range(slow)):
        background = BACKGROUNDS[int(draw.integers(len(BACKGROUNDS)))] if number % 4 == 3 else ()
        add(row, size, names, faults=make(size, draw), innocents=background)
        if number % len(FORMS) == len(FORMS) - 1:
            next(forms)  # else a fault would meet the same form in each layout
    for kind, _ in itertools.product(STOPS, range(stopped)):
        add(kind, 0.0, names, faults=(Fault(kind),))
    for innocents, _ in itertools.product(INNOCENT_KINDS, range(innocent)):
        allowed = INNOCENT_LAYOUTS.get(innocents[0], names) if innocents else names
        add(innocents[0] if innocents else "healthy", 0.0, allowed, innocents=innocents)
    return found
