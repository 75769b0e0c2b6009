"""GPU_PERSISTENCE_OFF: the driver shuts down a GPU that no process uses, and starts it anew for each job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.kit.majority import with_peers
from laggard.model import Finding
from laggard.probes.gpu.model.readings import peer_key, query_gpus, read_field
from laggard.probes.host.host import Host
from laggard.probes.probe import GPU, Fact, Probe, Thresholds, finding

_FIX: Final = "Run nvidia-persistenced at boot; without it, `nvidia-smi -pm 1` lasts until the driver is reloaded."


def check(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    reading = read_field(with_peers(query_gpus(host), peer_key), "persistence", "persistence mode")
    for gpu in (gpu for gpu, on in reading.values if not on):
        commands = ("systemctl enable --now nvidia-persistenced",)
        summary = "is without persistence mode"
        yield finding("GPU_PERSISTENCE_OFF", gpu.device, summary, evidence={}, fix=_FIX, commands=commands)
    reading.raise_if_incomplete()


PROBE: Final = Probe("gpu_persistence", check, Thresholds(), group=GPU)
