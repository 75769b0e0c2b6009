"""Writes tree.txt of the made-up machines: `cd tests && python -m support.write`."""

from collections.abc import Callable, Mapping
from typing import Final

from support.archive import Tree, dump
from support.hgx_h100 import hgx_h100
from support.hgx_h100_gpus import hgx_h100_gpus
from support.hgx_h100_nics import hgx_h100_nics
from support.materialise import MACHINES
from support.mi300x_gpus import mi300x_gpus
from support.plain import one_nic, plain

MADE_UP: Final[Mapping[str, Callable[[], Tree]]] = {
    "plain": plain,
    "one_nic": one_nic,
    "hgx_h100": hgx_h100,
    "hgx_h100_gpus": hgx_h100_gpus,
    "hgx_h100_nics": hgx_h100_nics,
    "mi300x_gpus": mi300x_gpus,
}

if __name__ == "__main__":
    for name, make in MADE_UP.items():
        (MACHINES / name).mkdir(exist_ok=True)
        (MACHINES / name / "tree.txt").write_text(dump(make()))
