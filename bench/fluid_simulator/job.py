"""A job as drawn: what its ranks do in a step, and how much of it. Pure."""

import dataclasses
from typing import Any

from fluid_simulator.cluster import Cluster
from fluid_simulator.fabric import Settings
from fluid_simulator.groups import Group


@dataclasses.dataclass
class Memberships:
    """The groups that a rank is in. `shard` and `replicas`: of hybrid sharding."""

    world: Group
    shard: Group | None = None
    replicas: Group | None = None
    tp: Group | None = None
    cp: Group | None = None
    dp: Group | None = None
    ep: Group | None = None
    pp: Group | None = None

    def all(self) -> list[Group]:
        every = (self.world, self.shard, self.replicas, self.tp, self.cp, self.dp, self.ep, self.pp)
        return [group for group in every if group is not None]


@dataclasses.dataclass(frozen=True)
class Stop:
    """Ranks that stop for good: in a step, at a bunch of kernels counted from 1. `how`: host, input or gpu."""

    ranks: list[int]
    step: int
    kernel: int
    how: str


@dataclasses.dataclass(frozen=True)
class Replicated:
    """DDP: gradients are reduced in buckets while the backward goes on. `bucket_size`: bytes. `from_last_gradient`:
    reductions are recorded as begun when the last gradient was there, as the hooks see DDP's own collectives."""

    buckets: int
    accumulation: int
    from_last_gradient: bool
    bucket_size: float


@dataclasses.dataclass(frozen=True)
class Sharded:
    """FSDP2 and HSDP: blocks are gathered ahead of their use, gradients scattered behind. `gathers_behind`: a gather
    waits for the kernels launched before it (FSDP's limit of all-gathers); `reshard`: blocks are gathered again for the
    backward; `scatter_stream`: that of gathers (ag), or another (rs); `in_flight`: so many scatters may be open;
    `clip`: gradients are clipped by their norm; `no_sync`: gradients are reduced once a step. `block_size`: bytes."""

    blocks: int
    accumulation: int
    gathers_behind: bool
    reshard: bool
    scatter_stream: str
    in_flight: int
    clip: bool
    no_sync: bool
    block_size: float


@dataclasses.dataclass
class Pipelined:
    """Megatron: tensor, context, data, expert and pipeline parallelism. `batched`: what is sent and what comes back are
    posted together, and both are waited for; `ahead`: the next receive is posted before the work; `sequence`: sequence
    parallelism; `sharded_optimizer`: ZeRO 1; `overlap`: gradients are reduced within the backward. `stage_weights`: the
    stages' work, by design. Sizes, in bytes: of an activation between stages, of a collective of a tensor, expert and
    context group, and of a stage's gradients."""

    stages: int
    chunks: int
    micros: int
    blocks: int
    schedule: str
    batched: bool
    ahead: bool
    sequence: bool
    sharded_optimizer: bool
    overlap: bool
    stage_weights: list[float]
    activation_size: float
    tensor_size: float
    expert_size: float
    context_size: float
    gradient_size: float


@dataclasses.dataclass
class Logging:
    """Rank 0 logs, every so many steps."""

    every: int
    seconds: float


@dataclasses.dataclass
class Evaluation:
    every: int
    seconds: float


@dataclasses.dataclass
class Checkpoint:
    """`alone`: rank 0 writes, and all wait for it."""

    every: int
    seconds: float
    alone: bool


@dataclasses.dataclass
class Extras:
    """Extra work that comes now and then."""

    logging: Logging | None = None
    evaluation: Evaluation | None = None
    checkpoint: Checkpoint | None = None


@dataclasses.dataclass
class Job:
    """`load`: seconds of one of `workers` for a batch, of which they make up to `prefetched` ahead; `fetch`: seconds of
    the host to take one; `copy`: seconds to the GPU; `loss_every` and `sync_every`: after so many steps the loss is
    reduced, and the host asks the GPU (0: never). `forward`: seconds of a micro-batch's forward on one stage;
    `optimizer`: seconds. `tokens` of a micro-batch. `step_seconds`: about how long a step is. `steps`: so many are
    recorded."""

    engine: str
    settings: Settings
    world: Group
    work: Replicated | Sharded | Pipelined
    workers: int
    load: float
    fetch: float
    prefetched: int
    copy: float
    loss_every: int
    sync_every: int
    forward: float
    optimizer: float
    tokens: int
    step_seconds: float
    steps: int
    extras: Extras = dataclasses.field(default_factory=Extras)

    @property
    def micros(self) -> int:
        """Micro-batches of a step."""
        return self.work.micros if isinstance(self.work, Pipelined) else self.work.accumulation


@dataclasses.dataclass
class Drawn:
    """A job on its cluster. By rank: its `positions` as recorded, its pipeline `stages`, its `memberships`, and
    `replica`, which of the batches it works on. `words`: the layout, for people."""

    cluster: Cluster
    job: Job
    groups: list[Group]
    positions: list[dict[str, int]]
    stages: list[int]
    memberships: list[Memberships]
    replica: list[int]
    words: dict[str, Any]
