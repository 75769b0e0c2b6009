"""Draws how a stage of Megatron works, and how much it sends. Pure."""

from typing import NamedTuple

from fluid_simulator.chance import Generator, chance, pick, uniform
from fluid_simulator.cluster import Cluster
from fluid_simulator.job import Pipelined
from fluid_simulator.layouts import Layout

HUGE_WORLD = 256
"""The number of ranks from which on jobs have fewer micro-batches and blocks."""
FEW_TASKS = 9
"""The number of micro-batches times chunks below which a stage may have two blocks."""


class Tasks(NamedTuple):
    """A schedule, and how many micro-batches, chunks of a stage, and blocks of a chunk."""

    schedule: str
    micros: int
    chunks: int
    blocks: int


def draw_tasks(rng: Generator, layout: Layout, world: int) -> Tasks:
    """A schedule that the stages allow."""
    name, huge = str(pick(rng, ["1f1b", "1f1b", "interleaved", "zb", "gpipe"])), world >= HUGE_WORLD
    if layout.pp == 1 or (layout.pp < 4 and name == "interleaved"):
        name = "1f1b"
    micros = int(max(2, pick(rng, [1, 2]) * layout.pp)) if layout.pp > 1 else int(pick(rng, [1, 2, 4]))
    micros = max(2, layout.pp) if huge else micros
    chunks = 2 if name == "interleaved" else 1
    one_block = layout.ep > 1 or huge or micros * chunks >= FEW_TASKS
    return Tasks(name, micros, chunks, 1 if one_block else int(pick(rng, [1, 2])))


def draw_work(
    rng: Generator, cluster: Cluster, layout: Layout, tasks: Tasks, forward: float, step_seconds: float
) -> Pipelined:
    """`forward`: seconds of a micro-batch on a stage; `step_seconds`: of a step. What is sent takes a share of what the
    GPU takes meanwhile, at the rate of the way that it goes."""
    rates, task = _Rates(cluster, layout), forward / tasks.chunks
    block = task / tasks.blocks
    return Pipelined(
        stages=layout.pp,
        chunks=tasks.chunks,
        micros=tasks.micros,
        blocks=tasks.blocks,
        schedule=tasks.schedule,
        batched=chance(rng, 0.6),
        ahead=chance(rng, 0.45),
        sequence=chance(rng, 0.4),
        sharded_optimizer=chance(rng, 0.6),
        overlap=chance(rng, 0.6),
        stage_weights=[1.0] * layout.pp,
        activation_size=task * uniform(rng, 0.04, 0.2) * rates.between_stages(),
        tensor_size=block * uniform(rng, 0.08, 0.3) * rates.of_tensors() / 2,
        expert_size=block * uniform(rng, 0.1, 0.3) * rates.of_span(layout.ep * layout.tp),
        context_size=block * uniform(rng, 0.2, 0.5) / 2 / max(1, layout.cp) * rates.of_span(layout.tp * layout.cp),
        gradient_size=step_seconds * uniform(rng, 0.06, 0.3) * rates.of_gradients() / 2 * rates.gradient_rails(),
    )


class _Rates:
    """Bytes a second for what a rank of the layout sends. `of_rank`: its share of an adapter."""

    def __init__(self, cluster: Cluster, layout: Layout) -> None:
        self.cluster, self.layout = cluster, layout
        self.of_rank = cluster.adapter_rate / (cluster.gpus // cluster.adapters)
        span = layout.tp * layout.dp * layout.cp
        self.gradients_leave = span > cluster.gpus and layout.dp * layout.cp > 1

    def of_span(self, ranks: int) -> float:
        """The rate of a group that spans so many ranks."""
        return self.of_rank if ranks > self.cluster.gpus else self.cluster.nvlink_rate

    def of_tensors(self) -> float:
        cluster = self.cluster
        return cluster.nvlink_rate if self.layout.tp <= cluster.gpus else cluster.adapter_rate * cluster.adapters

    def between_stages(self) -> float:
        per_stage = self.layout.tp * self.layout.cp * self.layout.dp
        machines = {self.cluster.machine(stage * per_stage) for stage in range(self.layout.pp)}
        return self.of_rank if len(machines) > 1 else self.cluster.adapter_rate

    def of_gradients(self) -> float:
        return self.of_rank if self.gradients_leave else self.cluster.nvlink_rate

    def gradient_rails(self) -> int:
        """The number of a machine's adapters that a data group uses."""
        on_machine = max(1, self.cluster.gpus // self.layout.tp)
        return min(on_machine, self.cluster.adapters) if self.gradients_leave else 1
