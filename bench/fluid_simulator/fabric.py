"""The network, the links within machines, and their noise: all that transfers of one simulation share."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from fluid_simulator.agenda import Agenda
from fluid_simulator.cluster import Cluster
from fluid_simulator.groups import Group
from fluid_simulator.network import Network

DRAWN_AT_ONCE = 256
GROUP_STREAM, PAIR_STREAM = 77, 78
"""The words of seeds that say which numbers are drawn."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """A job's machines as they behave. `launch`: seconds of the host for a collective's launch; `host_share`: the share
    of a kernel's seconds that its host takes to launch it; `gpu_sigma` and `network_sigma`: standard deviations of the
    logarithms of what kernels and transfers take; `latency`: seconds of a hop; `eager`: whether small sends end without
    their receiver; `blocking`: whether the host waits for each collective."""

    launch: float
    host_share: float
    gpu_sigma: float
    network_sigma: float
    latency: float
    eager: bool
    blocking: bool


class GroupNoise:
    """Factors of a group's transfers, one after the other; each group has a stream of its own, so that another group's
    transfers do not change it."""

    def __init__(self, seed: int, index: int) -> None:
        self._rng = np.random.default_rng([seed, GROUP_STREAM, index])
        self._drawn: list[float] = []
        self._next = 0

    def factor(self) -> float:
        if self._next >= len(self._drawn):
            self._drawn, self._next = np.exp(self._rng.normal(0, 1, DRAWN_AT_ONCE)).tolist(), 0
        self._next += 1
        return self._drawn[self._next - 1]


class Fabric:
    """`nvlink_factors`: by rank, the share of its NVLink's rate that a fault leaves; empty where none is at fault."""

    def __init__(self, cluster: Cluster, settings: Settings, seed: int) -> None:
        self.cluster, self.settings, self._seed = cluster, settings, seed
        self.agenda = Agenda()
        self.network = Network(self.agenda, cluster)
        self.nvlink_factors: dict[int, float] = {}
        self._of_groups: dict[int, GroupNoise] = {}
        self._of_pairs: dict[tuple[int, int], np.random.Generator] = {}

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of sender and receiver between which anything went."""
        return list(self._of_pairs)

    def group_noise(self, group: Group) -> float:
        noise = self._of_groups.get(group.index)
        if noise is None:
            noise = self._of_groups[group.index] = GroupNoise(self._seed, group.index)
        return float(noise.factor() ** self.settings.network_sigma)

    def pair_noise(self, sender: int, receiver: int) -> float:
        rng = self._of_pairs.get((sender, receiver))
        if rng is None:
            rng = np.random.default_rng([self._seed, PAIR_STREAM, sender, receiver])
            self._of_pairs[(sender, receiver)] = rng
        return math.exp(rng.normal() * self.settings.network_sigma)

    def nvlink_factor(self, ranks: Sequence[int]) -> float:
        """The share of NVLink's rate that the slowest of these ranks has."""
        return min(self.nvlink_factors.get(rank, 1.0) for rank in ranks)
