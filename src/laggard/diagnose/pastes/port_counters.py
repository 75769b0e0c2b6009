"""The formats `perfquery` and `ethtool -S`: counters of a port that are too high. ibqueryerrors' output is read too.

Sources: infiniband-diags (src/perfquery.c, src/ibqueryerrors.c), the kernel's
Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.pastes.counter_rules import judge_counters
from laggard.diagnose.pastes.paste_format import Lack, paste_format
from laggard.diagnose.pastes.section import Section, parts_of
from laggard.model import Finding
from laggard.probes.probe import Fact

_IB_HEAD: Final = re.compile(
    r"^# Port (?:extended )?counters: (.{1,80})$|^[^\S\n]+GUID (0x[0-9a-f]+ port \d+|\S+ port \d+):.*\[\w+ == \d+",
    re.MULTILINE,
)
_IB_FIELD: Final = re.compile(r"^(\w{4,40}):\.{2,}(\d{1,20})\s*$", re.MULTILINE)
_QUERIED: Final = re.compile(r"\[(\w{4,40}) == (\d{1,20})")
_NIC_HEAD: Final = re.compile(r"^(?:NIC|Standard) (?:statistics|stats for \S+):?\s*$", re.MULTILINE)
_NIC_FIELD: Final = re.compile(r"^[^\S\n]+([\w.]{3,60}): (\d{1,20})\s*$", re.MULTILINE)
_DEVICE: Final = re.compile(r"\bethtool (?:-\S+ |--\S+ )*([\w.-]+)")


def read_infiniband(section: Section) -> Iterator[Finding | Fact | Lack]:
    for head, part in parts_of(_IB_HEAD, section.text):
        pattern = _IB_FIELD if head[1] else _QUERIED
        counters = {name: int(value) for name, value in pattern.findall(part)}
        device = _infiniband_name(head[1] or f"GUID {head[2]}")
        yield Fact("counters", len(counters))
        if not counters:
            yield Lack("no counter is in it: run perfquery LID PORT")
        yield from judge_counters(device, counters, ("ibqueryerrors", "mlxlink -d DEVICE -c", "perfquery -R LID PORT"))


def _infiniband_name(words: str) -> str:
    return re.sub(r"^Lid (\d+) port (\d+).*", r"LID \1 port \2", words)


def read_nic(section: Section) -> Iterator[Finding | Fact | Lack]:
    named = _DEVICE.search(section.command)
    device = named[1] if named else "the NIC"
    counters = {name: int(value) for name, value in _NIC_FIELD.findall(section.text)}
    yield Fact("counters", len(counters))
    if not counters:
        yield Lack("no counter is in it: run ethtool -S DEV")
    yield from judge_counters(device, counters, ("ethtool -S DEV", "mlxlink -d DEVICE -m -c", "ethtool -m DEV"))


PERFQUERY: Final = paste_format("perfquery", _IB_HEAD, read_infiniband)
ETHTOOL_COUNTERS: Final = paste_format("ethtool -S", _NIC_HEAD, read_nic)
