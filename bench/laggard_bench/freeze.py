"""Says what the two sets of a version are: their lists of cases, and the generator that made them, as hashes.

python laggard_bench/freeze.py            compare frozen.json with what is here; status 1 where they differ
python laggard_bench/freeze.py --write    freeze anew: where cases come out otherwise, VERSION has to be another
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from laggard_bench.cases import names
from laggard_bench.figures import VERSION

HERE = Path(__file__).resolve().parent
SETS = ((1, 300), (2, 600))
"""The seed of each set, and how many cases it has."""
GENERATOR = (
    "cases",
    "cluster",
    "draw",
    "faults",
    "lasting",
    "layouts",
    "program",
    "recording",
    "schedules",
    "simulate",
    "stories",
)
"""The modules that decide what a case is."""


def frozen() -> dict[str, Any]:
    source = hashlib.sha256()
    for name in GENERATOR:
        source.update((HERE / f"{name}.py").read_bytes())
    sets = []
    for seed, count in SETS:
        listed = hashlib.sha256("\n".join(names(seed, count)).encode()).hexdigest()
        sets.append({"seed": seed, "count": count, "names_sha256": listed})
    return {
        "schema": "laggard-bench.frozen/1",
        "version": VERSION,
        "sets": sets,
        "generator_sha256": source.hexdigest(),
    }


def main() -> int:
    file = HERE / "frozen.json"
    if "--write" in sys.argv[1:]:
        file.write_text(json.dumps(frozen(), indent=1) + "\n", encoding="utf-8")
        return 0
    if json.loads(file.read_text(encoding="utf-8")) != frozen():
        print("the benchmark is not the one that was frozen", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
