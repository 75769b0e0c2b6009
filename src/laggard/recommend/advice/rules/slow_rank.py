"""A culprit that `laggard locate` names: a synchronous job is as slow as its slowest rank, whatever is tuned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.locate.describe import culprit_name, culprit_text
from laggard.model import Culprit
from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = "docs/location.md: recoverable_ratio is the share of the step that fixing the culprit saves"

_OF_THE_SCRIPT: Final = ("uneven_work", "busy_threads")
"""No machine is at fault: own_program.py has these."""

_HARDWARE: Final = ("GPU_", "NVLINK_", "PCIE_", "RDMA_", "FABRIC_")
_LOSES_WORK: Final = "A job that is ended loses what it did since its last checkpoint."


def judge(situation: Situation) -> Iterator[Item]:
    """Advises on slow ranks, and on those that died or hang whose machine's findings can be the cause: of the others
    nothing is known to be in need of repair."""
    for culprit in situation.culprits:
        if culprit.kind in _OF_THE_SCRIPT or (culprit.kind in ("dead", "hung") and not culprit.findings):
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
            source=SOURCE,
            repairs=True,
        )


def gain_of(culprit: Culprit) -> Gain:
    """The gain is at most what the job waits for the culprit."""
    share = culprit.recoverable_ratio
    if share is None or not 0 < share < 1:
        return Gain("measured")
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


RULE = Rule("slow_rank", judge, SOURCE)
