"""Flight Recorder dumps as NCCL's process groups write them, which no CPU build of torch can.

The fields and their forms follow torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (2.10);
test_the_fields_are_those_of_a_real_dump compares them with a dump of a real gloo job.
"""

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.paths import DATA

ENTRY = (DATA / "flight_recorder" / "entry.json").read_text()
"""A record's fields in torch's order, with what all have."""

Group = tuple[str, str, Sequence[int]]
"""Its name, description and members."""
WORLD: Group = ("0", "default_pg", [0, 1, 2, 3])
TENSOR: list[Group] = [("1", "tp", [0, 1]), ("2", "tp", [2, 3])]
DATA: list[Group] = [("3", "dp", [0, 2]), ("4", "dp", [1, 3])]


def groups_of(rank: int) -> list[Group]:
    return [group for group in (WORLD, *TENSOR, *DATA) if rank in group[2]]


def entry(
    group: Group, op: str, seq: int, state: str = "completed", numel: int = 1024, **fields: Any
) -> dict[str, Any]:
    """A record. With `number`, that of the process group in its process."""
    return {
        **json.loads(ENTRY),
        "pg_id": fields.pop("number", 0),
        "process_group": (group[0], group[1]),
        "collective_seq_id": seq,
        "op_id": seq,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": 1_795_383_441_407_774_007 + seq,
        "input_sizes": [[numel]],
        "output_sizes": [[numel]],
        "state": state,
        "retired": state == "completed",
        "is_p2p": op.startswith(("send", "recv")),
        **fields,
    }


def dump(
    groups: Sequence[Group],
    entries: Sequence[Any] = (),
    status: Mapping[int, tuple[int, int]] | None = None,
    version: str = "2.10",
) -> dict[str, Any]:
    """A dump. `status`: what is enqueued and what is done, by the group's number in the process."""
    return {
        "version": version,
        "pg_config": {name: {"name": name, "desc": text, "ranks": str(list(ranks))} for name, text, ranks in groups},
        "comm_lib_version": "2.27.5",
        "pg_status": {
            str(number): {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
            for number, (enqueued, completed) in (status or {}).items()
        },
        "entries": list(entries),
    }


def write_dumps(folder: Path, dumps: Mapping[int, Any], form: str = "pickle", prefix: str = "nccl_trace_rank_") -> Path:
    """Writes them as torch does, or as JSON."""
    folder.mkdir(exist_ok=True)
    for rank, value in dumps.items():
        if form == "json":
            (folder / f"{prefix}{rank}.json").write_text(json.dumps(value))
        else:
            (folder / f"{prefix}{rank}").write_bytes(pickle.dumps(value, 2))
    return folder
