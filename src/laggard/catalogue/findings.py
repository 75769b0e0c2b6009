"""All finding codes. Each is one page, docs/findings/CODE.md, which is installed with the package; its head says what
programs know of the code, in lines `name: value`, continued by lines that are indented."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import laggard
from laggard.kit.environment import ENV_RUNBOOKS
from laggard.kit.errors import UsageError
from laggard.kit.words import clipped, visible
from laggard.model import MAX_DEVICE, MAX_SUMMARY, Finding, Fix, Severity

REBOOT, RESET, REPLACE, OPERATOR, USER = ACTIONS = ("REBOOT", "RESET", "REPLACE", "OPERATOR", "USER")
"""Restart the node, reset the device, put in another part, let a person look, or let the user change the job."""

WHOLE, DEVICE, CODE, OWNER = SHOWN = ("whole", "device", "code", "owner")
"""What a user may read of a finding on a node of their job, which others may share: all of it, since it is about
hardware and the machine's settings alone; its device, since its words may have a process or a line of the kernel's log;
its code alone, since its device may be a path, a user or another node; or all of it, where it is about their own job
(`owner` in its evidence)."""

_FOLDER: Final = os.path.join(os.path.dirname(os.path.abspath(laggard.__file__)), "findings")
_FENCE: Final = "---\n"


class FindingType(NamedTuple):
    """A finding code with its usual severity, its meaning in one line, and what ends it, one of ACTIONS, for programs;
    a finding that knows better has its own. `shown`: one of SHOWN; empty: nothing. `draining_probe`: the probe whose
    finding of this code can take a node away, then with a `healthy` situation that looks like the fault, and the means
    that keep the two `apart`: the rule, and its witnesses."""

    code: str
    severity: Severity
    summary: str
    action: str = OPERATOR
    shown: str = ""
    draining_probe: str = ""
    healthy: str = ""
    apart: str = ""

    @property
    def doc(self) -> str:
        """The path of its page in the repository; its address where LAGGARD_RUNBOOKS has that of a copy of it."""
        base = os.environ.get(ENV_RUNBOOKS, "")
        return os.path.join(base if base.startswith(("http://", "https://")) else "", f"docs/findings/{self.code}.md")


@cache
def finding_type(code: str) -> FindingType:
    """Raises UsageError where no page has the code."""
    head, _ = _read(code)
    fields: dict[str, str] = {}
    name = ""
    for line in head.splitlines():
        if line.startswith(" "):
            fields[name] += f" {line.strip()}"
        else:
            name, _, value = line.partition(": ")
            fields[name] = value
    return FindingType(code, severity=Severity(fields.pop("severity")), **fields)


def finding(
    code: str,
    device: str,
    summary: str,
    *,
    evidence: Mapping[str, Any],
    fix: str,
    commands: Sequence[str] = (),
    severity: Severity | None = None,
    action: str = "",
) -> Finding:
    """Makes a finding of the type `code` of the catalogue. `summary` continues a sentence that begins with the device.
    Without `severity` or `action` it has the catalogue's. Device and summary may hold what a user has named:
    they are cut to the length that a collector takes, and have no control characters."""
    found_type = finding_type(code)
    return Finding(
        code=code,
        severity=found_type.severity if severity is None else severity,
        device=clipped(visible(device), MAX_DEVICE),
        summary=clipped(visible(summary), MAX_SUMMARY),
        evidence=dict(evidence),
        fix=Fix(fix, tuple(commands)),
        doc=found_type.doc,
        action=action or found_type.action,
    )


def known_type(code: str) -> FindingType | None:
    """None of a code that this release does not have, as a newer agent's."""
    return finding_type(code) if code in codes() else None


@cache
def codes() -> tuple[str, ...]:
    """All codes in the order of the alphabet."""
    return tuple(sorted(name[:-3] for name in os.listdir(_FOLDER) if name.endswith(".md") and name != "README.md"))


def all_types() -> tuple[FindingType, ...]:
    return tuple(map(finding_type, codes()))


def read_page(code: str) -> str:
    """Returns the page of `code` without its head. Raises UsageError where it is not there."""
    return _read(code)[1]


def _read(code: str) -> tuple[str, str]:
    path = os.path.join(_FOLDER, f"{code}.md")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise UsageError(f"the page of {code} is not installed: {path}: {error.strerror}") from None
    _, head, page = text.split(_FENCE, 2)
    return head, page


def find_type(code: str) -> FindingType:
    """The type of the code that a person has typed. Raises UsageError."""
    import difflib  # slow, and for people alone

    wanted = code.upper().replace("-", "_")
    if wanted in codes():
        return finding_type(wanted)
    similar = difflib.get_close_matches(wanted, codes(), n=1)
    hint = f"did you mean {similar[0]}? " if similar else ""
    raise UsageError(f"no finding has the code {code!r}; {hint}`laggard findings list` lists them all")
