"""The formats that `laggard diagnose` recognises, and of which a file or its parts are. A new one is a file of this
folder, or of a folder in it, and a name in a list here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from laggard.diagnose.archive import MAGIC
from laggard.diagnose.file_format import FileContent, FileFormat, KnownHardware
from laggard.diagnose.gpu_tools.amd_smi import AMD_SMI
from laggard.diagnose.gpu_tools.dcgm import DCGM_DIAG, DCGM_DIAG_JSON, DCGM_HEALTH
from laggard.diagnose.gpu_tools.nvidia_smi import NVIDIA_SMI, NVIDIA_SMI_TABLE, NVIDIA_SMI_TEXT
from laggard.diagnose.gpu_tools.rocm_smi import ROCM_SMI
from laggard.diagnose.gpu_tools.smi_table import HL_SMI
from laggard.diagnose.gpu_tools.topology import NCCL_TOPOLOGY, NVLINK, TOPOLOGY
from laggard.diagnose.health_services import GPUD, NVSENTINEL, SERVICE_STATUS
from laggard.diagnose.input_file import InputFile
from laggard.diagnose.job_log import JOB_LOG, TRAINING_OUTPUT
from laggard.diagnose.kernel_log import FILE_SYSTEM_LOG, KERNEL_LOG
from laggard.diagnose.lspci import LSPCI
from laggard.diagnose.nccl import NCCL_LOG, NCCL_TESTS, RAS_REPORT, RAS_REPORT_JSON
from laggard.diagnose.parts import parts_of
from laggard.diagnose.pastes.interfaces import ETHTOOL, ETHTOOL_FEC, ETHTOOL_MODULE, IP_LINK
from laggard.diagnose.pastes.pods import PODS
from laggard.diagnose.pastes.port_counters import ETHTOOL_COUNTERS, IBDIAGNET, MLXLINK, PERFQUERY
from laggard.diagnose.pastes.rdma_ports import RDMA_PORTS
from laggard.diagnose.pastes.resources import DISKS, LIMITS, MEMORY
from laggard.diagnose.pastes.slurm import SLURM_JOBS, SLURM_NODES
from laggard.diagnose.pastes.stuck_processes import STUCK_PROCESSES, TORCH_LOCK
from laggard.diagnose.pastes.traffic_rules import FIREWALL, ROUTES, TRAFFIC_CONTROL
from laggard.diagnose.profilers import INSPECTOR_LOG, INSPECTOR_METRICS, TRACEML, TRACEML_TEXT
from laggard.diagnose.recordings import FIRST_BYTES, recording_kind
from laggard.diagnose.settings import DEEPSPEED_CONFIG, ENVIRONMENT, TUNER_TABLE
from laggard.diagnose.stack_dumps import DEBUG_STACKS, DEBUG_TABLES, OWN_SAMPLES, RANK_EVENTS, STACK_DUMPS, UNANSWERED

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


FORMATS: Final[tuple[FileFormat, ...]] = (
    NVIDIA_SMI,
    NVIDIA_SMI_TEXT,
    TOPOLOGY,
    NVLINK,
    NVIDIA_SMI_TABLE,
    HL_SMI,
    AMD_SMI,
    ROCM_SMI,
    SERVICE_STATUS,
    DCGM_DIAG,
    DCGM_DIAG_JSON,
    DCGM_HEALTH,
    RANK_EVENTS,
    OWN_SAMPLES,
    RAS_REPORT,
    RAS_REPORT_JSON,
    GPUD,
    NVSENTINEL,
    DEBUG_STACKS,
    DEBUG_TABLES,
    TRACEML,
    TRACEML_TEXT,
    DEEPSPEED_CONFIG,
    INSPECTOR_LOG,
    INSPECTOR_METRICS,
    TUNER_TABLE,
    NCCL_TESTS,
    LSPCI,
    *TOOL_OUTPUTS,
    UNANSWERED,
    STACK_DUMPS,
    KERNEL_LOG,
    FILE_SYSTEM_LOG,
    JOB_LOG,
    NCCL_LOG,
    ENVIRONMENT,
    TRAINING_OUTPUT,
)
"""The first that recognises a file judges it: the strictest come first."""


_PACKED: Final = {b"\xfd7zXZ\x00": ("xz", "xz -dc"), b"BZh": ("bzip2", "bzip2 -dc")}
_BEGINNINGS: Final = {
    b"PK\x03\x04": "is a zip archive of a program's own (torch.save writes one), which holds no logs",
    b"SQLite format 3\0": "is an SQLite database (TraceML keeps one: give its final_summary.json)",
    b"\x80": "is a pickle, which laggard never loads: torchfrtrace reads the Flight Recorder's dumps",
    b"\x7fELF": "is a program or a core dump",
}
_TAR: Final = (257, b"ustar")
_BINARY_SHARE: Final = 0.1


def what_is_known(content: FileContent) -> str:
    """Returns what the file is instead, to follow its name in a sentence."""
    first = content.first_bytes
    if not first:
        return "" if content.problem else "is empty"
    for beginning, (name, command) in _PACKED.items():
        if first.startswith(beginning):
            return f"is packed with {name}: unpack it first, as in `{command} FILE | laggard diagnose -`"
    for beginning, known in _BEGINNINGS.items():
        if first.startswith(beginning):
            return known
    if first[_TAR[0] :].startswith(_TAR[1]):
        return "is a tar archive: give the files in it"
    if _is_binary(first):
        return "holds binary data of no known format"
    return "is of no known format (`laggard diagnose --help` lists those that are)"


def is_text(content: FileContent) -> bool:
    """Returns whether a content is a text, and is packed in no way that is known."""
    first = content.first_bytes
    packed = first.startswith((*_PACKED, *_BEGINNINGS)) or first[_TAR[0] :].startswith(_TAR[1])
    return bool(first) and not packed and not _is_binary(first)


def _is_binary(data: bytes) -> bool:
    strange = sum(byte < 32 and byte not in b"\t\n\r\x1b\x08\x0c" for byte in data)
    return strange > _BINARY_SHARE * len(data)


_NUMBER = re.compile(r"\d+")
FORMAT_NAMES = ", ".join(file_format.name for file_format in FORMATS)


class RecognisedFile(NamedTuple):
    file: InputFile
    formats: tuple[FileFormat, ...]
    """The formats that the file is judged as: several where it is a paste of several tools' output."""
    hardware: KnownHardware
    problem: str
    """The reason why the format judges only a part of the file; or, without a format, everything that is known of the
    file."""
    recording: str = ""
    """The kind of recording that a part of a file is; empty: it is none. It is judged with the others of its kind."""


