"""Everything that is known of a job and its cluster, as the rules of a recommendation see it. None and empty: not
known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from laggard.model import Culprit, Finding

if TYPE_CHECKING:
    from laggard.deepspeed_config import DeepSpeedConfig
    from laggard.nccl.variable_table import Version


class JobProfile(NamedTuple):
    """A job's median step. Shares are of the step's time."""

    step_seconds: float
    input_share: float | None = None
    """Own time in waiting for input, of the rank that waits longest for it."""
    exposed_share: float | None = None
    """Blocked in collectives, of the rank that is blocked least: what no slow rank explains."""
    collectives: Mapping[str, tuple[float, float]] = {}
    """The number of collectives a step and rank, and their mean bytes, by operation."""


class ModelSize(NamedTuple):
    """The size of the model and its GPUs, as a user says. Bytes are of one GPU."""

    parameters: float
    """The parameters of the part of the model that a data-parallel group holds: all, without tensor and pipeline
    parallelism."""
    gpu_bytes: float
    gpus: int | None = None
    """The number of GPUs among which ZeRO divides; None: all ranks."""
    sample_bytes: float = 0.0
    """Activations of one sample of the micro-batch; 0: not known."""
    resident_bytes: float = 0.0
    """The bytes that each GPU holds besides, such as the teacher of a distillation."""


class Situation(NamedTuple):
    findings: tuple[Finding, ...] = ()
    environment: Mapping[str, str] = {}
    """Variables of NCCL that the job has."""
    environment_known: bool = False
    torch_variables: Mapping[str, str] = {}
    """The surroundings of the job's ranks by name, torch's own variables and its libraries' among them."""
    nccl_version: Version = ()
    networks: tuple[str, ...] = ()
    """The networks as NCCL names them: IB, Socket, ..."""
    link_layers: frozenset[str] = frozenset()
    """InfiniBand, Ethernet."""
    nodes: int | None = None
    ranks: int | None = None
    deepspeed: DeepSpeedConfig | None = None
    deepspeed_document: Mapping[str, Any] | None = None
    deepspeed_problems: tuple[str, ...] = ()
    model_size: ModelSize | None = None
    profile: JobProfile | None = None
    culprits: tuple[Culprit, ...] = ()
    lossless_priorities: frozenset[int] = frozenset()
    """The priorities, 0 to 7, for which the RoCE ports have priority flow control; of nodes that differ, those that all
    have."""
    products: frozenset[str] = frozenset()
    """The products that the nodes are, by their firmware (DMI): vendor and product."""
    kind_of_node: Mapping[str, str] = {}
    """The kind of each node's NICs: InfiniBand, RoCE, Socket."""
    node_of_rank: Mapping[int, str] = {}
    data_parallel_groups: tuple[tuple[int, ...], ...] = ()

    def finding(self, *codes: str) -> Finding | None:
        return next((each for each in self.findings if each.code in codes), None)
