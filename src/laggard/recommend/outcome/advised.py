"""The advice for a run, as pieces whose outcome can be judged later: a recommendation's items, the verdict's
culprits, and the findings of its nodes, each once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from laggard.locate.describe import culprit_text
from laggard.model import Culprit
from laggard.recommend.advice.rules import own_program, slow_rank
from laggard.recommend.advice.rules.slow_rank import gain_of
from laggard.recommend.advice.values import Gain, Item
from laggard.recommend.outcome.done import VARIABLE
from laggard.recommend.outcome.values import CULPRIT, FINDING, MAX_ADVICE, MAX_TEXT, Advised
from laggard.text.words import printable_line

_OF_CULPRITS: Final = (slow_rank.SOURCE, own_program.SOURCE)
"""The sources of items that say of a culprit what the culprit itself says."""

_NAMED_TARGETS: Final = ("nccl_env", "nccl_tuner", "deepspeed")
"""The targets whose keys are names of settings, so that each is a kind of its own."""


def advised_of(
    items: Sequence[Item],
    culprits: Sequence[Culprit],
    findings: Sequence[tuple[str, str]],
    at: float | None = None,
    incident_of: Callable[[Culprit], int | None] = lambda _: None,
) -> tuple[Advised, ...]:
    """`findings`: code and node, of the job's nodes. `at`: Unix seconds. `incident_of`: the incident of a culprit."""
    nodes: dict[str, list[str]] = {}
    for code, node in findings:
        nodes.setdefault(code, []).append(node)
    found = [
        *(_of_culprit(it, incident_of(it), at) for it in culprits),
        *_of_items(items, nodes, at),
        *_of_findings(nodes, at),
    ]
    once: dict[object, Advised] = {}
    for it in found:
        once.setdefault(it.name, it)
    return tuple(once.values())[:MAX_ADVICE]


def _of_culprit(culprit: Culprit, incident: int | None, at: float | None) -> Advised:
    return Advised(
        kind=f"{CULPRIT} {culprit.kind}",
        target=CULPRIT,
        key=culprit.kind,
        recommended=_line(culprit.advice),
        reason=_line(culprit_text(culprit)),
        nodes=tuple(map(_line, culprit.machines)),
        codes=tuple(map(_line, culprit.findings)),
        incident=incident,
        promised=gain_of(culprit),
        advised_at=at,
    )


def _of_items(items: Iterable[Item], nodes: Mapping[str, Sequence[str]], at: float | None) -> Iterator[Advised]:
    for item in items:
        if item.source in _OF_CULPRITS:
            continue
        code = item.evidence[0] if item.repairs and item.evidence and item.target != "nccl_env" else ""
        if code in nodes:
            yield _of_finding(code, nodes[code], item.reason, item.apply, item.gain, at)
            continue
        key = _line(item.key)
        yield Advised(
            kind=f"{_line(item.target)} {key}" if _is_named(item) else _line(item.target),
            target=_line(item.target),
            key=key,
            current=_value(item.current),
            recommended=_value(item.recommended),
            reason=_line(item.reason),
            promised=item.gain,
            advised_at=at,
        )


def _is_named(item: Item) -> bool:
    return item.target in _NAMED_TARGETS or VARIABLE.fullmatch(item.key) is not None


def _of_findings(nodes: Mapping[str, Sequence[str]], at: float | None) -> Iterator[Advised]:
    for code, places in nodes.items():
        yield _of_finding(code, places, "", "", Gain("rule"), at)


def _of_finding(code: str, nodes: Sequence[str], reason: str, repair: str, gain: Gain, at: float | None) -> Advised:
    return Advised(
        kind=f"{FINDING} {_line(code)}",
        target=FINDING,
        key=_line(code),
        recommended=_line(repair),
        reason=_line(reason),
        nodes=tuple(map(_line, sorted(set(nodes))[:64])),
        codes=(_line(code),),
        promised=gain,
        advised_at=at,
    )


def _value(value: Any) -> str:
    """A setting's value as text; of an object that names a device, such as an offload's, the device."""
    if value is None:
        return ""
    if isinstance(value, dict):
        value = value.get("device", value)
    return _line(str(value).lower() if isinstance(value, bool) else str(value))


def _line(text: str) -> str:
    return printable_line(text, MAX_TEXT)
