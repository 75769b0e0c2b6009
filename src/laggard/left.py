"""What left laggard, by name, and what serves instead. Values alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COMMANDS: Final[Mapping[str, str]] = {
    "idle-rings": "it is an option of the agent, `laggard agent --idle-rings`",
    "kubernetes-job": "it is an option of the agent, `laggard agent --kubernetes-job`",
    "reader": "it is an option of the agent, `laggard agent --reader`",
}
