"""The rules of laggard.locate that can be switched off, in the order in which a verdict asks them: rules.jsonl.

`of` is the part of the verdict, `where` names a function; `off` is what it then returns, or what stands in place of
`part`. A rule that is the measure itself stands in core.json, with the reason why it has no neutral answer.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ablation.switch import Rule

_HERE: Final = Path(__file__).parent
_ROWS: Final = [json.loads(line) for line in (_HERE / "rules.jsonl").read_text(encoding="utf-8").splitlines()]


def _rule(row: Mapping[str, str]) -> Rule:
    return Rule(row["name"], row["where"], row["off"], row.get("part", ""))


READING: Final = tuple(_rule(row) for row in _ROWS if row["of"] == "reading")
"""These act while a recording is read: it is read anew without them."""

RULES: Final = tuple(map(_rule, _ROWS))

CORE: Final[Mapping[str, str]] = json.loads((_HERE / "core.json").read_text(encoding="utf-8"))
"""The functions that a verdict calls and that are no rule, each with the reason."""
