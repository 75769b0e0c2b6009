"""The rules for the drivers of accelerators: NVIDIA's (what is neither an Xid nor an SXid), amdgpu, habanalabs.

Sources: open-gpu-kernel-modules, kernel-open/nvidia/nv.c and nv-pci.c, src/nvidia/arch/nvalloc/unix/src/osapi.c and
osinit.c, src/nvidia/src/kernel/gpu/gsp; Linux, drivers/gpu/drm/i915, drivers/gpu/drm/xe and drivers/accel/habanalabs.
amdgpu's messages, with their sources, stand in laggard.probes.gpu.model.amdgpu_log.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from laggard.kernel_rules.rule import ADDRESS, CRITICAL, WARNING, Rule
from laggard.model import Severity
from laggard.probes.gpu.model.amdgpu_log import AMDGPU, AMDGPU_MESSAGES, AmdgpuMessage, Kind

_LOADED: Final = r"NVRM: loading NVIDIA UNIX"
SOME_GSP: Final = "a GPU's firmware (GSP)"
"""The device of findings whose records name no GPU."""
GSP_XIDS: Final = frozenset((119, 120))
_START_SECONDS: Final = 10.0
_REBOOT: Final = "Drain the node and reboot it; a GPU that fails again has to be reseated or replaced."
_REPLACE: Final = "Drain the node and restart it; a GPU that reports this again has to be replaced."
_VERSIONS: Final = "Reboot the node, or stop what uses the GPUs and load the module anew: then both have one version."
_NVIDIA: Final = ("nvidia-smi", "cat /proc/driver/nvidia/version", "dmesg -T | grep NVRM")
_AMD: Final = ("amd-smi list", "amd-smi metric --ecc", "dmesg -T | grep amdgpu")
_INTEL: Final = ("xpu-smi discovery", "dmesg -T | grep -E 'i915|xe '")
_GAUDI: Final = ("hl-smi", "dmesg -T | grep habanalabs")
_HL: Final = r"habanalabs (?:accel )?(?P<device>hl\d+|accel\d+|[0-9a-f:.]{7,12}):.{0,160}?"

NVIDIA_RULES: Final[tuple[Rule, ...]] = (
    Rule("failed",
         rf"NVRM: GPU {ADDRESS}: (?:RmInitAdapter|rm_init_adapter)(?:\(\d+\))? failed(?P<why>!? ?\([0-9a-fx:]+\))?",
         "GPU_LOST", CRITICAL, "GPU {device}", "cannot be started by the driver: RmInitAdapter failed", _REBOOT,
         _NVIDIA, _LOADED),
    Rule("failed", r"NVRM: (?:RmInitAdapter|rm_init_adapter)(?:\(\d+\))? failed", "GPU_LOST", CRITICAL, "a GPU",
         "cannot be started by the driver: RmInitAdapter failed", _REBOOT, _NVIDIA, _LOADED),
    Rule("API mismatch",
         r"NVRM: API mismatch: .{0,160}?version (?P<user>\d[\d.]*\d).{0,160}?version (?P<kernel>\d[\d.]*\d)",
         "GPU_DRIVER_FAILED", CRITICAL, "NVIDIA's driver",
         "has two versions on this node: API mismatch, programs have {user} and the kernel module has {kernel}",
         _VERSIONS, _NVIDIA, _LOADED),
    Rule("API mismatch", r"NVRM: API mismatch", "GPU_DRIVER_FAILED", CRITICAL, "NVIDIA's driver",
         "has two versions on this node: API mismatch of programs and kernel module", _VERSIONS, _NVIDIA, _LOADED),
    Rule("already bound", rf"NVRM: GPU {ADDRESS} is already bound to (?P<driver>nouveau|vfio-pci|\w[\w-]*)",
         "GPU_DRIVER_FAILED", CRITICAL, "GPU {device}", "belongs to the driver {driver}, so NVIDIA's cannot use it",
         "Keep nouveau from loading (`blacklist nouveau` in /etc/modprobe.d, a new initramfs) and reboot.",
         ("lspci -k -d 10de:", "lsmod | grep nouveau"), _LOADED, settle_seconds=_START_SECONDS),
    Rule("probe routine was not called", r"NVRM: The NVIDIA probe routine was not called for (?P<count>\d+) device",
         "GPU_DRIVER_FAILED", CRITICAL, "NVIDIA's driver",
         "did not get {count} of the devices: another driver, such as nouveau or vfio-pci, holds them",
         "Keep the other driver from loading (`blacklist nouveau` in /etc/modprobe.d, a new initramfs) and reboot.",
         ("lspci -k -d 10de:", "lsmod | grep nouveau"), _LOADED, settle_seconds=_START_SECONDS),
    Rule("probe routine failed", r"NVRM: The NVIDIA probe routine failed for (?P<count>\d+) device",
         "GPU_DRIVER_FAILED", CRITICAL, "NVIDIA's driver", "could not start {count} of the GPUs", _REBOOT, _NVIDIA,
         _LOADED, settle_seconds=_START_SECONDS),
    Rule("None of the NVIDIA",
         r"NVRM: None of the NVIDIA (?:graphics adapters|devices) were (?:initiali[sz]ed|probed)",
         "GPU_DRIVER_FAILED", CRITICAL, "NVIDIA's driver", "started none of the GPUs", _REBOOT, _NVIDIA, _LOADED,
         settle_seconds=_START_SECONDS),
    Rule("NVRM: The NVIDIA GPU",
         rf"NVRM: The NVIDIA GPU {ADDRESS}.{{0,160}}?(?:not supported by|requires use of the NVIDIA)",
         "GPU_DRIVER_FAILED", CRITICAL, "GPU {device}", "is not supported by the driver that is installed",
         "Install the driver, or the open kernel module, that supports this GPU.", _NVIDIA, _LOADED,
         settle_seconds=_START_SECONDS),
    Rule("PCI I/O region",
         r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid(?:.{0,160}\(PCI:(?P<at>[0-9a-f:.]+)\))?",
         "GPU_DRIVER_FAILED", CRITICAL, "a GPU",
         "got no room for its memory from the BIOS or the kernel (BAR invalid)",
         "Turn on `Above 4G Decoding` in the BIOS, or boot with `pci=realloc`.", ("lspci -vv -d 10de:",), _LOADED,
         settle_seconds=_START_SECONDS),
    Rule("nvidia",
         r"^nvidia[\w-]*: (?:disagrees about version of symbol|Unknown symbol|version magic) ?(?P<symbol>\S*)",
         "GPU_DRIVER_FAILED", CRITICAL, "NVIDIA's kernel module", "does not fit the kernel: {symbol}",
         "Build or install the module for the kernel that runs (`dkms status`), or boot the kernel it was built for.",
         ("dkms status", "uname -r", "modinfo nvidia"), _LOADED),
    Rule("GSP", r"NVRM: (?!Xid).{0,160}?(?:waiting for RPC response from GPU(?P<gpu>\d+)|GSP (?:heartbeat"
         r"|task).{0,40}[Tt]im"
         r"|Heartbeat.{0,20}GSP|RPC timeout|(?:cannot proceed with|[Ff]ailed to) boot(?:ing)? GSP"
         r"|GSP-\w+ reported an error)", "GPU_LOST", CRITICAL, SOME_GSP, "gives no answer to the driver",
         "Drain the node and reset the GPU or reboot; if it comes back, update the driver.", _NVIDIA, _LOADED),
    Rule("GSP", r"NVRM: GPU(?:\d+| at PCI:\S+)? (?:GSP RPC buffer contains|RPC history)", "GPU_LOST", CRITICAL,
         SOME_GSP, "gave no answer to the driver, which dumped its calls",
         "Drain the node and reset the GPU or reboot; if it comes back, update the driver.", _NVIDIA, _LOADED),
    Rule("GSP RPC error", r"NVRM: Rate limiting GSP RPC error prints for GPU at PCI:(?P<device>[0-9a-f:]{10,13})",
         "GPU_LOST", CRITICAL, "GPU {device}.0",
         "has firmware (GSP) that does not answer: the driver says that it needs a reset",
         "Drain the node and reset the GPU or reboot; if it comes back, update the driver.", _NVIDIA, _LOADED),
    Rule("nouveau", rf"^nouveau {ADDRESS}: NVIDIA \w+ \(", "GPU_DRIVER_FAILED", WARNING, "GPU {device}",
         "was taken by the driver nouveau, and NVIDIA's was not loaded after it",
         "Keep nouveau from loading (`blacklist nouveau` in /etc/modprobe.d, a new initramfs) and reboot.",
         ("lspci -k -d 10de:", "lsmod | grep nouveau"), _LOADED),
    Rule("nvidia-nvswitch", r"nvidia-nvswitch(?P<device>\d*): (?!SXid)(?!.{0,160}[Nn]on-?fatal).{0,160}?"
         r"(?P<why>(?:[Ff]ailed|[Ff]atal|[Tt]imed? ?out|[Uu]nable)\b.{0,80})",
         "FABRIC_NOT_READY", CRITICAL, "NVSwitch {device}", "is not well, says its driver: {why}",
         "Restart the fabric manager with nothing on the GPUs; if it stays, power the node off and on.",
         ("journalctl -b -u nvidia-fabricmanager", "dmesg -T | grep nvswitch"), _LOADED),
    Rule("Going over RM", r"NVRM: Going over RM unhandled interrupt threshold", "GPU_DRIVER_FAILED", WARNING,
         "a GPU", "raises interrupts that the driver does not know", _REBOOT, _NVIDIA, _LOADED),
    Rule("probe", rf"^(?:nvidia|amdgpu)(?: {ADDRESS})?: probe (?:of (?P<at>\S+)|with driver \w+) failed with error",
         "GPU_LOST", CRITICAL, "GPU {device}{at}", "cannot be started by its driver", _REBOOT, _NVIDIA, _LOADED,
         settle_seconds=_START_SECONDS),
    Rule("D3cold", rf"^(?:nvidia|amdgpu|habanalabs) {ADDRESS}: .{{0,160}}D3cold to D0", "GPU_LOST", CRITICAL,
         "GPU {device}", "cannot be reached on PCIe any more", _REBOOT, _NVIDIA, _LOADED),
)  # fmt: skip

_RESET_DONE: Final = rf"{AMDGPU}.{{0,160}}?GPU [Rr]eset ?\(\d+\) succeeded"
_POWER: Final = "Drain the node and power it off and on; a GPU that does it again has to be replaced."
_PROGRAM: Final = "Look at the program that ran; if it happens with several, update driver and firmware."


class _Judged(NamedTuple):
    """What a kind of message is in a finding: see Rule."""

    code: str
    severity: Severity
    summary: str
    fix: str
    named: str = "GPU {device}"
    closed_by: str = ""
    after: Severity | None = None


_AMD_FINDINGS: Final = {
    Kind.XGMI: _Judged("GPU_ECC_UNCORRECTED", CRITICAL,
                       "reports uncorrectable errors of its XGMI link ({block}, RAS)", _REPLACE),
    Kind.XGMI_PCS: _Judged("GPU_ECC_UNCORRECTED", WARNING, "reports an error of its XGMI link: {error}", _REPLACE),
    Kind.XGMI_TRAINING: _Judged("NVLINK_DOWN", CRITICAL,
                                "did not bring up its XGMI links to the other GPUs at boot: {error}", _POWER),
    Kind.UNCORRECTABLE: _Judged("GPU_ECC_UNCORRECTED", CRITICAL,
                                "has uncorrectable errors in the block {block} (RAS)", _REPLACE),
    Kind.FATAL: _Judged("GPU_ECC_UNCORRECTED", CRITICAL, "stopped for an uncorrectable error ({error}, RAS)", _REPLACE),
    Kind.POISON: _Judged("GPU_ECC_UNCORRECTED", CRITICAL,
                         "read memory that an uncorrectable error had damaged (RAS poison)", _REPLACE),
    Kind.DEFERRED: _Judged("GPU_ECC_UNCORRECTED", WARNING,
                           "found uncorrectable errors in the block {block} that nothing had used yet (RAS, deferred)",
                           _REPLACE),
    Kind.BOOT: _Judged("GPU_LOST", CRITICAL, "failed its own test at boot: {error}", _POWER),
    Kind.NEAR_THRESHOLD: _Judged("GPU_ROW_REMAP_FAILED", WARNING,
                                 "has nearly as many bad pages of memory as its driver allows (90 % of the threshold)",
                                 "Plan to have the GPU replaced."),
    Kind.THRESHOLD: _Judged("GPU_ROW_REMAP_FAILED", CRITICAL, "has too many retired pages of memory",
                            "Have the GPU replaced."),
    Kind.RESET_FAILED: _Judged("GPU_LOST", CRITICAL, "could not be reset: {why}", _POWER, closed_by=_RESET_DONE,
                               after=WARNING),
    Kind.LOST: _Judged("GPU_LOST", CRITICAL, "is lost from the PCIe bus", _REBOOT),
    Kind.NOT_STARTED: _Judged("GPU_LOST", CRITICAL, "cannot be started by its driver", _REBOOT),
    Kind.RING: _Judged("GPU_LOST", WARNING,
                       "did not end its work: ring {ring} timeout. A program's endless kernel does the same", _PROGRAM),
    Kind.SCHEDULER: _Judged("GPU_LOST", CRITICAL, "has a scheduler that does not answer (MES or HWS)", _REBOOT,
                            closed_by=_RESET_DONE, after=WARNING),
    Kind.SMU: _Judged("GPU_LOST", WARNING, "has power firmware that does not answer: {error}", _POWER,
                      closed_by=_RESET_DONE),
    Kind.RESET_DONE: _Judged("GPU_LOST", WARNING,
                             "were reset by their driver: what ran on them lost its memory", _PROGRAM, "AMD GPUs"),
}  # fmt: skip


def _amd_rule(message: AmdgpuMessage) -> Rule:
    code, severity, summary, fix, named, closed_by, after = _AMD_FINDINGS[message.kind]
    named = named if "(?P<device>" in message.pattern else "an AMD GPU"
    return Rule(message.word, message.pattern, code, severity, named, summary, fix, _AMD, closed_by, after)


AMD_RULES: Final[tuple[Rule, ...]] = tuple(map(_amd_rule, AMDGPU_MESSAGES))

INTEL_RULES: Final[tuple[Rule, ...]] = (
    Rule("edged", rf"^(?:xe|i915) {ADDRESS}: .{{0,160}}(?:declared device \S+ as wedged|device is wedged)", "GPU_LOST",
         CRITICAL, "GPU {device}", "is given up by its driver (wedged)", _REBOOT, _INTEL),
    Rule("[drm]", rf"^(?:xe|i915) {ADDRESS}: (?P<why>.{{0,160}}(?:device lost|fatal hardware error|[Uu]ncorrectable"
         rf"|[Ff]ailed to " rf"reset).{{0,60}})", "GPU_LOST", CRITICAL, "GPU {device}", "has failed: {why}", _REBOOT,
         _INTEL),
    Rule("GPU HANG", rf"^(?:xe|i915) {ADDRESS}: .{{0,160}}GPU HANG: ecode (?P<why>\S+ in \S+)", "GPU_LOST", WARNING,
         "GPU {device}", "did not end its work: GPU HANG {why}. A program's endless kernel does the same",
         "Look at the program that ran; if it happens with several, update driver and firmware.", _INTEL),
)  # fmt: skip

GAUDI_RULES: Final[tuple[Rule, ...]] = (
    Rule("heartbeat", _HL + r"(?:Device )?heartbeat failed(?P<why>.{0,60})", "GPU_LOST", CRITICAL, "Gaudi {device}",
         "lost its heartbeat: it does not answer its driver{why}", _REBOOT, _GAUDI),
    Rule("ailed to reset", _HL + r"[Ff]ailed to reset", "GPU_LOST", CRITICAL, "Gaudi {device}",
         "could not be reset and cannot be used", _REBOOT, _GAUDI),
    Rule("habanalabs", _HL +
         r"(?P<why>[^:]{0,60}(?:DERR|SEI_SEVERE|uncorrectable|UNCORRECTABLE)\b.{0,60}|.{0,160}ECC "
         r"error.{0,160}critical 1)", "GPU_ECC_UNCORRECTED", CRITICAL, "Gaudi {device}",
         "has an ECC error that was not corrected: {why}", _REPLACE, _GAUDI),
    Rule("PCI link", _HL + r"PCI link is disconnected", "GPU_LOST", CRITICAL, "Gaudi {device}",
         "lost its PCIe link", _REBOOT, _GAUDI),
)  # fmt: skip
