"""A recommendation from what is known: repairs first, then what is to be tuned, the largest gain first. A sick fabric
is not tuned, and neither is a job that died or hangs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import structs

from laggard.locate.describe import culprit_text
from laggard.model import Culprit, Severity
from laggard.recommend.advice.files import recommended_files
from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item, Recommendation
from laggard.text.words import capital, printable_line

_FABRIC: Final = ("RDMA_", "NVLINK_", "FABRIC_", "RING_", "PCIE_", "NCCL_WQE", "OFI_")
_FABRIC_CODES: Final = frozenset(
    [
        "TCP_FALLBACK",
        "GPUDIRECT_OFF",
        "ACS_ENABLED",
        "IOMMU_ENABLED",
        "PFC_OFF",
        "ECN_OFF",
        "NIC_MIXED",
        "PEERMEM_MISSING",
        "SHM_INSTEAD_OF_P2P",
        "P2P_DISABLED",
        "MEMLOCK_LIMIT",
        "NCCL_VERSION_MIXED",
        "NCCL_DIAGNOSTICS",
    ]
)


def decide(situation: Situation, rules: Sequence[Rule]) -> Recommendation:
    blocked = _blocking_codes(situation)
    stands = [each for each in situation.culprits if each.kind in ("dead", "hung")]
    found = list(_distinct(item for rule in rules for item in rule.judge(situation)))
    items = [item for item in found if item.repairs or not (blocked or stands)]
    if stands:  # what a job that stands still would gain in speed is no reason to change anything
        items = [structs.replace(item, gain=Gain(item.gain.basis)) for item in items]
    items.sort(key=_order)
    held_back = _held_back(blocked, len(found) - len(items)) if blocked else _not_tuned(stands)
    notes = [*situation.deepspeed_problems, *held_back, *_not_known(situation)]
    return Recommendation(blocked, tuple(items), recommended_files(items, situation), tuple(notes))


def _blocking_codes(situation: Situation) -> tuple[str, ...]:
    """Returns the codes of critical findings of the fabric, each once."""
    return tuple(
        dict.fromkeys(
            found.code
            for found in situation.findings
            if found.severity is Severity.CRITICAL and (found.code in _FABRIC_CODES or found.code.startswith(_FABRIC))
        )
    )


def _order(item: Item) -> tuple[bool, float, float, float]:
    """Repairs come first; then what is expected to gain most; of unknown gains those that can lose least, then
    those that may gain most."""
    gain = item.gain
    return not item.repairs, -(gain.ratio or 1.0), -(gain.low or 0.0), -(gain.high or 1.0)


def _distinct(items: Iterable[Item]) -> Iterator[Item]:
    """Yields one item for each setting, by the first rule that has it: nodes that lack the same are one change."""
    seen: dict[tuple[str, str, str], Item] = {}
    for item in items:
        by_hand = item.repairs and item.target != "nccl_env"
        seen.setdefault((item.target, item.key, item.reason if by_hand else ""), item)
    yield from seen.values()


def _held_back(blocked: tuple[str, ...], count: int) -> Iterator[str]:
    if blocked:
        more = f" ({count} held back)" if count else ""
        yield f"Nothing is tuned until the fabric is well: {', '.join(blocked)}{more}."


def _not_tuned(stands: Sequence[Culprit]) -> Iterator[str]:
    """The reason why a job that died or hangs gets no advice about its speed."""
    if stands:
        first = stands[0]
        text = printable_line(f"{culprit_text(first)}: {first.advice}" if first.advice else culprit_text(first))
        yield f"{capital(text)}. Nothing is tuned in a job that stands still: see why first."


def _not_known(situation: Situation) -> Iterator[str]:
    if situation.deepspeed is None:
        yield "No DeepSpeed configuration was given: nothing is said of ZeRO, buckets and accumulation."
    elif situation.profile is None:
        yield "No recording was given: gains of DeepSpeed's settings are not modelled, and are to be measured."
    if not situation.environment_known:
        yield "The job's environment was not given: nothing is said of NCCL's variables."
