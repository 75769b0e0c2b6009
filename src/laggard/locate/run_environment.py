"""What surrounds a run, as its ranks tell it: one value by name for the whole job. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from laggard.kit.words import printable_line
from laggard.rankfile.fact_names import DEEPSPEED, ENVIRONMENT
from laggard.wire.digest import MAX_ENVIRONMENT, MAX_TEXT

_MAX_VALUES: Final = 4  # of one name, told by different ranks


def merged_environment(facts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The facts ENVIRONMENT and DEEPSPEED of all ranks; where ranks differ, their values side by side. Ranks may tell
    anything: what is no text or number is left out, and so is what is beyond the bounds of a digest."""
    values: dict[str, dict[str, None]] = {}
    for of_rank in facts:
        for fact, prefix in ((ENVIRONMENT, ""), (DEEPSPEED, "deepspeed ")):
            told = of_rank.get(fact)
            for name, value in told.items() if isinstance(told, dict) else ():
                known = values.get(name := printable_line(f"{prefix}{name}", MAX_TEXT))
                if known is None and len(values) < MAX_ENVIRONMENT:
                    known = values[name] = {}
                if known is not None and len(known) < _MAX_VALUES and isinstance(value, (str, int, float)):
                    known[printable_line(str(value), MAX_TEXT)] = None
    return {name: " | ".join(sorted(each))[: 2 * MAX_TEXT] for name, each in sorted(values.items()) if each}