class Siblings:
    """Remembers files whose paths differ in numbers alone, as the logs of a job's ranks do: after some of one kind the
    next is of it too, and is not searched for any other."""

    _ALIKE: Final = 4
    _MIN_BYTES: Final = 32 << 10
    """The size below which a file is recognised by itself: people paste less by hand."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def recognise(self, file: InputFile) -> tuple[RecognisedFile, ...]:
        """As recognise() does, for what is given beside others."""
        shape = _NUMBER.sub("0", file.path)
        if self._seen.get(shape, 0) >= self._ALIKE:
            content = file.read()
            if content.held_bytes >= self._MIN_BYTES and is_text(content):
                return (RecognisedFile(file, (JOB_LOG,), KnownHardware(), content.problem),)
        found = recognise(file)
        alike = len(found) == 1 and found[0].formats and all(each.whole == JOB_LOG.whole for each in found[0].formats)
        self._seen[shape] = self._seen.get(shape, 0) + 1 if alike else 0
        return found


def recognise(file: InputFile) -> tuple[RecognisedFile, ...]:
    """Returns the file; or those of its parts that are of a known format, where one of them is the output of a tool.
    What a job prints may hold prompts and heads too, and is one whole."""
    content = file.read()
    parts = parts_of(file, content)
    whole = None if parts.is_archive else _recognise(file, content)
    known = tuple(found for part in parts.files if (found := _recognise_part(part)).formats or found.recording)
    if whole and whole.formats and all(file_format.shares for file_format in whole.formats):
        return (whole, *filter(_is_of_a_tool, known))  # its readers know prompts, and the commands behind them
    if parts.is_archive:
        told = parts.problem or ("" if known else f"none of its {len(parts.files)} files is of a known format")
        rest = RecognisedFile(file, (), KnownHardware(), f"is a {parts.packing} archive: {told}") if told else None
        return (*known, *((rest,) if rest else ()))
    if any(part.recording or not all(it.holds_others for it in part.formats) for part in known):
        return known
    return (whole or _recognise(file, content),)


def _recognise_part(part: InputFile) -> RecognisedFile:
    content = part.read()
    if kind := recording_kind(content.raw_beginning[:FIRST_BYTES]):
        return RecognisedFile(part, (), KnownHardware(), "", kind)
    return _recognise(part, content)


def _is_of_a_tool(part: RecognisedFile) -> bool:
    """Whether a part is the output of a tool whose reader takes one output alone."""
    return not any(file_format.shares or file_format.holds_others for file_format in part.formats)


def _recognise(file: InputFile, content: FileContent) -> RecognisedFile:
    formats = () if content.first_bytes.startswith(MAGIC) or not content.text else _formats_of(content)
    if not formats:
        known = "; ".join(filter(None, (what_is_known(content), content.problem)))
        return RecognisedFile(file, (), KnownHardware(), known)
    end_matters = any(file_format.end_matters for file_format in formats)
    problem = content.problem if end_matters else content.problem_of_the_beginning
    hardware = merge_hardware(file_format.read_hardware(content) for file_format in formats)
    return RecognisedFile(file, formats, hardware, problem)


def _formats_of(content: FileContent) -> tuple[FileFormat, ...]:
    """Returns each format that shares its texts and recognises the file, and the first of the others that does."""
    formats: list[FileFormat] = []
    alone = False
    for each in FORMATS:
        if alone and not each.shares:
            continue
        if not (each.fallback and formats) and each.recognise(content):
            formats.append(each)
            alone |= not each.shares
    return tuple(formats)


def merge_hardware(shown: Iterable[KnownHardware]) -> KnownHardware:
    """Merges what the files show of the machine; where several show the same thing, the first counts."""
    gpus, rdma = None, None
    for each in shown:
        gpus = each.gpus if gpus is None else gpus
        rdma = each.rdma if rdma is None else rdma
    return KnownHardware(gpus, rdma)
