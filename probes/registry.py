"""Every probe, one line each."""

from __future__ import annotations

from laggard.probes.active.copy import CopyThresholds, look_at_copy
from laggard.probes.active.matmul import MatmulThresholds, look_at_matmul
from laggard.probes.active.memory import MemoryThresholds, look_at_memory
from laggard.probes.gpu.busy import BusyThresholds, look_for_processes
from laggard.probes.gpu.clocks import ClocksThresholds, look_at_clocks
from laggard.probes.gpu.count import CountThresholds, look_at_count
from laggard.probes.gpu.driver import DriverThresholds, driver_hung, look_at_driver
from laggard.probes.gpu.ecc import EccThresholds, look_at_ecc
from laggard.probes.gpu.lost import LostThresholds, look_for_lost
from laggard.probes.gpu.persistence import PersistenceThresholds, look_at_persistence
from laggard.probes.gpu.row_remap import RowThresholds, look_at_rows
from laggard.probes.gpu.temperature import TemperatureThresholds, look_at_temperature
from laggard.probes.gpu.throttle import ThrottleThresholds, look_at_throttling
from laggard.probes.gpu.xid import XidThresholds, look_for_xids
from laggard.probes.nccl.environment import NcclThresholds, look_at_nccl_environment
from laggard.probes.nvlink.errors import NvlinkErrorThresholds, look_at_nvlink_errors
from laggard.probes.nvlink.fabric_manager import ManagerThresholds, look_for_manager
from laggard.probes.nvlink.fabric_state import FabricThresholds, look_at_fabric
from laggard.probes.nvlink.links import NvlinkThresholds, look_at_nvlink
from laggard.probes.nvlink.p2p import P2pThresholds, look_at_p2p
from laggard.probes.pci.acs import AcsThresholds, look_at_acs
from laggard.probes.pci.aer import ErrorThresholds, look_at_errors
from laggard.probes.pci.iommu import IommuThresholds, look_at_iommu
from laggard.probes.pci.link import LinkThresholds, look_at_links
from laggard.probes.pci.max_read_request import RequestThresholds, look_at_requests
from laggard.probes.pci.numa import NumaThresholds, look_at_numa
from laggard.probes.probe import Probe
from laggard.probes.rdma.counters import RdmaErrorThresholds, look_at_rdma_errors
from laggard.probes.rdma.devices import RdmaDeviceThresholds, look_at_rdma_devices
from laggard.probes.rdma.driver_log import RdmaDriverThresholds, look_at_rdma_driver
from laggard.probes.rdma.ecn import look_at_roce_ecn
from laggard.probes.rdma.net import RdmaNetThresholds, look_at_rdma_net
from laggard.probes.rdma.peermem import PeermemThresholds, look_at_peermem
from laggard.probes.rdma.pfc import look_at_roce_pfc
from laggard.probes.rdma.ports import RdmaPortThresholds, look_at_rdma_ports
from laggard.probes.rdma.roce import RoceThresholds
from laggard.probes.system.clock import ClockThresholds, look_at_clock
from laggard.probes.system.cpu_affinity import AffinityThresholds, look_at_affinity
from laggard.probes.system.cpu_governor import GovernorThresholds, look_at_governor
from laggard.probes.system.disks import DiskThresholds, look_at_disks
from laggard.probes.system.identity import IdentityThresholds, look_at_identity
from laggard.probes.system.inventory import InventoryThresholds, look_at_inventory
from laggard.probes.system.limits import LimitThresholds, look_at_limits
from laggard.probes.system.mounts import RemoteMountThresholds, look_at_remote_mounts
from laggard.probes.system.swap import SwapThresholds, look_at_swap

_GPU = "gpu"  # one process for them: NVML is started and read once
_GPU_SECONDS = 29.5  # eight GPUs without persistence mode take up to 27 s to start; profiles and hangs end it earlier

