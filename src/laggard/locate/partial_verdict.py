"""The part that one analysis (crashes, hangs, slow ranks) contributes to the verdict on a job."""

from __future__ import annotations

from typing import NamedTuple

from laggard.model import Culprit, Note


class PartialVerdict(NamedTuple):
    culprits: tuple[Culprit, ...] = ()
    notes: tuple[Note, ...] = ()


NOTHING_FOUND = PartialVerdict()
