"""Cases of the real trainings that bench/real_quality.py recorded, packed into the tests' data."""

import json
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from support.paths import DATA
from support.unpacked import unpack

from golden.case import Case, Culprit, Made, Truth

PACKED = DATA / "golden" / "real_runs"
ENDING = ".tar.xz"


def real_runs(packed: Path = PACKED) -> Iterator[Case]:
    """A case for each JOB-FAULT.tar.xz."""
    for path in sorted(packed.glob(f"*{ENDING}")):
        yield Case(f"real/{path.name.removesuffix(ENDING).replace('-', '/')}", partial(_unpack, path))


def _unpack(path: Path, folder: Path) -> Made:
    with tarfile.open(path) as archive:
        unpack(archive, folder)
    truth = _truth(json.loads((folder / "truth.json").read_text()))
    return Made(folder / "trace", lambda timings: truth)


def _truth(told: dict[str, object]) -> Truth:
    """The truth of a bench's case. A link that is slow is told by its ends, of which the victim's neighbour is one."""
    victims, kinds = tuple(told["victims"]), tuple(told["kinds"])  # type: ignore[arg-type]
    if not victims:
        return Truth((), ("ok",))
    ends = {rank + by for rank in victims for by in (-1, 0, 1)} & set(range(int(told["ranks"])))  # type: ignore[call-overload]
    required = bool(told["required"])
    culprit = Culprit(kinds, victims, tuple(sorted(ends)) if "slow_link" in kinds else victims, required)
    return Truth((culprit,), ("fail",) if required else ("fail", "ok", "unknown"))
