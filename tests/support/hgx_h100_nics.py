"""The files of hgx_h100 about its NICs and the places of its GPUs: a sixth of all, for the many faults of NICs."""

import re

from support.archive import Tree
from support.hgx_h100 import hgx_h100

_PORT_COUNTERS = (
    "symbol_error|link_downed|local_link_integrity_errors|excessive_buffer_overrun_errors|link_error_recovery|"
    "port_rcv_errors|port_xmit_discards"
)
_HW_COUNTERS = (
    "local_ack_timeout_err|rnr_nak_retry_err|packet_seq_err|implied_nak_seq_err|out_of_sequence|roce_slow_restart"
)
_NEEDED = re.compile(
    r"/dev/infiniband/\w+"
    r"|/proc/(uptime|self/mounts|sys/kernel/(hostname|random/boot_id|osrelease))"
    r"|/sys/class/(infiniband|net)/\w+"
    r"|/sys/bus/pci/devices/.*"
    r"|/sys/bus/pci/drivers/(nvidia|mlx5_core)/.*"
    r"|.*/infiniband/\w+/(board_id|fw_ver|hca_type|device)"
    r"|.*/ports/1/(state|phys_state|rate|link_layer|gids/\d|gid_attrs/\w+/\d)"
    rf"|.*/ports/1/(counters/({_PORT_COUNTERS})|hw_counters/({_HW_COUNTERS}))"
    r"|.*/net/enp\w+/(operstate|flags|mtu|carrier|carrier_up_count|carrier_down_count|dev_port)"
)
_OF_DEVICES = re.compile(r"(.*/0000:\w\w:00\.0)/(class|vendor|device|subsystem_device|driver)")


def hgx_h100_nics() -> Tree:
    tree = hgx_h100()
    devices = {path.rpartition("/")[0] for path, content in tree.items() if _is_nic_or_gpu(path, str(content))}
    kept: Tree = {path: content for path, content in tree.items() if _is_needed(path, devices)}
    kept["/proc/sys/kernel/hostname"] = "hgx_h100_nics\n"
    return kept


def _is_nic_or_gpu(path: str, content: str) -> bool:
    return path.endswith("/driver") and content.rpartition("/")[2] in ("mlx5_core", "nvidia")


def _is_needed(path: str, devices: set[str]) -> bool:
    match = _OF_DEVICES.fullmatch(path)
    return match[1] in devices if match else bool(_NEEDED.fullmatch(path))
