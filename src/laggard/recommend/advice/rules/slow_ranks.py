"""The advice about ranks that others wait for: a slow machine, more work, late input, garbage collection, and
variables that help to find a defect.

A synchronous job is as slow as its slowest rank, whatever is tuned. Of these causes all but the first are the
program's, and no machine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from laggard.locate.describe import culprit_name, culprit_text
from laggard.model import Culprit
from laggard.recommend.advice.situation import Situation, variable_item
from laggard.recommend.advice.values import Gain, Item

SLOW_RANK_SOURCE: Final = (
    "docs/development/location.md: recoverable_ratio is the share of the step that fixing the culprit saves"
)

_OF_THE_SCRIPT: Final = ("uneven_work", "busy_threads")
"""No machine is at fault: _CHANGES has these."""

_HARDWARE: Final = ("GPU_", "NVLINK_", "PCIE_", "RDMA_", "FABRIC_")
_LOSES_WORK: Final = "A job that is ended loses what it did since its last checkpoint."


def judge_slow_rank(situation: Situation) -> Iterator[Item]:
    """Advises on slow ranks, and on those that died or hang whose machine's findings can be the cause: of the others
    nothing is known to be in need of repair."""
    for culprit in situation.culprits:
        of_the_script = culprit.kind in _OF_THE_SCRIPT or culprit.is_in_the_code
        if of_the_script or (culprit.kind in ("dead", "hung") and not culprit.findings):
            continue
        codes = sorted(culprit.findings, key=lambda code: not code.startswith(_HARDWARE))
        risk, revert = _risk_and_revert(culprit, situation)
        yield Item(
            target="host",
            key=culprit_name(culprit),
            current=_state(culprit, codes),
            recommended=None,
            reason=f"{culprit_text(culprit)}, and {_consequence(culprit)}",
            evidence=(*(f"its node reports {code}" for code in codes[:2]), *culprit.evidence[:4]),
            gain=gain_of(culprit),
            risk=risk,
            apply=culprit.advice,
            revert=revert,
            source=SLOW_RANK_SOURCE,
            repairs=True,
        )


def gain_of(culprit: Culprit) -> Gain:
    """The gain is at most what the job waits for the culprit."""
    share = culprit.recoverable_ratio
    return Gain("measured") if share is None or not 0 < share < 1 else _at_most(share)


def _reads_by_itself(culprit: Culprit) -> bool:
    stack = culprit.stack if culprit.is_in_the_code else None
    return stack is not None and not any("/torch/utils/data/" in frame for frame in stack.frames)


def _ratio(gain: Gain) -> float:
    return gain.ratio or 0.0


def _at_most(share: float) -> Gain:
    """The gain of a step without this share of it."""
    return Gain("measured", 1 / (1 - share), 1.0, 1 / (1 - share))


def _state(culprit: Culprit, codes: list[str]) -> str | None:
    """The fault of it, after its name; the finding that explains it comes first."""
    found = f"{', '.join(codes[:2])}; " if codes else ""
    many = len(culprit.ranks) > 1
    if culprit.kind == "dead":
        return f"{found}{'they' if many else 'it'} died"
    if culprit.kind == "hung":
        verb = "stopped running" if culprit.silent else "are hung" if many else "is hung"
        return f"{found}{'they' if many else 'it'} {verb}"
    if culprit.kind == "corrupt":
        return f"{found}its parameters differ from its replicas'"
    if not culprit.slowdown_ratio:
        return found.removesuffix("; ") or None
    digits = 0 if culprit.slowdown_ratio >= 10 else 1 if culprit.slowdown_ratio >= 2 else 2
    times = f"{culprit.slowdown_ratio:.{digits}f} times as long"
    if culprit.kind == "slow_link":
        return f"{found}it takes {times} as the others"
    return f"{found}{'they are' if many else 'it is'} busy {times} as {'their' if many else 'its'} peers"


def _consequence(culprit: Culprit) -> str:
    them = "them" if len(culprit.ranks) > 1 else "it"
    if culprit.kind == "dead":
        return f"the others cannot go on without {them}"
    if culprit.kind == "corrupt":
        return "the others train on with its wrong gradients"
    return f"the others wait for {them}"


def _risk_and_revert(culprit: Culprit, situation: Situation) -> tuple[str, str]:
    """The risk of the advice, and how to revert it, where another node may take the place of the culprit's. A job on
    one machine has no other, and a data loader and a hang go along with the job."""
    if culprit.kind in ("hung", "dead", "corrupt"):
        return _LOSES_WORK, ""
    if culprit.kind == "slow_input" or situation.nodes == 1:
        return "None, as long as you only look.", ""
    return "None, if another node takes its place.", "Where you replaced the node: put it back."


OWN_PROGRAM_SOURCE: Final = "docs/development/location.md: whose fault it is"


class _Change(NamedTuple):
    key: str
    recommended: str | None
    risk: str
    revert: str


_CHANGES: Final = {
    "uneven_work": _Change(
        "what {} is given to do",
        "as much as the others: equal tokens a step, not equal samples",
        "Other batches are another training: the order of samples changes.",
        "the batches as they were",
    ),
    "in_the_code": _Change(
        "what {} alone does in {place}",
        None,
        "Whatever that line is there for goes with it.",
        "the line as it was",
    ),
    "busy_threads": _Change(
        "the threads beside the training of {}",
        "none that compute in Python: a process of their own, or fewer calls",
        "None for the training.",
        "the threads as they were",
    ),
}


def judge_own_program(situation: Situation) -> Iterator[Item]:
    """Advises on work of the program's own. The others have to do what is taken from a rank that has more work, so that
    the gain is not what the rank costs; what one line costs that it alone is at is gained at most."""
    for culprit in situation.culprits:
        change = _CHANGES.get("in_the_code" if culprit.is_in_the_code else culprit.kind)
        if change is None:
            continue
        whose = msgspec.structs.replace(culprit, node=None)  # no machine is at fault
        yield Item(
            target="launcher",
            key=change.key.format(culprit_name(whose), place=culprit.stack.place if culprit.stack else ""),
            current=None,
            recommended=change.recommended,
            reason=f"{culprit_text(whose)}, and the others wait",
            evidence=culprit.evidence[:4],
            gain=gain_of(culprit) if culprit.is_in_the_code else Gain("rule"),
            risk=change.risk,
            apply=culprit.advice,
            revert=change.revert,
            source=OWN_PROGRAM_SOURCE,
        )


DATA_LOADER_SOURCE: Final = "PyTorch's documentation of torch.utils.data.DataLoader; measured on this job"
_MIN_SHARE: Final = 0.05


def judge_data_loader(situation: Situation) -> Iterator[Item]:
    """A rank that alone is slow to get its input is a culprit, and what the job waits for it was measured: one cause
    has one gain. No worker takes over a line of code that it alone is at outside of its DataLoader. If the line is
    within it, the workers hide as much as their cores can, which nobody measured. Where all ranks wait for input, the
    gain is at most what the rank waits that waits longest."""
    share = situation.profile.input_share if situation.profile else None
    late = [each for each in situation.culprits if each.kind == "slow_input"]
    if share is None or share < _MIN_SHARE or any(map(_reads_by_itself, late)):
        return
    measured = max((gain for gain in map(gain_of, late) if gain.ratio), key=_ratio, default=_at_most(share))
    yield Item(
        target="launcher",
        key="DataLoader(num_workers, prefetch_factor)",
        current=None,
        recommended="more workers, at most the cores of a rank; persistent_workers=True",
        reason=f"a rank waits for input for {share * 100:.0f} % of each step",
        evidence=(f"input: {share:.1%} of a step",),
        gain=Gain("rule") if any(each.is_in_the_code for each in late) else measured,
        risk="Each worker takes memory of the host; a storage that is slow stays slow.",
        apply="DataLoader(..., num_workers=N, persistent_workers=True)",
        revert="the arguments as they were",
        source=DATA_LOADER_SOURCE,
    )


GARBAGE_COLLECTION_SOURCE: Final = (
    "torchtnt's GarbageCollector: synchronous training collects on all ranks at the same step; Python's documentation "
    "of gc.freeze"
)
_HIGHEST_SHARE: Final = 0.9
_HALF: Final = 0.5
_MAX_SHOWN: Final = 4


def judge_garbage_collection(situation: Situation) -> Iterator[Item]:
    """One change for all ranks, where the collections take half of what a culprit costs or more."""
    paused = [each for each in situation.culprits if _collects(situation, each)]
    if not paused:
        return
    shares = [each.recoverable_ratio for each in paused if each.recoverable_ratio]
    lost = min(sum(shares), _HIGHEST_SHARE)
    names = ", ".join(culprit_name(each) for each in paused[:_MAX_SHOWN])
    more = f" and {len(paused) - _MAX_SHOWN} more" if len(paused) > _MAX_SHOWN else ""
    yield Item(
        target="launcher",
        key="garbage collection",
        current="automatic, at another step on each rank (Python's default)",
        recommended="switched off, and done by hand at the same step on all ranks",
        reason=f"{names}{more}: Python collects garbage there, and all others wait each time",
        evidence=tuple(f"{culprit_name(each)}: {line}" for each in paused for line in each.evidence[:1])[:_MAX_SHOWN],
        gain=Gain("modelled", None, 1.0, 1 / (1 - lost) if lost else None),
        risk="Objects in circles stay until the next collection: host memory grows. Collect every few hundred steps, "
        "and watch the memory of the host.",
        apply="after the first step: gc.collect(); gc.freeze(); gc.disable(); then on every rank, "
        "if step % 500 == 0: gc.collect(). Megatron-LM: --manual-gc --manual-gc-interval 500",
        revert="gc.unfreeze(); gc.enable(), without the calls of gc.collect()",
        source=GARBAGE_COLLECTION_SOURCE,
    )


def _collects(situation: Situation, culprit: Culprit) -> bool:
    least = _HALF * (culprit.recoverable_ratio or 1.0)
    return bool(culprit.ranks) and all(situation.collecting.get(rank, 0.0) >= least for rank in culprit.ranks)


DEBUG_VARIABLES_SOURCE: Final = (
    "PyTorch's documentation: torch.distributed, ProcessGroupNCCL and CUDA environment variables"
)


class _Switch(NamedTuple):
    """`on`: the values, in lower case, with which it costs time."""

    on: tuple[str, ...]
    does: str


_SWITCHES: Final = {
    "TORCH_DISTRIBUTED_DEBUG": _Switch(("detail",), "compares every collective of all ranks before it begins"),
    "CUDA_LAUNCH_BLOCKING": _Switch(("1",), "waits for every kernel before the next one is launched"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _Switch(("1",), "asks the driver for every tensor's memory"),
    "TORCH_NCCL_NAN_CHECK": _Switch(("1", "true", "yes", "on", "y"), "looks at every number that is sent"),
}


def judge_debug_variables(situation: Situation) -> Iterator[Item]:
    """Its gain is known of no job before it was tried: how much there is to check differs. It holds for torch
    2.4 to 2.13."""
    for name, switch in _SWITCHES.items():
        value = situation.torch_variables.get(name, "")
        if value.lower() not in switch.on:
            continue
        yield variable_item(
            name,
            value,
            None,
            target="launcher",
            reason=f"{name}={value} {switch.does}, to find a defect",
            evidence=(f"the ranks have {name}={value}",),
            gain=Gain("rule", None, 1.0, None),
            risk="Whoever looks for a defect with it needs it until that is found: ask.",
            source=DEBUG_VARIABLES_SOURCE,
        )
