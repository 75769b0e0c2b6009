"""Rules for NCCL's variables: settings that do harm, and settings without effect on this machine. Pure; one function is
one rule.

A setting that turns off a fast path is critical only where the hardware has that path: the same setting is right for a
machine without it. Sources: NCCL's user guide and troubleshooting page; for NCCL_CHUNK_SIZE, NVIDIA/nccl#2408.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from laggard.model import Finding, Severity
from laggard.nccl.values import check_value, parse_level, parse_number
from laggard.nccl.variable_table import COMMON_MISTAKES, REPLACEMENTS, TABLE_VERSION, Category, Variable, Version
from laggard.nccl.variables import may_be_shown, other_reader, parse_version, variables
from laggard.probes.probe import finding

Environment = Mapping[str, str]

_WRONG_RESULTS_BYTES: Final = 1 << 20
_DEVICE_PLUGINS: Final = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_")


class VariableContext(NamedTuple):
    """The facts that the rules depend on besides the variables: NCCL's version and this machine's hardware. None and
    (): not known, and then nothing is assumed."""

    version: Version = ()
    rdma: bool | None = None
    """This machine has an RDMA device that is not a software device."""
    devices: tuple[str, ...] | None = None
    """Names of all RDMA devices."""
    link_layers: frozenset[str] = frozenset()
    """Link layers of the RDMA ports: InfiniBand, Ethernet."""
    several_gpus: bool | None = None
    """This machine has two GPUs or more."""


class Harm(NamedTuple):
    text: str
    severity: Severity


def find_harm(name: str, value: str, environment: Environment, context: VariableContext) -> Harm | None:
    """Returns the harm of a setting whose value is valid; None: no rule knows of any."""
    rule = _HARMS.get(name)
    return rule(value, environment, context) if rule else None


def reason_inert(name: str, value: str, environment: Environment, context: VariableContext) -> str | None:
    """Returns why the setting has no effect on this machine; None: it has one, or that is not known."""
    if variables()[name].category is Category.SOCKETS and context.rdma and _over_rdma(environment):
        return "is read by sockets only, and this machine's transport is RDMA"
    if name == "NCCL_IB_GID_INDEX" and context.link_layers == {"InfiniBand"}:
        return "is read for RoCE only, and every port here is InfiniBand"
    if name == "NCCL_IB_SPLIT_DATA_ON_QPS" and parse_number(value) and parse_number(_queue_pairs(environment)) <= 1:
        return "splits messages over queue pairs, and there is one: NCCL_IB_QPS_PER_CONNECTION is not above 1"
    return None


def _queue_pairs(environment: Environment) -> str:
    return environment.get("NCCL_IB_QPS_PER_CONNECTION", "1")


def _over_rdma(environment: Environment) -> bool:
    socket = environment.get("NCCL_NET", "").lower() == "socket"
    return not (socket or parse_number(environment.get("NCCL_IB_DISABLE", "0")) or _has_plugin(environment))


def _has_plugin(environment: Environment) -> bool:
    """Returns whether a plugin replaces NCCL's own two networks, whose settings then do not count."""
    network = environment.get("NCCL_NET", "").lower()
    library = environment.get("NCCL_NET_PLUGIN", "none").lower()
    return (
        network not in ("", "ib", "socket")
        or library not in ("", "none")
        or any(name.startswith(_DEVICE_PLUGINS) for name in environment)
    )


def _by_hardware(present: bool | None, text: str, absent: str) -> Harm:
    """Returns a critical harm where the hardware is present, a note where it is not, else a warning."""
    if present is None:
        return Harm(text, Severity.WARNING)
    return Harm(text, Severity.CRITICAL) if present else Harm(f"{text}; {absent}", Severity.INFO)


def _rdma_lost(text: str, context: VariableContext) -> Harm:
    return _by_hardware(context.rdma, text, "this machine has no RDMA device")


def _p2p_lost(text: str, context: VariableContext) -> Harm:
    return _by_hardware(context.several_gpus, text, "this machine does not have two GPUs")


def _ib_disable(value: str, environment: Environment, context: VariableContext) -> Harm | None:
    if not parse_number(value) or _has_plugin(environment):
        return None
    return _rdma_lost("RDMA is off and every transfer between nodes goes over TCP", context)


def _net(value: str, environment: Environment, context: VariableContext) -> Harm | None:
    if value.lower() != "socket":
        return None
    return _rdma_lost("every transfer between nodes goes over TCP", context)


