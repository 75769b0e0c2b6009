"""The kinds of healthy nodes of the fleets, laid out as recorded machines. What they look like is what people posted
of such machines; where a value is a real capture's, a comment says of which."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from support.archive import unpack
from support.materialise import materialise
from support.paths import MACHINES

from drains.healthy import dress
from drains.machine import Base

_CX7: Final = ("mlx5_0", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_7", "mlx5_8", "mlx5_9")
"""The NICs of an HGX H100 node that its GPUs use; mlx5_1 and mlx5_6 are for storage."""
_WRITTEN: Final = Path(__file__).parent / "machines"


class Kind(NamedTuple):
    """`share` of the fleet's nodes; `make` lays a healthy node of that name out."""

    share: float
    make: Callable[[str, Path], Base]
    says: str


def _roce(name: str, root: Path) -> Base:
    materialise("hgx_h100", root)
    return Base(name, root, _CX7)


def _infiniband(name: str, root: Path) -> Base:
    materialise("hgx_h100", root)
    unpack((MACHINES / "infiniband" / "tree.txt").read_text(), root)
    _set_nvml(root, lambda nvml: nvml.update(driver_version="580.95.05"))
    return Base(name, root, _CX7)


def _r535(name: str, root: Path) -> Base:
    """Driver 535: NVML has no recovery action before 570 (nvml.h: field 230), and no counters by reason."""
    materialise("hgx_h100", root)

    def old(nvml: dict[str, Any]) -> None:
        nvml["driver_version"] = "535.183.06"
        for one in nvml["gpus"]:
            one["recovery_action"] = None
            one["throttled_nanoseconds"] = {"thermal": 0, "board_limit": 0}
            one["errors"] = {"recovery_action": "NOT_SUPPORTED"}

    _set_nvml(root, old)
    return Base(name, root, _CX7)


def _written(name: str, root: Path) -> Base:
    """A node whose files are written down whole: machines/NAME.txt beside this file, in the form of archive.py."""
    unpack((_WRITTEN / f"{name}.txt").read_text(), root)
    shutil.copy(MACHINES / "hgx_h100" / "laggard" / "facts.json", root / "laggard" / "facts.json")
    (root / "laggard" / "replies.json").write_text('{"/home": {}}')
    return Base(name, root)


def _set_nvml(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = root / "laggard/nvml.json"
    document = json.loads(path.read_text())
    change(document)
    path.unlink()
    path.write_text(json.dumps(document))


KINDS: Final[dict[str, Kind]] = {
    "hgx_h100_roce": Kind(0.40, _roce, "HGX H100, 8 RoCE NICs, driver 570"),
    "hgx_h100_ib": Kind(0.25, _infiniband, "HGX H100, 8 InfiniBand NICs, driver 580"),
    "hgx_h100_r535": Kind(0.15, _r535, "HGX H100, 8 RoCE NICs, driver 535"),
    "cloud_guest_l40s": Kind(0.10, _written, "one L40S in a cloud's guest, driver 595"),
    "workstation_bridge": Kind(0.05, _written, "4 A100 PCIe, two of them with an NVLink bridge"),
    "workstation_boards": Kind(0.05, _written, "4 RTX 4090 of two makers"),
}
"""The fleet. The shares are assumed: the tables are also given by kind of node, where they have no say."""


def lay_out(kind: str, folder: Path) -> Base:
    return dress(KINDS[kind].make(kind, folder / kind))
