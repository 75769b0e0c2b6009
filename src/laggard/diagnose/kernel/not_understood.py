"""Records of accelerators' and NICs' drivers, of file systems and of the machine check that say that something failed
and that no rule knows: they make the answer `unknown`. What healthy machines write is listed as benign."""

from __future__ import annotations

import re
from typing import Final

from laggard.diagnose.kernel.lines import LogLine

_ERROR_LEVEL: Final = 3
_WARNING_LEVEL: Final = 4
_OF_NVIDIA = re.compile(r"NVRM|nvidia")
"""NVIDIA's drivers log what they do at the level of errors, so that their words decide."""
_SOURCE = re.compile(
    r"^(?:NVRM: |nvidia[\w-]*(?: [0-9a-f:.]{12})?: |\[drm:(?:nv_|amdgpu)|amdgpu(?: [0-9a-f:.]{12})?: |mlx5_core "
    r"|bnxt_en |habanalabs |EXT4-fs|XFS \(|BTRFS|JBD2: |Lustre(?:Error)?: |LNetError: |mce: \[Hardware|EDAC "
    r"|nvme nvme\d|md/raid|ceph: |beegfs: |wekafs)"
)
_FAILURE = re.compile(
    r"\b(?:[Ee]rrors?|ERRORS?|[Ff]ail(?:ed|ure|s)?|FAILED|[Ff]atal|FATAL|[Tt]imed? ?out|[Uu]nable to|[Cc]annot"
    r"|[Cc]ould not|[Hh]ung|[Cc]orrupt\w*|[Uu]nrecoverable|[Uu]ncorrect\w+|[Dd]ead|[Aa]ssert\w*|panic)\b"
)
_BENIGN: Final = re.compile(
    # NVIDIA
    r"NVRM: Xid \((?:PCI:)?[0-9a-fA-F]{4,8}:[0-9a-fA-F:]{5}[^)]*\): \d{1,5}\b|SXid|nvAssert\w*|nvCheck\w*"
    r"|module verification failed|taints kernel|tainting kernel|Unable to read EDID|Correcting number of heads"
    r"|detected invalid context, skipping|Persistence mode is deprecated|PAT configuration|Unloading"
    r"|Failed to allocate NvKmsKapiDevice|Failed to register device|Failed to grab modeset ownership"
    r"|nvidia-modeset: |Driver cannot use all the BARs|A GPU crash dump has been created"
    # AMD, Gaudi
    r"|\b(?:0 un|\d+ (?:new )?)correctable hardware errors"
    r"|soft recovered|i2c timeout|\berrs: wr \d+|ucode is not available|[Ee]rror [Rr]ecovery|errors? collector"
    r"|critical 0\b"
    r"|Failed to (?:get|load) (?:firmware|ASPM)|No more image in the PCI ROM|Could not find (?:any )?valid"
    # Memory and PCIe
    r"|EDAC \S+: (?:Giving out|\d+ CE|Removed)|Ver: |ECC is (?:disabled|enabled)|[Cc]orrected error"
    r"|Machine check events logged|Thermal monitoring|temperature|using \d+ MCE banks"
    r"|PCIe Bus Error|error status/mask|: +\[ ?\d+\] \w"
    # NICs
    r"|port_module|mlx5_cmd_out_err|cmd_err|cq_err_event|Recovered \d+ EQEs|maximal mount count"
    r"|Port module event|Supported tc|Rate limit|E-Switch|mlx5e?_\w+: .*not supported|FTE|Total vports"
    r"|PTP|flow steering|IPsec|health recovery|PCIe slot|MPFS|hwmon|lag map|Shared FDB|mlx5_core \S+ \S+: Link"
    # Disks and file systems
    r"|SUBNQN field|ANA log|poll queues|Shutdown timeout|Abort status: 0x0|supports timestamps"
    r"|re-mounted|errors=remount-ro"
    r"|ordered data mode|orphan cleanup|Quota|Mounting V|Ending clean|(?:[Uu]n)?[Mm]ount(?:ing|ed)\b.*filesystem"
    r"|(?:Starting|Ending) recovery|[Dd]eprecated|ptlrpc_expire_one_request|Skipped \d+ previous similar"
    r"|LustreError: .*(?:rc = -(?:10[78]|110|5|11)\b|11-0:|not available for connect|is in progress)"
    r"|Lustre: (?:Lustre: Build|Mounted|Unmounted|Skipped)"
)
"""Words of records that healthy machines write too, or that follow from what a rule knows."""
MAX_SHOWN: Final = 3
_MAX_SHOWN_CHARACTERS: Final = 120


def is_suspicious(record: LogLine) -> bool:
    """Whether a record that no rule knows may be a fault."""
    if not _SOURCE.match(record.text) or _BENIGN.search(record.text):
        return False
    if record.level is not None and record.level > _WARNING_LEVEL:
        return False
    is_error = record.level is not None and record.level <= _ERROR_LEVEL and not _OF_NVIDIA.match(record.text)
    return is_error or bool(_FAILURE.search(record.text))


class NotUnderstood:
    """Holds a few of the records that no rule knows, of different kinds, and counts the others."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._count = 0

    def add(self, record: LogLine) -> None:
        self._count += 1
        kind = re.sub(r"[0-9a-fx]*\d[0-9a-fx]*", "N", record.text[:_MAX_SHOWN_CHARACTERS])
        if len(self._shown) < MAX_SHOWN:
            self._shown.setdefault(kind, record.text[:_MAX_SHOWN_CHARACTERS])

    def __str__(self) -> str:
        """The records in words, as the reason why the answer is unknown; empty: there were none."""
        if not self._count:
            return ""
        lines = "line" if self._count == 1 else "lines"
        return f"{self._count} {lines} of errors that laggard does not know: {' | '.join(self._shown.values())}"
