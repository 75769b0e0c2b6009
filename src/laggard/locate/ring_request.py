"""The ring that tells which part of the network is slow, for the suspects of a job: as a command for people. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from laggard.model import Culprit

_NODES: Final = 4
"""The number of nodes of a ring in pairs: it needs three, and a fourth so that each suspect meets two others."""
_MAX_SUSPECTS: Final = 8
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,80}")


def ring_request(culprit: Culprit, nodes: Iterable[str | None]) -> str:
    """Returns what to run to measure the machines of `culprit` against each other and others of the job's `nodes`;
    empty where the job has fewer than three, or a name is none that a shell takes as it is."""
    suspects = list(culprit.machines[:_MAX_SUSPECTS])
    others = sorted({node for node in nodes if node} - set(suspects))
    chosen = [*suspects, *others[: max(2, _NODES - len(suspects))]]
    if not suspects or len(chosen) < 3 or not all(map(_NAME.fullmatch, chosen)):
        return ""
    return (
        "once the job has ended, measure them apart: "
        f"srun -w {','.join(chosen)} -N{len(chosen)} --ntasks-per-node=1 laggard ring --pairs"
    )
