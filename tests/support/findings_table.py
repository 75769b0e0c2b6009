"""Writes docs/findings/README.md anew: `cd tests && python -m support.findings_table`."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from laggard.catalogue.findings import FINDINGS, FindingKind
from support.coverage import ELSEWHERE, firing, near, raisers
from support.materialise import materialise
from support.nccl_logs import logs_firing, logs_near
from support.paths import REPOSITORY

README = REPOSITORY / "docs" / "findings" / "README.md"

_HEAD = """# Findings

Every code, made by `python -m support.findings_table` in `tests/` from the catalogue and from what the probes say of
the recorded machines in `tests/data/machines` (and of the logs in `tests/data/nccl_logs`). *Fires on* is one machine
that has the fault, *quiet on* its nearest healthy look-alikes. A code's severity is its usual one; its page says when
it is another. `laggard findings explain CODE` shows a page.

| code | severity | what it means | raised by | fires on | quiet on |
|---|---|---|---|---|---|
"""


def table(raised_by: Callable[[str], Sequence[str]]) -> str:
    """`raised_by`: by code, the probes that raise it."""
    return _HEAD + "".join(_row(kind, raised_by) for kind in sorted(FINDINGS, key=lambda kind: kind.code))


def _row(kind: FindingKind, raised_by: Callable[[str], Sequence[str]]) -> str:
    fires = firing(kind.code) or logs_firing(kind.code)
    if kind.later:
        raised = f"not yet: {kind.later}"
    elif kind.code in ELSEWHERE or not fires:
        raised = ELSEWHERE.get(kind.code, "")
    else:
        raised = ", ".join(f"`{probe}`" for probe in raised_by(kind.code))
    cells = (
        f"[{kind.code}]({kind.code}.md)",
        kind.severity.value,
        kind.summary,
        raised,
        fires[0] if fires else "",
        ", ".join([*near(kind.code), *logs_near(kind.code)]),
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        machine = functools.cache(lambda name: materialise(name, Path(folder) / name))
        README.write_text(table(lambda code: raisers(code, machine)))
