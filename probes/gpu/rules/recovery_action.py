"""The action that the driver asks for after a fault: NVML's recovery action, and the Xid 154 that reports its change,
have one table.

Sources: nvml.h 13.1 (NVML_GPU_RECOVERY_ACTION_*; NVML's field and Xid 154 have the same numbers) and "GPU memory error
management", recovery action flag. NVIDIA's own checks take a GPU out of service for each action but `recover IMEX
domain`: the DRA driver for Kubernetes (TestIsEventNonFatal), nvidia-resiliency-ext (GPUHealthCheck).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from laggard.model import Severity


class RecoveryAction(NamedTuple):
    """`advice` completes "the driver asks to"."""

    advice: str
    severity: Severity


NOTHING: Final = 0

_ACTIONS: Final = {
    1: RecoveryAction("reset the GPU", Severity.CRITICAL),
    2: RecoveryAction("reboot the node", Severity.CRITICAL),
    3: RecoveryAction("end the jobs that use peer-to-peer on it", Severity.CRITICAL),
    4: RecoveryAction("drain it and then reset it", Severity.CRITICAL),
    5: RecoveryAction("recover the IMEX domain", Severity.WARNING),
    6: RecoveryAction("reset its bus", Severity.CRITICAL),
    7: RecoveryAction("reboot the system", Severity.CRITICAL),
}


def explain_recovery_action(number: int) -> RecoveryAction:
    """Returns what a number other than 0 asks for. What a newer driver asks for accuses nobody."""
    return _ACTIONS.get(number, RecoveryAction(f"take action {number}, which laggard does not know", Severity.WARNING))
