"""The tools whose output `laggard diagnose` reads in pastes: a new one is a file of this folder and a name here."""

from __future__ import annotations

from typing import Final

from laggard.diagnose.file_format import FileFormat
from laggard.diagnose.pastes.disks import DISKS
from laggard.diagnose.pastes.ethtool import ETHTOOL, ETHTOOL_FEC
from laggard.diagnose.pastes.ethtool_module import ETHTOOL_MODULE
from laggard.diagnose.pastes.firewall import FIREWALL
from laggard.diagnose.pastes.ibdiagnet import IBDIAGNET
from laggard.diagnose.pastes.ip_link import IP_LINK
from laggard.diagnose.pastes.limits import LIMITS
from laggard.diagnose.pastes.memory import MEMORY
from laggard.diagnose.pastes.mlxlink import MLXLINK
from laggard.diagnose.pastes.nccl_topology import NCCL_TOPOLOGY
from laggard.diagnose.pastes.pods import PODS
from laggard.diagnose.pastes.port_counters import ETHTOOL_COUNTERS, PERFQUERY
from laggard.diagnose.pastes.rdma_ports import RDMA_PORTS
from laggard.diagnose.pastes.routes import ROUTES
from laggard.diagnose.pastes.slurm_jobs import SLURM_JOBS
from laggard.diagnose.pastes.slurm_nodes import SLURM_NODES
from laggard.diagnose.pastes.stuck_processes import STUCK_PROCESSES
from laggard.diagnose.pastes.torch_lock import TORCH_LOCK
from laggard.diagnose.pastes.traffic_control import TRAFFIC_CONTROL

TOOL_OUTPUTS: Final[tuple[FileFormat, ...]] = (
    RDMA_PORTS,
    PERFQUERY,
    IBDIAGNET,
    MLXLINK,
    ETHTOOL_COUNTERS,
    ETHTOOL,
    ETHTOOL_FEC,
    ETHTOOL_MODULE,
    IP_LINK,
    NCCL_TOPOLOGY,
    SLURM_NODES,
    SLURM_JOBS,
    PODS,
    DISKS,
    MEMORY,
    LIMITS,
    STUCK_PROCESSES,
    TORCH_LOCK,
    TRAFFIC_CONTROL,
    FIREWALL,
    ROUTES,
)
