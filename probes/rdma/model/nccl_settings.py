"""The choice of the job's NCCL settings among RDMA devices: NCCL_IB_HCA and NCCL_IB_GID_INDEX.

Both are read from the environment, where laggard runs in a job, else from /etc/nccl.conf. The forms of NCCL_IB_HCA are
in NCCL's user guide: `mlx5_0,mlx5_1:1`, names as prefixes; `=` in front: exact names; `^`: all but these.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from laggard.nccl.variables import ETC, parse_conf
from laggard.probes.errors import or_none
from laggard.probes.host.host import Host


class HcaSelection(msgspec.Struct, frozen=True):
    text: str
    source: str
    names: tuple[str, ...]
    exact: bool
    excludes: bool

    def absent(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the names that match no device. That an excluded device is not there is no fault."""
        if self.excludes:
            return ()
        return tuple(name for name in self.names if not any(self._matches(name, device) for device in devices))

    def chosen(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the devices that it selects."""
        hits = {device for device in devices if any(self._matches(name, device) for name in self.names)}
        return tuple(device for device in devices if (device in hits) is not self.excludes)

    def _matches(self, name: str, device: str) -> bool:
        return device == name if self.exact else device.startswith(name)


def parse_hca_selection(text: str, source: str) -> HcaSelection | None:
    """Parses NCCL_IB_HCA; None where it names nothing. `source`: where it was set, for messages."""
    rest = text.strip()
    excludes = rest.startswith("^")
    rest = rest.removeprefix("^")
    exact = rest.startswith("=")
    rest = rest.removeprefix("=")
    names = tuple(name for part in rest.split(",") if (name := part.strip().partition(":")[0]))
    return HcaSelection(text.strip(), source, names, exact, excludes) if names else None


def read_hca_selection(host: Host) -> HcaSelection | None:
    text = _environ(host).get("NCCL_IB_HCA")
    if text:
        return parse_hca_selection(text, "environment")
    return parse_hca_selection(site_setting(host, "NCCL_IB_HCA"), ETC)


def site_setting(host: Host, name: str) -> str:
    """Returns the value of an NCCL variable in /etc/nccl.conf, which root writes; empty where it is not set."""
    return parse_conf(or_none(host.read, ETC) or "").settings.get(name, "").strip()


def read_gid_index(host: Host) -> int | None:
    """Returns NCCL_IB_GID_INDEX; None where it is not set, negative (NCCL then chooses itself) or no number."""
    for text in (_environ(host).get("NCCL_IB_GID_INDEX", ""), site_setting(host, "NCCL_IB_GID_INDEX")):
        try:
            index = int(text)
        except ValueError:
            continue
        return index if index >= 0 else None
    return None


def _environ(host: Host) -> Mapping[str, str]:
    return or_none(host.environ) or {}
