"""NCCL_ENV_UNKNOWN, NCCL_ENV_HARMFUL and NCCL_ENV_INERT: faults in the NCCL variables of one process. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from laggard.model import Finding, Severity
from laggard.nccl.values import check_value
from laggard.nccl.variable_table import COMMON_MISTAKES, REPLACEMENTS, TABLE_VERSION, Variable, Version
from laggard.nccl.variables import may_be_shown, other_reader, parse_version, variables
from laggard.probes.nccl.rules.variable_rules import VariableContext, find_harm, reason_inert
from laggard.probes.probe import finding

_OBSOLETE: Version = (2, 10)  # no torch that is in use brings an older NCCL


def judge_environment(environment: Mapping[str, str], context: VariableContext) -> tuple[Finding, ...]:
    """Returns the findings of one environment, in the order of the names. Names must begin with NCCL_ to count. Of a
    variable whose value may be a secret the name alone is judged."""
    own = {name: value if may_be_shown(name) else "" for name, value in environment.items() if name.startswith("NCCL_")}
    return tuple(found for name in sorted(own) for found in _judge(name, own[name], own, context))


def _judge(name: str, value: str, environment: Mapping[str, str], context: VariableContext) -> Iterator[Finding]:
    variable = variables().get(name)
    if variable is None:
        if other_reader(name) is None:
            yield _unknown(name, value, context)
        return
    evidence = _evidence(value, context)
    reason = _not_read(variable, context.version)
    if reason:
        yield _inert(name, reason, evidence, Severity.INFO)
        return
    if not value:  # an empty value is none to NCCL
        return
    problem = check_value(variable, value, context.version)
    if problem:
        yield (
            _inert(name, f"is {value!r} and has no effect: {problem.text}", evidence, Severity.WARNING)
            if problem.ignored
            else _harmful(name, f"is {value!r}: {problem.text}", evidence, Severity.WARNING)
        )
        return
    harm = find_harm(name, value, environment, context)
    if harm:
        yield _harmful(name, f"is {value!r}: {harm.text}", evidence, harm.severity)
    inert = reason_inert(name, value, environment, context)
    if inert:
        yield _inert(name, inert, evidence, Severity.INFO)


def _not_read(variable: Variable, version: Version) -> str | None:
    since, removed = parse_version(variable.since), parse_version(variable.removed)
    if removed and (version >= removed if version else removed <= _OBSOLETE):
        replacement = REPLACEMENTS.get(variable.name)
        return f"is not read since NCCL {variable.removed}" + (f": use {replacement}" if replacement else "")
    if version and since and version < since:
        return f"is read since NCCL {variable.since} only; this is {_dotted(version)}"
    return None


def _unknown(name: str, value: str, context: VariableContext) -> Finding:
    suggestion = COMMON_MISTAKES.get(name) or closest_name(name, variables())
    may_be_newer = not suggestion and not () < context.version <= TABLE_VERSION
    hint, fix = "", "Remove it, or correct the name."
    if suggestion:
        hint, fix = f"; did you mean {suggestion}?", f"Set {suggestion} instead, or remove it."
    elif may_be_newer:
        fix = "A newer NCCL may know it: look it up in the user guide of the NCCL that runs."
    return finding(
        "NCCL_ENV_UNKNOWN",
        name,
        f"is no variable of NCCL up to {_dotted(TABLE_VERSION)} or of a plugin that is known{hint}",
        evidence={**_evidence(value, context), "nearest": suggestion},
        fix=fix,
        severity=Severity.INFO if may_be_newer else None,
    )


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that was probably meant: the most similar one, underscores apart, that differs by letters.
    A name that has a word more, less or another one is none: NCCL's newer variables are named so."""
    import difflib  # imported only where there is a typo

    typed = name.strip().upper()
    by_letters = {word.replace("_", ""): word for word in known}
    near = difflib.get_close_matches(typed.replace("_", ""), by_letters, cutoff=0.85)
    return next((by_letters[letters] for letters in near if _differ_by_letters(typed, by_letters[letters])), None)


def _differ_by_letters(typed: str, known: str) -> bool:
    import difflib

    ours, theirs = typed.split("_"), known.split("_")
    changes = difflib.SequenceMatcher(None, ours, theirs).get_opcodes()
    changed = [("".join(ours[a:b]), "".join(theirs[c:d])) for kind, a, b, c, d in changes if kind != "equal"]
    return all(difflib.get_close_matches(words, [others]) for words, others in changed)


def _harmful(name: str, summary: str, evidence: Mapping[str, object], severity: Severity) -> Finding:
    fix = "Remove it from the job's environment and from nccl.conf; NCCL's default is better."
    return finding(
        "NCCL_ENV_HARMFUL", name, summary, evidence=evidence, fix=fix, commands=(f"unset {name}",), severity=severity
    )


def _inert(name: str, summary: str, evidence: Mapping[str, object], severity: Severity) -> Finding:
    fix = "Remove it, or correct it if its effect is wanted."
    return finding("NCCL_ENV_INERT", name, summary, evidence=evidence, fix=fix, severity=severity)


def _evidence(value: str, context: VariableContext) -> dict[str, object]:
    return {"value": value, "nccl_version": _dotted(context.version) or None}


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
