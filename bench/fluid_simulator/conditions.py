"""Sets what a step is like: the factors of ranks and of the network, as plan and faults have them."""

from collections.abc import Sequence

from fluid_simulator.plan import ON_LINKS, ON_MACHINES, Fault, Plan
from fluid_simulator.rank import Rank
from fluid_simulator.simulation import Simulation

NOTHING_PASSES = 1e-12


class Conditions:
    """`all_on`: every fault acts in full in every step."""

    def __init__(self, plan: Plan, faults: Sequence[Fault], simulation: Simulation, all_on: bool) -> None:
        self.plan, self.simulation, self.all_on = plan, simulation, all_on
        self._of_rank: dict[int, list[Fault]] = {}
        for fault in faults:
            for rank in fault.ranks if fault.type in ON_MACHINES else ():
                self._of_rank.setdefault(rank, []).append(fault)
        self._links = [fault for fault in faults if fault.type in ON_LINKS]
        for fault in self._links:
            self._slow(fault, 1.0)

    def begin_step(self, rank: Rank, step: int) -> None:
        """Sets the rank's factors. Each rank calls it; rank 0 sets those of the network as well."""
        self._set_factors(rank, step)
        plan, factors, per_step = self.plan, rank.factors, self.plan.job.step_seconds
        if plan.heat:
            factors.gpu *= plan.heat(rank.number, step)
        if plan.drift:
            factors.gpu *= plan.drift(rank.number, step)
        if plan.storage:
            factors.input += plan.storage(rank.number, step) * per_step * plan.job.workers
        factors.work, factors.tokens = plan.work(plan.drawn.replica[rank.number], step)
        if plan.warm_up and step < plan.warm_up[0]:
            rank.host_time += plan.warm_up[1] * (0.5**step) * (1 + 0.1 * abs(rank.normal()))
        if rank.number == 0 and (self._links or plan.others):
            self._set_network(step)

    def _level(self, fault: Fault, step: int) -> float:
        return 1.0 if self.all_on else fault.level(step)

    def _set_factors(self, rank: Rank, step: int) -> None:
        factors, job = rank.factors, self.plan.job
        factors.gpu, factors.host, factors.copy, factors.input = self.plan.silicon[rank.number], 1.0, 1.0, 0.0
        factors.burst = factors.pause = 0.0
        for fault in self._of_rank.get(rank.number, ()):
            level = self._level(fault, step)
            if level <= 0:
                continue
            added = fault.severity * level
            if fault.style == "burst":
                factors.burst = added
            elif fault.style == "pause":
                factors.pause = added
            elif fault.type == "gpu":
                factors.gpu *= 1 + added
            elif fault.type == "host":
                factors.host *= 1 + added
            elif fault.type == "input":
                factors.input = added * job.step_seconds * job.workers
            else:
                factors.copy *= 1 + added

    def _set_network(self, step: int) -> None:
        for fault in self._links:
            level = self._level(fault, step)
            if fault.type == "netdead":
                self._slow(fault, NOTHING_PASSES if step >= fault.dead_from else 1.0)
            else:
                self._slow(fault, 1 / (1 + fault.severity * level) if level > 0 else 1.0)
        network = self.simulation.fabric.network
        if self.plan.others:
            network.others = self.plan.others(step)
        network.share_anew(self.simulation.agenda.now)

    def _slow(self, fault: Fault, factor: float) -> None:
        """Leaves this share of the rate to what the fault is at."""
        fabric = self.simulation.fabric
        if fault.type == "nvlink":
            fabric.nvlink_factors.update(dict.fromkeys(fault.ranks, factor))
        else:
            fabric.network.factors.update(dict.fromkeys(fault.resources, factor))
