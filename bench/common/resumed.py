"""The results of benchmarks that go on where they were stopped: one JSON document a line, of the case that it names."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Case = TypeVar("Case")


def results(path: Path, case: Callable[..., Case]) -> dict[Case, dict[str, Any]]:
    """Returns the results there are; a line that was cut off is none. `case` makes a case of its fields."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            document = json.loads(line)
            found[case(*document["case"])] = document
    return found
