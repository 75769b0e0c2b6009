"""The rules for kernels' logs: those of rules/kernel.ini, amdgpu's and those that probes ask too."""

from __future__ import annotations

import re
from typing import Final

from laggard.diagnose.rules import Row, table
from laggard.kernel_rules.rule import Rule, rule_of, rules, rules_of
from laggard.probes.gpu.model.amdgpu_log import AmdgpuMessage, amdgpu_messages

_TABLE: Final = table("kernel")
_GROUPED: Final = re.compile(r"\\[(\[\])|]|\[[^\]]*\]|\((?:[^()\\]|\\.)*\)[*+?]?")
_NO_LITERAL: Final = re.compile(r"\\[AbBdDsSwW]|\.[*+?]?(?:\{[\d,]+\})?\??|.[*?]|.\{[\d,]+\}\??|[$^]")


def word_of(pattern: str) -> str:
    """The longest text that each match of a pattern holds outside of its groups; empty: there is none."""
    rest, before = pattern, ""
    while rest != before:
        before, rest = rest, _GROUPED.sub("\n", rest)
    if "|" in rest:
        return ""
    words = _NO_LITERAL.sub("\n", rest).replace("\\", "").split("\n")
    return max(words, key=len)


def _rule(row: Row) -> Rule:
    return rule_of(row._replace(device=row.device or "GPU {device}"), word_of(row.pattern))


def _amd_rule(message: AmdgpuMessage) -> Rule:
    rule = _rule(_TABLE.sections[f"amdgpu_{message.kind.name}"]._replace(pattern=message.pattern))
    named = rule.named if "(?P<device>" in message.pattern else "an AMD GPU"
    return rule._replace(word=message.word, named=named)


RULES: Final = (
    *(rule for name, rule in rules("host").items() if name not in ("uncorrected", "out_of_memory", "hot")),
    *(*rules_of("devices", "pcie"), *rules_of("devices", "nic"), *rules("disks").values()),
    *map(_amd_rule, amdgpu_messages()),
    *(_rule(row) for row in _TABLE.rows if row.code),
)
"""All rules; of several that take one record the first counts."""
SUSPICIOUS, FAILING, BENIGN = (_TABLE.of(name)[0].regex for name in ("suspicious", "failing", "benign"))
STORM: Final = _TABLE.sections["corrected_storm"]
