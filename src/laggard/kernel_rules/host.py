"""The rules for the kernel itself, the processors and the host's memory: host.ini."""

from __future__ import annotations

from typing import Final

from laggard.kernel_rules.rule import Rule, read_rules

_RULES: Final = read_rules("host")
UNCORRECTED: Final = _RULES["uncorrected"]
HOST_RULES: Final = tuple(_RULES[name] for name in _RULES if name not in ("uncorrected", "out_of_memory", "hot"))

LIVE_RULES: Final[tuple[Rule, ...]] = tuple(rule for rule in _RULES.values() if rule.witness)
"""The rules that probes judge the live log by."""
