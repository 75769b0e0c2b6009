"""The form of an event, and what events of both sorts share: variants are drawn by seed, so that another seed gives
others."""

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from drains.machine import Base, Machine

MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 86400.0
LOG: Final = 25 * HOUR
"""How long a line of the log is looked at after it was written: no tool's window for one is longer than a day, but for
those that remember until the next boot."""

EDGES: Final = (MINUTE, 10 * MINUTE, 2 * HOUR, DAY)
"""Ages at which some tool's answer may change: the windows and limits that they document."""

Apply = Callable[[Machine, float], None]


class Variant(NamedTuple):
    """One way in which an event of a class looks. `says`: what happened, in a few words. `lasts`: for how many seconds
    the node shows it. `counters`: it raises counters, which tools compare with earlier looks. `not_judged`: for so many
    seconds from its begin nobody can do the node wrong, as nothing can run there. `steady`: it looks the same all the
    time, and did so before the tools' first look, too, where it raises counters. `marks`: ages at which it changes.
    `set_up`: the node is of another make, which it shows before the event, too, when `age` is below 0.
    `apply` changes the machine to what it shows so many seconds after the event began."""

    says: str
    lasts: float
    counters: bool = False
    not_judged: float = 0.0
    steady: bool = False
    marks: tuple[float, ...] = ()
    set_up: bool = False
    apply: Apply = lambda machine, age: None


Look = Callable[[random.Random, Machine, float], Variant]
"""Draws a variant and changes the machine to what it shows at this age. What it draws must not depend on the age, nor
on what else has changed the machine."""


class EventClass(NamedTuple):
    """A class of events. `rate`: events a node and year; `source`: what the hardware or software shows then, and who
    says so; `prior`: where the rate comes from. `kinds`: of nodes that can have it; none named: all. `warns`: a fault
    that leaves the node usable, so that a warning is enough."""

    look: Look
    name: str
    fault: bool
    rate: float
    source: str
    prior: str
    kinds: tuple[str, ...] = ()
    warns: bool = False

    def draw(self, seed: str, base: Base) -> Variant:
        def apply(machine: Machine, age: float) -> None:
            self.look(random.Random(seed), machine, age)

        return self.look(random.Random(seed), Machine(base), 0.0)._replace(apply=apply)


def register(classes: list[EventClass], *words: Any) -> Callable[[Look], Look]:
    """Makes the function below it a class of events; `words`: the fields of EventClass after `look`."""

    def add(look: Look) -> Look:
        classes.append(EventClass(look, *words))
        return look

    return add


HGX: Final = ("hgx_h100_roce", "hgx_h100_ib", "hgx_h100_r535")
BARE: Final = (*HGX, "workstation_bridge", "workstation_boards")
ROCE: Final = ("hgx_h100_roce", "hgx_h100_r535")
SMALL: Final = ("workstation_bridge", "workstation_boards", "cloud_guest_l40s")
ECC: Final = (*HGX, "workstation_bridge", "cloud_guest_l40s")
NEWER: Final = tuple(kind for kind in (*BARE, "cloud_guest_l40s") if kind != "hgx_h100_r535")

NAMES: Final = ("python", "python3", "pt_main_thread", "ray::RolloutWor", "torchrun", "node", "nsys")


def xid(machine: Machine, age: float, gpu: int, code: int, text: str) -> None:
    machine.say(age, f"NVRM: Xid (PCI:{machine.bus(gpu)}): {code}, {text}")


def process(rng: random.Random, driver: str) -> str:
    """How the driver names the program of an Xid: `pid=1, name=python`, and `pid='<unknown>'` where it is gone."""
    if rng.random() < 0.15:
        return "pid='<unknown>', name=<unknown>"
    return f"pid={rng.randrange(2000, 4_000_000)}, name={rng.choice(NAMES)}"


def edges(variant: Variant) -> tuple[float, ...]:
    """The ages at which what the variant shows, or what tools make of it, may change."""
    if variant.steady:
        return (0.0, variant.lasts)
    inner = {edge for edge in (*EDGES, variant.not_judged, *variant.marks) if 0 < edge < variant.lasts}
    return (0.0, *sorted(inner), variant.lasts)
