"""torch's fr_trace, by its main(): the database that it writes names for each collective that is not whole the ranks
that never came to it. With dumps missing it refuses, and says of whom; then it is run with --allow-incomplete-ranks, as
it advises."""

from __future__ import annotations

import os
import pickle
import re
import tempfile
from typing import Any

from torch.distributed.flight_recorder import fr_trace


def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        database = os.path.join(scratch, "database")
        words = [request["folder"], "-o", database]
        try:
            fr_trace.main(words)
            without: list[int] = []
        except AssertionError as refused:
            without = [int(rank) for rank in re.findall(r"\d+", str(refused).partition("from ranks")[2])]
            if not without:
                raise
            fr_trace.main([*words, "--allow-incomplete-ranks"])
        with open(database, "rb") as file:
            _, found = pickle.load(file)
    missing = {int(rank) for one in found.collectives for rank in one.missing_ranks or ()}
    return [{"kind": "hung", "ranks": [rank]} for rank in sorted(missing | set(without))]