def _hca(value: str, environment: Environment, context: VariableContext) -> Harm | None:
    if not context.devices or selected_devices(value, context.devices) or _has_plugin(environment):
        return None
    named = ", ".join(context.devices)
    return _rdma_lost(f"selects none of this machine's devices ({named}): every transfer goes over TCP", context)


def _gdr_level(value: str, environment: Environment, context: VariableContext) -> Harm | None:
    if parse_level(value) != "LOC":
        return None
    return _rdma_lost("GPUDirect RDMA is off and all data goes through host memory", context)


def _p2p_disable(value: str, environment: Environment, context: VariableContext) -> Harm | None:
    if parse_number(value) != 1:  # any other number leaves P2P on
        return None
    return _p2p_lost("direct copies between GPUs are off, NVLink too", context)


def _p2p_level(value: str, environment: Environment, context: VariableContext) -> Harm | None:
    if parse_level(value) != "LOC":
        return None
    return _p2p_lost("direct copies between GPUs are off, NVLink too", context)


def _shm_disable(value: str, environment: Environment, context: VariableContext) -> Harm | None:
    if not parse_number(value):
        return None
    severity = Severity.INFO if context.several_gpus is False else Severity.WARNING
    return Harm("ranks of a node that cannot use P2P talk over the network", severity)


def _debug(value: str, environment: Environment, context: VariableContext) -> Harm | None:
    return Harm("every call is logged", Severity.WARNING) if value.upper() == "TRACE" else None


def _check_pointers(value: str, environment: Environment, context: VariableContext) -> Harm | None:
    return Harm("every call's pointers are checked", Severity.WARNING) if parse_number(value) else None


def _check_mode(value: str, environment: Environment, context: VariableContext) -> Harm | None:
    return Harm("every call's arguments are checked", Severity.WARNING) if value.upper() != "DEFAULT" else None


def _chunk_size(value: str, environment: Environment, context: VariableContext) -> Harm | None:
    if parse_number(value) >= _WRONG_RESULTS_BYTES:
        return Harm("chunks of 1 MiB and more gave wrong results without an error", Severity.CRITICAL)
    return (
        Harm("undocumented, and its larger values gave wrong results", Severity.WARNING)
        if parse_number(value)
        else None
    )


def _flush(value: str, environment: Environment, context: VariableContext) -> Harm | None:
    return Harm("a GPU may read data before it has arrived", Severity.WARNING) if parse_number(value) else None


def _proto(value: str, environment: Environment, context: VariableContext) -> Harm | None:
    """Finds LL128: naming it forces it where NCCL would not use it. The profile of Google's plugin names it."""
    lists = [part.rpartition(":")[2].strip() for part in value.lower().split(";")]
    forced = any("ll128" in names.split(",") for names in lists if not names.startswith("^"))
    if not forced or _has_plugin(environment):
        return None
    return Harm("LL128 is forced; on platforms that do not support it data is corrupted", Severity.WARNING)


def selected_devices(value: str, devices: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the RDMA devices that a value of NCCL_IB_HCA selects: it lists prefixes or, after `=`, whole names, each
    with or without `:port`; `^` selects all others."""
    inverted = value.startswith("^")
    rest = value.removeprefix("^")
    exact = rest.startswith("=")
    names = [word.split(":")[0].strip() for word in rest.removeprefix("=").split(",")]
    wanted = [name for name in names if name]
    if not wanted:
        return devices
    hits = {device for device in devices for name in wanted if (device == name if exact else device.startswith(name))}
    return tuple(device for device in devices if (device in hits) is not inverted)


_HARMS: Final[Mapping[str, Callable[[str, Environment, VariableContext], Harm | None]]] = {
    "NCCL_CHECK_MODE": _check_mode,
    "NCCL_CHECK_POINTERS": _check_pointers,
    "NCCL_CHUNK_SIZE": _chunk_size,
    "NCCL_DEBUG": _debug,
    "NCCL_GDR_FLUSH_DISABLE": _flush,
    "NCCL_IB_DISABLE": _ib_disable,
    "NCCL_IB_HCA": _hca,
    "NCCL_NET": _net,
    "NCCL_NET_GDR_LEVEL": _gdr_level,
    "NCCL_P2P_DISABLE": _p2p_disable,
    "NCCL_P2P_LEVEL": _p2p_level,
    "NCCL_PROTO": _proto,
    "NCCL_SHM_DISABLE": _shm_disable,
}


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
