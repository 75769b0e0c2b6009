"""NCCL's variables that do harm, do nothing, or that nothing reads: remove them. A name that a newer NCCL may read is
left alone. A GID index is for old NCCLs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Severity
from laggard.recommend.advice.rule import Rule, variable
from laggard.recommend.advice.rules import tcp_fallback
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = "NCCL's user guide, environment variables; NCCL's source by release"
_CODES: Final = ("NCCL_ENV_HARMFUL", "NCCL_ENV_UNKNOWN", "NCCL_ENV_INERT")
_GID_FINDS_ITSELF: Final = (2, 21)


def judge(situation: Situation) -> Iterator[Item]:
    seen = set()
    for found in situation.findings:
        name = found.device
        may_be_newer = found.code == "NCCL_ENV_UNKNOWN" and found.severity is Severity.INFO
        if found.code in _CODES and not may_be_newer and name in situation.environment and name not in seen:
            seen.add(name)
            harmful = found.code == "NCCL_ENV_HARMFUL"
            gain = _gain(name, situation.environment[name]) if harmful else Gain("rule", 1.0, 1.0, 1.0)
            yield _removal(situation, name, f"{name} {found.summary}", (found.code,), gain, harmful)
    name = "NCCL_IB_GID_INDEX"
    if name in situation.environment and name not in seen and situation.nccl_version >= _GID_FINDS_ITSELF:
        reason = f"{name} is pinned: since NCCL 2.21 the right GID is found on each node, and a pinned one may be wrong"
        yield _removal(situation, name, reason, (), Gain("rule", 1.0, 1.0, None))


def _gain(name: str, value: str) -> Gain:
    return tcp_fallback.gain_without(name, value) or Gain("rule")


def _removal(
    situation: Situation, name: str, reason: str, evidence: tuple[str, ...], gain: Gain, harmful: bool = False
) -> Item:
    current = situation.environment[name] or None  # what may be a secret is not known here
    apply, revert = variable(name, current, None)
    return Item(
        target="nccl_env",
        key=name,
        current=current,
        recommended=None,
        reason=reason,
        evidence=evidence,
        gain=gain,
        risk="Somebody may have set it for a reason that is not in the file: ask.",
        apply=apply,
        revert=revert,
        commands=(apply,),
        source=SOURCE,
        repairs=harmful,
    )


RULE = Rule("variables", judge, SOURCE, "the table of NCCL 2.3 to 2.32")
