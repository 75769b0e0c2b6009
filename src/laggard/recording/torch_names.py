"""Torch's names of operations and of types of numbers, as its Flight Recorder and its profiler write them."""

from __future__ import annotations

import re

from laggard.constants import OPS

UNKNOWN = -1

_OPS_BY_NAME = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    **{name.replace("_", ""): name for name in OPS},
}
_SUFFIXES = re.compile(r"(_base|_oop|_single|_tensor|_into_tensor|_coalesced|_v|_barrier)+$")

BYTES_OF_TYPE = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "UInt16": 2, "Int": 4, "UInt32": 4,
    "Float": 4, "Long": 8, "UInt64": 8, "Double": 8, "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1, "Float8_e8m0fnu": 1,
}  # fmt: skip


def op_place(name: str) -> int:
    """The place in OPS of what torch calls `_allgather_base`, `all_reduce_barrier` and so on; -1 where it is none."""
    bare = "barrier" if name.endswith("barrier") else _SUFFIXES.sub("", name.lstrip("_").lower())
    found = _OPS_BY_NAME.get(bare.replace("_", ""))
    return OPS.index(found) if found else UNKNOWN
