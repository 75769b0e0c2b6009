"""NCCL_ENV_UNKNOWN, NCCL_ENV_HARMFUL, NCCL_ENV_INERT: what is wrong with one process's NCCL variables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from laggard.model import Finding, Severity
from laggard.nccl.values import check_value
from laggard.nccl.variable_table import COMMON_MISTAKES, REPLACEMENTS, TABLE_VERSION, Variable, Version
from laggard.nccl.variables import other_reader, parse_version, variables
from laggard.probes.nccl.rules.variable_rules import NcclFacts, harm, inert
from laggard.probes.probe import finding

_LONG_GONE: Version = (2, 10)  # no torch that is in use brings an older NCCL


def judge_environment(environment: Mapping[str, str], facts: NcclFacts) -> tuple[Finding, ...]:
    """The findings of one environment, by variable. Names that do not begin with NCCL_ are passed over."""
    own = {name: value for name, value in environment.items() if name.startswith("NCCL_")}
    return tuple(found for name in sorted(own) for found in _judge(name, own[name], own, facts))


def _judge(name: str, value: str, environment: Mapping[str, str], facts: NcclFacts) -> Iterator[Finding]:
    variable = variables().get(name)
    if variable is None:
        if other_reader(name) is None:
            yield _unknown(name, value, facts)
        return
    evidence = _evidence(value, facts)
    reason = _not_read(variable, facts.version)
    if reason:
        yield _inert(name, reason, evidence, Severity.INFO)
        return
    if not value:  # NCCL takes an empty value for none
        return
    wrong = check_value(variable, value, facts.version)
    if wrong:
        yield (
            _inert(name, f"is {value!r} and has no effect: {wrong.text}", evidence, Severity.WARNING)
            if wrong.ignored
            else _harmful(name, f"is {value!r}: {wrong.text}", evidence, Severity.WARNING)
        )
        return
    hurt = harm(name, value, environment, facts)
    if hurt:
        yield _harmful(name, f"is {value!r}: {hurt.text}", evidence, hurt.severity)
    idle = inert(name, value, environment, facts)
    if idle:
        yield _inert(name, idle, evidence, Severity.INFO)


def _not_read(variable: Variable, version: Version) -> str | None:
    since, removed = parse_version(variable.since), parse_version(variable.removed)
    if removed and (version >= removed if version else removed <= _LONG_GONE):
        instead = REPLACEMENTS.get(variable.name)
        return f"is not read since NCCL {variable.removed}" + (f": use {instead}" if instead else "")
    if version and since and version < since:
        return f"is read since NCCL {variable.since} only; this is {_dotted(version)}"
    return None


def _unknown(name: str, value: str, facts: NcclFacts) -> Finding:
    near = COMMON_MISTAKES.get(name) or nearest(name, variables())
    newer = facts.version > TABLE_VERSION and not near
    hint = f"; did you mean {near}?" if near else ""
    return finding(
        "NCCL_ENV_UNKNOWN",
        name,
        f"is no variable of NCCL up to {_dotted(TABLE_VERSION)} or of a plugin that is known{hint}",
        evidence={**_evidence(value, facts), "nearest": near},
        fix=f"Set {near} instead, or remove it." if near else "Remove it, or correct the name.",
        severity=Severity.INFO if newer else None,
    )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, if any is much like it. Underscores count for little."""
    import difflib  # only a machine with a typo pays for it

    plain = {word.replace("_", ""): word for word in known}
    found = difflib.get_close_matches(name.strip().upper().replace("_", ""), plain, n=1, cutoff=0.85)
    return plain[found[0]] if found else None


def _harmful(name: str, summary: str, evidence: Mapping[str, object], severity: Severity) -> Finding:
    fix = "Remove it from the job's environment and from nccl.conf; NCCL's default is better."
    return finding(
        "NCCL_ENV_HARMFUL", name, summary, evidence=evidence, fix=fix, commands=(f"unset {name}",), severity=severity
    )


def _inert(name: str, summary: str, evidence: Mapping[str, object], severity: Severity) -> Finding:
    fix = "Remove it, or correct it if its effect is wanted."
    return finding("NCCL_ENV_INERT", name, summary, evidence=evidence, fix=fix, severity=severity)


def _evidence(value: str, facts: NcclFacts) -> dict[str, object]:
    return {"value": value, "nccl_version": _dotted(facts.version) or None}


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
