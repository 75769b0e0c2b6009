"""The rules of rules/job.ini: the lines that say why a job failed, the forms in which launchers report ends, and what a
reader is told to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from laggard.diagnose.job.events import Rule, Weight
from laggard.diagnose.kinds import EFFECTS
from laggard.diagnose.rules import table
from laggard.model import Fix

_TABLE: Final = table("job")
RULES: Final = tuple(
    Rule(row.code, row.kind, Weight[row.more["weight"].upper()], row.regex, row.says)
    for row in _TABLE.rows
    if "weight" in row.more
)
"""The rules in order: the first that matches counts."""
ADVICE: Final[Mapping[str, Fix]] = {**EFFECTS, **_TABLE.advice}
BROAD: Final = frozenset(section.kind for section in _TABLE.sections.values() if "broad" in section.more)
"""The kinds whose advice is of the form of the message alone: the kind of failure that its words tell says more."""
EXIT_LINES: Final = tuple(row.regex for row in _TABLE.of("exit"))
"""Forms in which launchers report how a process ended."""
NAN_LOSS: Final = _TABLE.of("metric")[0].regex
"""A metric line whose loss is NaN. Not `nan_count: 0`, nor a validation that did not run yet."""
NCCL_REASON: Final = next(
    Rule(row.code, row.kind, Weight.FAILED, row.regex, row.says) for row in _TABLE.of("nccl_reason")
)
"""A warning of NCCL that no other rule takes: the reason, where the calls that failed by it follow."""
_SETTING: Final = re.compile(r"#|(?:export |\+ )?[A-Z]\w{2,}=")  # of a variable, or a comment


def rule_for(text: str) -> Rule | None:
    """The first rule that takes a line's text; None for other lines, comments and settings."""
    return None if _SETTING.match(text) else next((rule for rule in RULES if rule.pattern.match(text)), None)


def reason_rule(text: str) -> Rule | None:
    """The rule of a reason that torch quotes of NCCL: what NCCL warned of."""
    rule = rule_for(f"NCCL WARN {text}")
    return rule if rule and rule.weight is Weight.FAILED else None
