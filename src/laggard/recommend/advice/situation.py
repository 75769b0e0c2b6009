"""Everything that is known of a job and its cluster, its timings' median step among it, as the rules of a
recommendation see it. None and empty: not known.

The rules are functions of the files of the folder `rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from laggard.kit.constants import OPS, PHASES
from laggard.locate.collectives import Collectives
from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.medians import median
from laggard.model import Culprit, Finding
from laggard.recommend.advice.values import Gain, Item

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
    collecting: Mapping[int, float] = {}
    """The share of the run in which Python collected garbage, by rank."""
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


_INPUT: Final = PHASES.index("input")
_MIN_STEPS: Final = 4


def with_job(known: Situation, timings: JobTimings, culprits: Sequence[Culprit]) -> Situation:
    """Returns what is known besides, with what a job's timings and the verdict on them tell."""
    node_of_rank = {
        int(rank): node for rank, node in zip(timings.ranks, timings.nodes, strict=True) if node is not None
    }
    groups = timings.collectives.groups if timings.collectives else ()
    return known._replace(
        profile=profile_of(timings),
        culprits=tuple(culprits),
        collecting={
            int(rank): threads.collecting
            for rank, threads in zip(timings.ranks, timings.own_threads, strict=False)
            if threads is not None
        },
        torch_variables=timings.environment or known.torch_variables,
        ranks=timings.world_size or known.ranks,
        nodes=len({node for node in timings.nodes if node}) or known.nodes,
        node_of_rank=node_of_rank,
        data_parallel_groups=tuple(group.ranks for group in groups if group.role == "dp"),
    )


def profile_of(timings: JobTimings) -> JobProfile | None:
    """Returns None where fewer than four steps are known."""
    seconds = timings.step_seconds
    if not timings.steps_recorded or np.isfinite(seconds).any(axis=1).sum() < _MIN_STEPS:
        return None
    step = median(seconds)
    if not step > 0:
        return None
    known = timings.waits_recorded and not timings.unseen_waits
    return JobProfile(
        step,
        _share(timings.phase_seconds[:, :, _INPUT], seconds, max),
        _share(timings.waited_seconds, seconds, min) if known else None,
        _by_operation(timings.collectives, seconds) if timings.collectives else {},
    )


def _share(part: Floats, whole: Floats, over_ranks: Callable[[list[float]], float]) -> float | None:
    """Returns a part's share of the step: of each rank the median over its steps, then over the ranks."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = part / whole
    columns = [median(shares[:, column]) for column in range(shares.shape[1])]
    finite = [value for value in columns if np.isfinite(value)]
    if not finite:
        return None
    return min(max(over_ranks(finite), 0.0), 0.99)


def _by_operation(collectives: Collectives, seconds: Floats) -> Mapping[str, tuple[float, float]]:
    """Returns how many of each operation a rank does in a step, and their mean bytes."""
    cells = max(1, int(np.isfinite(seconds).sum()))
    found = {}
    for place, name in enumerate(OPS):
        own = (collectives.op == place) & (collectives.step >= 0)
        sizes = collectives.size[own & (collectives.size >= 0)]
        if own.any():
            found[name] = (float(own.sum()) / cells, float(sizes.mean()) if len(sizes) else 0.0)
    return found


Rule = Callable[[Situation], Iterator[Item]]
"""Yields what is to be changed."""


def repair(
    found: Finding, target: str, key: str, gain: Gain, source: str, current: Any = None, recommended: Any = None
) -> Item:
    """Returns the item that repairs what a finding names, in the finding's own words."""
    commands = "\n".join(found.fix.commands)
    return Item(
        target=target,
        key=key,
        current=current,
        recommended=recommended,
        reason=f"{found.device} {found.summary}",
        evidence=(found.code, *(f"{name}: {value}" for name, value in list(found.evidence.items())[:6])),
        gain=gain,
        risk="Read the commands before you run them.",
        apply=f"{found.fix.text}\n{commands}".strip(),
        revert="Undo the same setting; note its value before.",
        source=source,
        repairs=True,
        commands=found.fix.commands,
    )


def for_each_finding(codes: Mapping[str, tuple[str, str]], gain: Gain, source: str) -> Rule:
    """Returns a rule's function that repairs each finding of these codes. `codes`: target and key, by code."""

    def judge(situation: Situation) -> Iterator[Item]:
        for found in situation.findings:
            if found.code in codes:
                yield repair(found, *codes[found.code], gain, source)

    return judge


def variable(name: str, current: str | None, recommended: str | None) -> tuple[str, str]:
    """Returns the commands that set or remove an environment variable, and that put it back."""

    def command(value: str | None) -> str:
        return f"unset {name}" if value is None else f"export {name}={value}"

    return command(recommended), command(current)


def variable_item(
    name: str, given: str | None, recommended: str | None, default: str = "", target: str = "nccl_env", **about: Any
) -> Item:
    """Returns the item that sets or removes an environment variable. `default`: in words, what holds without it."""
    apply, revert = variable(name, given, recommended)
    current = given if given is not None else default or None
    return Item(
        target=target,
        key=name,
        current=current,
        recommended=recommended,
        apply=apply,
        revert=revert,
        commands=(apply,),
        **about,
    )
