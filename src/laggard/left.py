"""What has left laggard, and the line that says what serves instead: for who still gives its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ACCEPT: Final = (
    "on a node, root accepts a finding with `laggard healthcheck --accept`; alerts are silenced in Alertmanager"
)

SETTINGS: Final[Mapping[str, str]] = {
    "acknowledge_token_file": "the secret of `laggard confirm` is confirm_token_file now",
    "acknowledged_file": _ACCEPT,
}

COMMANDS: Final[Mapping[str, str]] = {
    "findings acknowledge": _ACCEPT,
    "findings acknowledged": "`laggard healthcheck --accept` lists what is accepted on a node",
    "findings maintenance": "SLURM keeps jobs away (scontrol create reservation), Alertmanager has silences",
}

FLAGS: Final[Mapping[str, str]] = {
    "healthcheck --acknowledged": "--accepted FILE has what root accepts on this node",
    "incidents --acknowledged": _ACCEPT,
}
"""By command and flag."""
