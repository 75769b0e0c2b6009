"""The recorded machines, and the broken twins of some, each judged as `laggard healthcheck` does."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from support.judge import judge, probes_of
from support.machines import Shelf
from support.materialise import names
from support.twins import TWINS, Twin

from golden.row import Row, row_of_report


@dataclasses.dataclass(frozen=True)
class Machine:
    """A recorded machine, as it is or as its broken twin."""

    name: str
    base: str
    twin: Twin | None = None

    def row(self, shelf: Shelf) -> Row:
        if self.twin is None:
            return row_of_report(judge(shelf.machine(self.base), probes_of(self.base)))
        with tempfile.TemporaryDirectory(dir=shelf.folder) as folder:
            root = shelf.copy(self.base, Path(folder))
            for change in self.twin.changes:
                change(root)
            return row_of_report(judge(root, probes_of(self.base)))


def machines() -> Iterator[Machine]:
    for name in names():
        yield Machine(f"machines/{name}", name)
    for base, twins in TWINS.items():
        for twin in twins:
            yield Machine(f"twins/{base}/{re.sub(r'[^a-z0-9]+', '_', twin.says.lower())}", base, twin)
