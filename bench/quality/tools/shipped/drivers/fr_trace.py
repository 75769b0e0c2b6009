"""torch's fr_trace, by its main(): the database that it writes names for each collective that is not whole the ranks
that never came to it, and those that called something else. With dumps missing it refuses, and says of whom; then it is
run with --allow-incomplete-ranks, as it advises. Of a rank without a dump it says no more than that."""

from __future__ import annotations

import os
import pickle
import re
import tempfile
from typing import Any

from torch.distributed.flight_recorder import fr_trace

OTHER_CALLS = ("COLLECTIVE_TYPE_MISMATCH", "SIZE_OR_SYNTAX_MISMATCH", "COLLECTIVE_DTYPE_MISMATCH")


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
    accused: set[int] = set()
    for one in found.collectives:
        accused |= {int(rank) for rank in one.missing_ranks or ()}
        accused |= {int(rank) for rank, call in (one.mismatch_collectives or {}).items() if is_another_call(call)}
    named = [{"kind": "hung", "ranks": [rank]} for rank in sorted(accused)]
    return named + [{"kind": "no_dump", "ranks": [rank]} for rank in sorted(set(without) - accused)]


def is_another_call(call: Any) -> bool:
    """Whether fr_trace says that a rank called something else. That some ranks are done and others are not accuses
    nobody."""
    return call.type_of_mismatch.state.name in OTHER_CALLS
