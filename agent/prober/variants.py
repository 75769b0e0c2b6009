"""The gate's variants of probes in the agent's rounds: what of a report is the agent's, and what a prolog is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from laggard.model import ProbeResult, Report, worst

PREFIX: Final = "gate:"


class KnownProbes(NamedTuple):
    """`fingerprint`: of what a prolog asks about this node. `gate`: the probes that it asks for; `variants`: those of
    them that it judges otherwise than the agent, or that the agent does not run."""

    fingerprint: str
    gate: frozenset[str]
    variants: frozenset[str]


class Refused(msgspec.Struct, frozen=True):
    """Why the agent's profile cannot be used."""

    message: str


def split(report: Report) -> tuple[Report, Report]:
    """What the agent reports, and what the gate's variants found, under the names that the gate has for them."""
    variants = [result for result in report.probes if result.name.startswith(PREFIX)]
    others = [result for result in report.probes if not result.name.startswith(PREFIX)]
    facts = report.facts
    return (
        _part(report, others, {name: value for name, value in facts.items() if not name.startswith(PREFIX)}),
        _part(
            report,
            [structs.replace(result, name=result.name.removeprefix(PREFIX)) for result in variants],
            {name.removeprefix(PREFIX): value for name, value in facts.items() if name.startswith(PREFIX)},
        ),
    )


def _part(report: Report, results: Sequence[ProbeResult], facts: dict[str, Any]) -> Report:
    """The report of `results` alone."""
    kept = sorted(place for result in results for place in result.findings)
    moved = {place: number for number, place in enumerate(kept)}
    return structs.replace(
        report,
        verdict=worst(result.verdict for result in results),
        probes=tuple(
            structs.replace(result, findings=tuple(moved[place] for place in result.findings)) for result in results
        ),
        findings=tuple(report.findings[place] for place in kept),
        facts=facts,
    )
