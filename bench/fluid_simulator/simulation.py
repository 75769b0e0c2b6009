"""One simulation: the fabric, and what ranks take part in over it."""

from fluid_simulator.cluster import Cluster
from fluid_simulator.collectives import Collectives
from fluid_simulator.fabric import Fabric, Settings
from fluid_simulator.transfers import Transfers


class Simulation:
    def __init__(self, cluster: Cluster, settings: Settings, seed: int) -> None:
        self.cluster, self.settings, self.seed = cluster, settings, seed
        self.fabric = Fabric(cluster, settings, seed)
        self.agenda = self.fabric.agenda
        self.collectives = Collectives(self.fabric)
        self.transfers = Transfers(self.fabric)
