"""NVML's readings of a healthy HGX H100 node, as the recorded machine hgx_h100_gpus has them."""

import functools
import json
from typing import Any

from support.archive import parse
from support.paths import MACHINES


def nvml() -> dict[str, Any]:
    return dict(json.loads(_text()))


@functools.cache
def _text() -> str:
    return str(dict(parse((MACHINES / "hgx_h100_gpus" / "tree.txt").read_text()))["/laggard/nvml.json"])
