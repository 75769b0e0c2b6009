"""The gate's own variants of probes: those that a prolog judges otherwise than the agent does, or that the agent does
not run. They run in the agent's rounds under a name of their own, so that the agent knows what a prolog would find."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import structs

from laggard.model import ProbeResult, Report, worst
from laggard.probes.gate_question import gate_probes
from laggard.probes.probe import Probe

WITH_VARIANTS: Final = "variants"
"""The word for a helper that runs the gate's variants, too. An older agent, which knows none, does not give it. Here
the helper gets it without what starts helpers."""

_PREFIX: Final = "gate:"


def stricter_probes(probes: Iterable[Probe]) -> tuple[Probe, ...]:
    """The variants that an agent needs whose own probes are `probes`."""
    own = {probe.name: probe.thresholds for probe in probes}
    return tuple(
        probe._replace(name=_PREFIX + probe.name) for probe in gate_probes() if own.get(probe.name) != probe.thresholds
    )


def variant_names(probes: Iterable[Probe]) -> frozenset[str]:
    """Their names, as the gate has them."""
    return frozenset(probe.name.removeprefix(_PREFIX) for probe in stricter_probes(probes))


def split(report: Report) -> tuple[Report, Report]:
    """What the agent reports, and what the gate's variants found, under the names that the gate has for them."""
    variants = [result for result in report.probes if result.name.startswith(_PREFIX)]
    others = [result for result in report.probes if not result.name.startswith(_PREFIX)]
    facts = report.facts
    return (
        _part(report, others, {name: value for name, value in facts.items() if not name.startswith(_PREFIX)}),
        _part(
            report,
            [structs.replace(result, name=result.name.removeprefix(_PREFIX)) for result in variants],
            {name.removeprefix(_PREFIX): value for name, value in facts.items() if name.startswith(_PREFIX)},
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
