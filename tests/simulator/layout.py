"""Says how a job is laid out: its parallel dimensions, its schedule, and which rank sits on which node and NIC."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

AXES = ("tp", "dp", "pp")
SCHEDULES = ("none", "gpipe", "1f1b", "interleaved", "zero_bubble")
SENDS = ("together", "later", "buffered")  # a send ends with its recv; it is waited for at the step's end; once copied
GRADIENTS = ("after", "buckets")  # all_reduce after the backward pass, or in buckets that overlap it


class Group(NamedTuple):
    """A process group: its `role` (dp, tp, pp, ep, world) and the global ranks of its members, ascending."""

    role: str
    ranks: tuple[int, ...]

    @property
    def name(self) -> str:
        step = self.ranks[1] - self.ranks[0] if len(self.ranks) > 1 else 1
        return f"{self.role}:{self.ranks[0]}-{self.ranks[-1]}/{step}"


@dataclass(frozen=True)
class Layout:
    """A job's shape. `dp * tp * pp` ranks; `ep` divides dp. Ranks count along `order`, its first axis fastest.

    `strided_experts` puts the members of an expert group on different nodes. `shard` is the size of the groups that
    shard with ZeRO (hpZ, MiCS, HSDP): 0 is all of dp; the others hold replicas, whose gradients are all_reduced.
    `nics_per_node` 0 is one NIC for each GPU. `sends` "together" is what NCCL does, "later" is torch's GPipe, which
    waits for its sends when all microbatches are through; the interleaved schedule's are always buffered.
    """

    name: str
    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    zero: int = 0
    gradients: str = "after"
    schedule: str = "none"
    micro: int = 1
    chunks: int = 1
    blocks: int = 4
    shard: int = 0
    strided_experts: bool = False
    gpus_per_node: int = 8
    nics_per_node: int = 0
    order: tuple[str, ...] = AXES
    sends: str = "together"

    def __post_init__(self) -> None:
        if sorted(self.order) != sorted(AXES):
            raise ValueError(f"order is {self.order}: give tp, dp and pp, each once")
        if self.schedule not in SCHEDULES or (self.schedule == "none") != (self.pp == 1):
            raise ValueError(f"schedule {self.schedule} with pp {self.pp}: a pipeline needs one of {SCHEDULES[1:]}")
        if self.sends not in SENDS:
            raise ValueError(f"sends {self.sends}: give one of {SENDS}")
        if self.gradients not in GRADIENTS:
            raise ValueError(f"gradients {self.gradients}: give one of {GRADIENTS}")
        if self.dp % self.ep or (self.shard and self.dp % self.shard):
            raise ValueError("ep and shard must divide dp")
        if self.schedule == "interleaved" and (self.micro % self.pp or self.chunks < 2):
            raise ValueError("the interleaved schedule needs chunks of at least 2 and a multiple of pp microbatches")
        if not 0 <= self.zero <= 3 or (self.zero == 3 and self.pp > 1):
            raise ValueError("zero is 0 to 3, and 3 only without a pipeline")
        if self.world_size % self.gpus_per_node and self.world_size > self.gpus_per_node:
            raise ValueError("the ranks must fill their nodes")
        if not 0 <= self.nics_per_node <= self.gpus_per_node:
            raise ValueError("a node has at most one NIC for each GPU; 0 is one for each")

    @property
    def world_size(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def nodes(self) -> int:
        return -(-self.world_size // self.gpus_per_node)

    def node(self, rank: int) -> int:
        return rank // self.gpus_per_node

    def local_rank(self, rank: int) -> int:
        return rank % self.gpus_per_node

    def nic(self, rank: int) -> tuple[int, int]:
        """Returns the node and the number of the NIC through which this rank speaks with other nodes."""
        return self.node(rank), self.local_rank(rank) * (self.nics_per_node or self.gpus_per_node) // self.gpus_per_node

    def ranks_of_node(self, node: int) -> tuple[int, ...]:
        return tuple(range(node * self.gpus_per_node, min((node + 1) * self.gpus_per_node, self.world_size)))

    def ranks_of_nic(self, nic: tuple[int, int]) -> tuple[int, ...]:
        return tuple(rank for rank in self.ranks_of_node(nic[0]) if self.nic(rank) == nic)

    @cached_property
    def nics(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted({self.nic(rank) for rank in range(self.world_size)}))

    def position(self, rank: int) -> dict[str, int]:
        """Returns the rank's index along tp, dp and pp, and within its expert group."""
        found = {}
        for axis in self.order:
            found[axis] = rank % getattr(self, axis)
            rank //= getattr(self, axis)
        if self.ep > 1:
            found["ep"] = found["dp"] // (self.dp // self.ep) if self.strided_experts else found["dp"] % self.ep
        return found

    def rank(self, position: dict[str, int]) -> int:
        found, stride = 0, 1
        for axis in self.order:
            found += position[axis] * stride
            stride *= getattr(self, axis)
        return found

    def _along(self, rank: int, axis: str, indices: Sequence[int]) -> tuple[int, ...]:
        own = self.position(rank)
        return tuple(sorted(self.rank({**own, axis: index}) for index in indices))

    def group(self, rank: int, role: str) -> Group:
        """Returns the group of `role` that this rank is in: dp, tp, pp, ep, world; `expert_dp` (role dp) all_reduces an
        expert's gradients; `shard` and `replica` (both of role dp) are those of ZeRO in sub-groups."""
        own = self.position(rank)
        if role == "world":
            return Group("world", tuple(range(self.world_size)))
        if role in AXES:
            return Group(role, self._along(rank, role, range(getattr(self, role))))
        width = self.shard or self.dp
        replicas = self.dp // self.ep
        if role == "shard":
            return Group("dp", self._along(rank, "dp", [i for i in range(self.dp) if i // width == own["dp"] // width]))
        if role == "replica":
            return Group("dp", self._along(rank, "dp", [i for i in range(self.dp) if i % width == own["dp"] % width]))
        if self.strided_experts:
            experts = [i for i in range(self.dp) if i % replicas == own["dp"] % replicas]
            copies = [i for i in range(self.dp) if i // replicas == own["dp"] // replicas]
        else:
            experts = [i for i in range(self.dp) if i // self.ep == own["dp"] // self.ep]
            copies = [i for i in range(self.dp) if i % self.ep == own["dp"] % self.ep]
        if role == "ep":
            return Group("ep", self._along(rank, "dp", experts))
        if role == "expert_dp":
            return Group("dp", self._along(rank, "dp", copies))
        raise ValueError(f"no group of role {role!r}")

    def as_document(self) -> dict[str, Any]:
        return {**asdict(self), "world_size": self.world_size}


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("dp8", dp=8),
        Layout("dp64", dp=64),
        Layout("ddp16", dp=16, gradients="buckets", blocks=5),
        Layout("zero1_32", dp=32, zero=1),
        Layout("zero2_32", dp=32, zero=2),
        Layout("zero3_32", dp=32, zero=3, blocks=5),
        Layout("hybrid_zero3_32", dp=32, zero=3, blocks=5, shard=8),
        Layout("moe32", dp=32, ep=8),
        Layout("moe32_across", dp=32, ep=16),
        Layout("dp8_tp8", dp=8, tp=8),
        Layout("dp16_tp4", dp=16, tp=4),
        Layout("dp16_pp4_1f1b", dp=16, pp=4, schedule="1f1b", micro=8, blocks=2),
        Layout("dp8_pp4_gpipe", dp=8, pp=4, schedule="gpipe", micro=6, blocks=2, order=("tp", "pp", "dp")),
        Layout("dp16_pp4_interleaved", dp=16, pp=4, schedule="interleaved", micro=8, chunks=2, blocks=2),
        Layout("dp4_tp8_pp4", dp=4, tp=8, pp=4, schedule="1f1b", micro=8, blocks=1, gradients="buckets"),
    )
}


def parse_layout(text: str) -> Layout:
    """Reads a layout's name, or a description such as `dp=4,tp=2,pp=2,schedule=1f1b,micro=4`, or a name with changes:
    `dp64,nics_per_node=1`. Raises ValueError with what is wrong."""
    first, *rest = text.split(",")
    base = None if "=" in first else LAYOUTS.get(first)
    if base is None and "=" not in first:
        raise ValueError(f"no layout {first!r}; there are {', '.join(LAYOUTS)}; or give dp=8,tp=2,...")
    changes: dict[str, Any] = {}
    for word in rest if base else [first, *rest]:
        key, _, value = word.partition("=")
        field = Layout.__dataclass_fields__.get(key)
        if field is None or key == "name" or not value:
            raise ValueError(f"{word!r} is no field of a layout: give KEY=VALUE")
        if key == "order":
            changes[key] = tuple(value.split("-"))
        elif isinstance(field.default, bool):
            changes[key] = value in ("1", "true", "yes")
        else:
            changes[key] = int(value) if isinstance(field.default, int) else value
    name = text.replace(",", "_").replace("=", "")
    return replace(base, name=name, **changes) if base else Layout(name, **changes)
