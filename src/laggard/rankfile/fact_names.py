"""Names of what a training process tells of itself in its rank file's facts. Standard library only."""

from __future__ import annotations

from typing import Final

TRANSPORT: Final = "transport"
"""How its NCCL talks: what laggard.nccl.transport.Transport writes, as JSON's values."""

UNNAMED: Final = "unnamed_collectives"
"""Why collectives that C++ makes pass without a name, a key of UNNAMED_REASONS; absent while they are named, or none
passed."""

RECORDER_OFF: Final = "flight_recorder_off"
RECORDER_SMALL: Final = "flight_recorder_small"

UNNAMED_REASONS: Final = {
    RECORDER_OFF: (
        "torch's Flight Recorder is off",
        "TORCH_FR_BUFFER_SIZE=2000 (before torch 2.6: TORCH_NCCL_TRACE_BUFFER_SIZE=2000) in the job's environment"
        " turns it on",
    ),
    RECORDER_SMALL: (
        "torch's Flight Recorder is too small",
        "a larger TORCH_FR_BUFFER_SIZE in the job's environment holds the collectives of a step",
    ),
}
"""By reason: what is wrong, and what turns it right."""
