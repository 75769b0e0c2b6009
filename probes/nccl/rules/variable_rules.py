"""Rules for NCCL's variables: settings that do harm, and settings without effect on this machine. Pure; each harm is
one row.

A setting that turns off a fast path is critical only where the hardware has that path: the same setting is right for a
machine without it. Sources: NCCL's user guide and troubleshooting page; for NCCL_CHUNK_SIZE, NVIDIA/nccl#2408.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from laggard.model import Finding, Severity
from laggard.nccl.variable_table import COMMON_MISTAKES, REPLACEMENTS, TABLE_VERSION, Category, Variable, Version
from laggard.nccl.variables import (
    check_value,
    may_be_shown,
    other_reader,
    parse_level,
    parse_number,
    parse_version,
    variables,
)
from laggard.probes.probe import rules, say
from laggard.probes.rdma.model.nccl_settings import parse_hca_selection

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


class _Setting(msgspec.Struct, frozen=True):
    """A variable with a valid value, the environment that it is set in, and what is known of this machine."""

    name: str
    value: str
    environment: Environment
    context: VariableContext

    @property
    def number(self) -> int:
        return parse_number(self.value)

    @property
    def has_plugin(self) -> bool:
        """A plugin replaces NCCL's own two networks, whose settings then do not count."""
        network = self.environment.get("NCCL_NET", "").lower()
        library = self.environment.get("NCCL_NET_PLUGIN", "none").lower()
        device_plugin = any(name.startswith(_DEVICE_PLUGINS) for name in self.environment)
        return network not in ("", "ib", "socket") or library not in ("", "none") or device_plugin

    @property
    def over_rdma(self) -> bool:
        socket = self.environment.get("NCCL_NET", "").lower() == "socket"
        return not (socket or parse_number(self.environment.get("NCCL_IB_DISABLE", "0")) or self.has_plugin)

    @property
    def selects_no_device(self) -> bool:
        selection, devices = parse_hca_selection(self.value, ""), self.context.devices
        return bool(devices and selection and not selection.chosen(devices))

    @property
    def forces_ll128(self) -> bool:
        """Naming LL128 forces it where NCCL would not use it. The profile of Google's plugin names it."""
        lists = [part.rpartition(":")[2].strip() for part in self.value.lower().split(";")]
        return any("ll128" in names.split(",") for names in lists if not names.startswith("^"))


_ABSENT: Final = {"rdma": "this machine has no RDMA device", "several_gpus": "this machine does not have two GPUs"}
_CASES: Final[tuple[tuple[str, Callable[[_Setting], object]], ...]] = (
    ("CHECK_MODE", lambda it: it.value.upper() != "DEFAULT"),
    ("CHECK_POINTERS", lambda it: it.number),
    ("CHUNK_SIZE large", lambda it: it.number >= _WRONG_RESULTS_BYTES),
    ("CHUNK_SIZE", lambda it: it.number),
    ("DEBUG", lambda it: it.value.upper() == "TRACE"),
    ("GDR_FLUSH_DISABLE", lambda it: it.number),
    ("IB_DISABLE", lambda it: it.number and not it.has_plugin),
    ("IB_HCA", lambda it: it.selects_no_device and not it.has_plugin),
    ("NET", lambda it: it.value.lower() == "socket"),
    ("NET_GDR_LEVEL", lambda it: parse_level(it.value) == "LOC"),
    ("P2P_DISABLE", lambda it: it.number == 1),  # any other number leaves P2P on
    ("P2P_LEVEL", lambda it: parse_level(it.value) == "LOC"),
    ("PROTO", lambda it: it.forces_ll128 and not it.has_plugin),
    ("SHM_DISABLE", lambda it: it.number and it.context.several_gpus is not False),
    ("SHM_DISABLE alone", lambda it: it.number),
)
"""The row of rules/nccl_variables.ini, and when it applies. Of a variable's rows the first that does counts."""


def _find_harm(setting: _Setting) -> tuple[str, Severity] | None:
    """The harm of the setting on this machine, and how bad it is; None: no rule knows of any."""
    of_it = ((case, applies) for case, applies in _CASES if setting.name == f"NCCL_{case.split()[0]}")
    case = next((case for case, applies in of_it if applies(setting)), None)
    row = next((row for row in rules("nccl_variables") if row.pattern == case), None)
    if row is None:
        return None
    text, lost = row.says.format(devices=", ".join(setting.context.devices or ())), row.more.get("lost", "")
    present = getattr(setting.context, lost) if lost else None
    if present is None:
        return text, row.severity or Severity.WARNING
    return (text, Severity.CRITICAL) if present else (f"{text}; {_ABSENT[lost]}", Severity.INFO)


def _reason_inert(setting: _Setting) -> str | None:
    """Why the setting has no effect on this machine; None: it has one, or that is not known."""
    name, context = setting.name, setting.context
    if variables()[name].category is Category.SOCKETS and context.rdma and setting.over_rdma:
        return "is read by sockets only, and this machine's transport is RDMA"
    if name == "NCCL_IB_GID_INDEX" and context.link_layers == {"InfiniBand"}:
        return "is read for RoCE only, and every port here is InfiniBand"
    queue_pairs = parse_number(setting.environment.get("NCCL_IB_QPS_PER_CONNECTION", "1"))
    if name == "NCCL_IB_SPLIT_DATA_ON_QPS" and setting.number and queue_pairs <= 1:
        return "splits messages over queue pairs, and there is one: NCCL_IB_QPS_PER_CONNECTION is not above 1"
    return None


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
    setting = _Setting(name, value, environment, context)
    if harm := _find_harm(setting):
        yield _harmful(name, f"is {value!r}: {harm[0]}", evidence, harm[1])
    if inert := _reason_inert(setting):
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
    evidence = {**_evidence(value, context), "nearest": suggestion}
    severity = Severity.INFO if may_be_newer else None
    return say("nccl", "unknown", name, evidence, severity, version=_dotted(TABLE_VERSION), hint=hint, fix=fix)


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
    return say("nccl", "harmful", name, evidence, severity, told=summary, variable=name)


def _inert(name: str, summary: str, evidence: Mapping[str, object], severity: Severity) -> Finding:
    return say("nccl", "inert", name, evidence, severity, told=summary)


def _evidence(value: str, context: VariableContext) -> dict[str, object]:
    return {"value": value, "nccl_version": _dotted(context.version) or None}


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
