"""Every probe, one line each."""

from __future__ import annotations

from laggard.probes.acs import AcsThresholds, look_at_acs
from laggard.probes.active_copy import CopyThresholds, look_at_copy
from laggard.probes.active_matmul import MatmulThresholds, look_at_matmul
from laggard.probes.active_memory import MemoryThresholds, look_at_memory
from laggard.probes.affinity import AffinityThresholds, look_at_affinity
from laggard.probes.clock import ClockThresholds, look_at_clock
from laggard.probes.disks import DiskThresholds, look_at_disks
from laggard.probes.fabric_manager import ManagerThresholds, look_for_manager
from laggard.probes.fabric_state import FabricThresholds, look_at_fabric
from laggard.probes.governor import GovernorThresholds, look_at_governor
from laggard.probes.gpu_busy import BusyThresholds, look_for_processes
from laggard.probes.gpu_clocks import ClocksThresholds, look_at_clocks
from laggard.probes.gpu_count import CountThresholds, look_at_count
from laggard.probes.gpu_ecc import EccThresholds, look_at_ecc
from laggard.probes.gpu_hung import DriverThresholds, driver_hung, look_at_driver
from laggard.probes.gpu_lost import LostThresholds, look_for_lost
from laggard.probes.gpu_p2p import P2pThresholds, look_at_p2p
from laggard.probes.gpu_persistence import PersistenceThresholds, look_at_persistence
from laggard.probes.gpu_rows import RowThresholds, look_at_rows
from laggard.probes.gpu_temperature import TemperatureThresholds, look_at_temperature
from laggard.probes.gpu_throttle import ThrottleThresholds, look_at_throttling
from laggard.probes.gpu_xid import XidThresholds, look_for_xids
from laggard.probes.identity import IdentityThresholds, look_at_identity
from laggard.probes.inventory import InventoryThresholds, look_at_inventory
from laggard.probes.iommu import IommuThresholds, look_at_iommu
from laggard.probes.limits import LimitThresholds, look_at_limits
from laggard.probes.nccl_environment import NcclThresholds, look_at_nccl_environment
from laggard.probes.numa import NumaThresholds, look_at_numa
from laggard.probes.nvlink import NvlinkThresholds, look_at_nvlink
from laggard.probes.nvlink_errors import NvlinkErrorThresholds, look_at_nvlink_errors
from laggard.probes.pcie_errors import ErrorThresholds, look_at_errors
from laggard.probes.pcie_links import LinkThresholds, look_at_links
from laggard.probes.pcie_requests import RequestThresholds, look_at_requests
from laggard.probes.peermem import PeermemThresholds, look_at_peermem
from laggard.probes.rdma_devices import RdmaDeviceThresholds, look_at_rdma_devices
from laggard.probes.rdma_driver import RdmaDriverThresholds, look_at_rdma_driver
from laggard.probes.rdma_errors import RdmaErrorThresholds, look_at_rdma_errors
from laggard.probes.rdma_net import RdmaNetThresholds, look_at_rdma_net
from laggard.probes.rdma_ports import RdmaPortThresholds, look_at_rdma_ports
from laggard.probes.remote_mounts import RemoteMountThresholds, look_at_remote_mounts
from laggard.probes.roce import RoceThresholds
from laggard.probes.roce_ecn import look_at_roce_ecn
from laggard.probes.roce_pfc import look_at_roce_pfc
from laggard.probes.shape import Probe
from laggard.probes.swap import SwapThresholds, look_at_swap

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