PROBES: tuple[Probe, ...] = (
    Probe("limits", look_at_limits, LimitThresholds()),
    Probe("clock", look_at_clock, ClockThresholds()),
    Probe("disks", look_at_disks, DiskThresholds()),
    Probe("mounts", look_at_remote_mounts, RemoteMountThresholds(), deadline_seconds=4.5),
    Probe("swap", look_at_swap, SwapThresholds()),
    Probe("governor", look_at_governor, GovernorThresholds()),
    Probe("affinity", look_at_affinity, AffinityThresholds()),
    Probe("peermem", look_at_peermem, PeermemThresholds()),
    Probe("nccl_env", look_at_nccl_environment, NcclThresholds()),
    Probe("gpu_xid", look_for_xids, XidThresholds(), _GPU_SECONDS, _GPU),  # the first: it asks no driver
    Probe("gpu_driver", look_at_driver, DriverThresholds(), _GPU_SECONDS, _GPU, driver_hung),
    Probe("gpu_count", look_at_count, CountThresholds(), _GPU_SECONDS, _GPU),
    Probe("gpu_lost", look_for_lost, LostThresholds(), _GPU_SECONDS, _GPU),
    Probe("gpu_ecc", look_at_ecc, EccThresholds(), _GPU_SECONDS, _GPU),
    Probe("gpu_rows", look_at_rows, RowThresholds(), _GPU_SECONDS, _GPU),
    Probe("gpu_throttle", look_at_throttling, ThrottleThresholds(), _GPU_SECONDS, _GPU),
    Probe("gpu_temperature", look_at_temperature, TemperatureThresholds(), _GPU_SECONDS, _GPU),
    Probe("gpu_clocks", look_at_clocks, ClocksThresholds(), _GPU_SECONDS, _GPU),
    Probe("gpu_persistence", look_at_persistence, PersistenceThresholds(), _GPU_SECONDS, _GPU),
    Probe("gpu_busy", look_for_processes, BusyThresholds(), _GPU_SECONDS, _GPU),
    Probe("nvlink", look_at_nvlink, NvlinkThresholds(), _GPU_SECONDS, _GPU),
    Probe("nvlink_errors", look_at_nvlink_errors, NvlinkErrorThresholds(), _GPU_SECONDS, _GPU),
    Probe("fabric_manager", look_for_manager, ManagerThresholds(), _GPU_SECONDS, _GPU),
    Probe("fabric", look_at_fabric, FabricThresholds(), _GPU_SECONDS, _GPU),
    Probe("gpu_p2p", look_at_p2p, P2pThresholds(), _GPU_SECONDS, _GPU),
    Probe("identity", look_at_identity, IdentityThresholds()),
    Probe("inventory", look_at_inventory, InventoryThresholds()),
    Probe("pcie_links", look_at_links, LinkThresholds()),
    Probe("pcie_requests", look_at_requests, RequestThresholds()),
    Probe("pcie_errors", look_at_errors, ErrorThresholds()),
    Probe("acs", look_at_acs, AcsThresholds()),
    Probe("iommu", look_at_iommu, IommuThresholds()),
    Probe("numa", look_at_numa, NumaThresholds()),
    Probe("rdma_devices", look_at_rdma_devices, RdmaDeviceThresholds()),
    Probe("rdma_ports", look_at_rdma_ports, RdmaPortThresholds()),
    Probe("rdma_net", look_at_rdma_net, RdmaNetThresholds()),
    Probe("rdma_errors", look_at_rdma_errors, RdmaErrorThresholds()),
    Probe("rdma_driver", look_at_rdma_driver, RdmaDriverThresholds()),
    Probe("roce_pfc", look_at_roce_pfc, RoceThresholds()),
    Probe("roce_ecn", look_at_roce_ecn, RoceThresholds()),
)

_ACTIVE = "active"  # one process for them: one after the other on each GPU, and torch is imported once
_ACTIVE_SECONDS = 120.0  # torch from a slow file system, eight GPUs started, two seconds on each

ACTIVE_PROBES: tuple[Probe, ...] = (
    Probe("active_matmul", look_at_matmul, MatmulThresholds(), _ACTIVE_SECONDS, _ACTIVE),
    Probe("active_memory", look_at_memory, MemoryThresholds(), _ACTIVE_SECONDS, _ACTIVE),
    Probe("active_copy", look_at_copy, CopyThresholds(), _ACTIVE_SECONDS, _ACTIVE),
)
"""Those that load the GPUs: only when asked for, never on a GPU that somebody uses."""
