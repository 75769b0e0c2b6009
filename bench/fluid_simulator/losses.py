"""The losses of a recording, and its clocks, which are off."""

import dataclasses

from fluid_simulator.chance import Generator, pick, uniform
from fluid_simulator.families import STOPS
from fluid_simulator.plan import Plan
from fluid_simulator.truths import Truth

EPOCH = 1.79e9
"""The Unix time near which jobs began."""


@dataclasses.dataclass
class Losses:
    """`ranks` without a file; every so-manieth step is `kept` (0: all), or each lost with the chance `missing`;
    `no_steps`: neither steps nor phases are there; `clock_set`: the machine whose clock is off by seconds (-1: none).
    `words`: the same, as truths say it."""

    ranks: set[int] = dataclasses.field(default_factory=set)
    kept: int = 0
    missing: float = 0.0
    no_steps: bool = False
    clock_set: int = -1
    words: list[str] = dataclasses.field(default_factory=list)

    def steps(self, rng: Generator, count: int) -> set[int]:
        """The steps that a rank has lost."""
        return {
            step
            for step in range(count)
            if (self.kept and step % self.kept) or (self.missing and rng.random() < self.missing)
        }


def draw_losses(rng: Generator, plan: Plan) -> Losses:
    """A quarter of the recordings of jobs that do not stop lack something."""
    losses = Losses()
    which = rng.random()
    if plan.family in STOPS:
        return losses
    if which < 0.07:
        losses.ranks = _lost_ranks(rng, plan)
        losses.words = ["lost_ranks"] if losses.ranks else []
    elif which < 0.12:
        losses.kept = int(pick(rng, [2, 3])) if plan.family != "wave" else 0
        losses.words = ["gaps"] if losses.kept else []
    elif which < 0.16:
        losses.missing, losses.words = uniform(rng, 0.05, 0.2), ["gaps"]
    elif which < 0.21:
        losses.no_steps, losses.words = True, ["no_steps"]
    elif which < 0.26:
        losses.clock_set, losses.words = int(rng.integers(plan.cluster.machines)), ["clock_set"]
    return losses


def _lost_ranks(rng: Generator, plan: Plan) -> set[int]:
    """Some ranks here and there, or the last machine."""
    cluster = plan.cluster
    count = max(1, int(cluster.world * rng.uniform(0.02, 0.12)))
    if rng.random() < 0.6:
        return set(rng.choice(cluster.world, count, replace=False).tolist())
    return set(cluster.ranks_of(cluster.machines - 1)) if cluster.machines > 2 else set()


def excuse(plan: Plan, truth: Truth, losses: Losses) -> None:
    """Lets the truth ask for nobody whose recording is lost, and tolerate what cannot be told apart without steps."""
    for fault in truth.faults if losses.ranks else ():
        ranks = {rank for entry in fault["accepted"] for rank in entry["ranks"]}
        machines = {node for entry in fault["accepted"] for node in entry["nodes"]}
        lost_end = not ranks and any(plan.cluster.name(rank) in machines for rank in losses.ranks)
        if (ranks & losses.ranks or lost_end) and not fault["optional"]:
            fault["optional"] = "recordings of it are lost"
            if all(each["optional"] for each in truth.faults):
                truth.verdicts = sorted({*truth.verdicts, "ok", "unknown"})
    extras = plan.job.extras
    if losses.no_steps and extras.logging:
        truth.tolerated = [*truth.tolerated, plan.entry("host", [0])]
        if "slow" not in truth.verdicts:
            truth.verdicts.append("slow")
        truth.why += " rank 0's logging is not recorded as such"
    if losses.no_steps and extras.checkpoint and extras.checkpoint.alone:
        truth.tolerated = [*truth.tolerated, plan.entry("host", [0])]


class Clocks:
    """Each machine's clock begins anywhere, drifts by parts in a hundred thousand, and knows Unix time to some
    milliseconds, or, where it was set, to seconds."""

    def __init__(self, rng: Generator, machines: int, clock_set: int) -> None:
        self.unix = EPOCH + float(rng.uniform(0, 2e6))
        self._offset = rng.uniform(100, 3e6, machines)
        self._drift = 1 + rng.normal(0, 1.2e-5, machines)
        self._error = rng.normal(0, 0.003, machines)
        if clock_set >= 0:
            self._error[clock_set] += float(pick(rng, [-1, 1])) * uniform(rng, 1.5, 40)

    def read(self, machine: int, time: float) -> float:
        """Returns what the machine's clock shows."""
        return float(time * self._drift[machine] + self._offset[machine])

    def unix_minus_clock(self, machine: int) -> float:
        return float(self.unix - self._offset[machine] + self._error[machine])
