"""The interface of a recommendation's rule: one file of the folder `rules`, which ends with its RULE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from laggard.model import Finding
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item


class Rule(NamedTuple):
    name: str
    judge: Callable[[Situation], Iterator[Item]]
    source: str
    versions: str = ""
    """The versions of the software that it holds for; empty: all."""


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


def for_each_finding(
    codes: Mapping[str, tuple[str, str]], gain: Gain, source: str
) -> Callable[[Situation], Iterator[Item]]:
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
