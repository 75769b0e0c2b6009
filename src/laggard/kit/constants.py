"""Constants that several parts of laggard use. Standard library only: the training process imports this."""

from __future__ import annotations

from typing import Final

ACCEPTED_FILE: Final = "/etc/laggard/accepted.json"
"""The file of findings that root accepts on this node (`laggard healthcheck --accept`)."""

PHASES: Final = (
    "input",
    "forward",
    "backward",
    "optimizer",
    "between_steps",
    "evaluation",
    "checkpoint",
    "logging",
    "other",
)
"""The phases of a step: parts of a rank's own time. `input` is the time for which a data loader was waited for.
`between_steps` is the script's own work before a forward pass that no hook has a name for; `other` is what lies between
the forward pass and the update and belongs to no other phase."""

SCRIPT_PHASES: Final = ("evaluation", "checkpoint", "logging")
"""Phases that a script may leave to one rank: what only one rank does there is its script's choice, and no fault."""

OPS: Final = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "all_to_all",
    "barrier",
    "send",
    "recv",
    "gather",
    "scatter",
)
"""The operations of collectives, with send and recv, as the rank file, the recording and the documents name them."""

AGENT_PORT: Final = 19400

COLLECTOR_PORT: Final = 19401

CONTROLLER_PORT: Final = 19402
"""The port of `laggard kubernetes controller`."""
