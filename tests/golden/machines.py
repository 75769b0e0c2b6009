"""The broken twins of recorded machines, each judged as `laggard healthcheck` does. What a recorded machine itself is
judged to be stands in its expect.json."""

import dataclasses
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from support.judge import judge, probes_of
from support.machines import Shelf
from support.twins import TWINS, Twin

from golden.row import Row, row_of_report


@dataclasses.dataclass(frozen=True)
class Machine:
    """The broken twin of the recorded machine `base`."""

    name: str
    base: str
    twin: Twin

    def row(self, shelf: Shelf) -> Row:
        with tempfile.TemporaryDirectory(dir=shelf.folder) as folder:
            root = shelf.copy(self.base, Path(folder))
            for change in self.twin.changes:
                change(root)
            return row_of_report(judge(root, probes_of(self.base)))


def machines() -> Iterator[Machine]:
    for base, twins in TWINS.items():
        for twin in twins:
            yield Machine(f"twins/{base}/{re.sub(r'[^a-z0-9]+', '_', twin.says.lower())}", base, twin)
