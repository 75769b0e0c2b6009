"""The formats that `laggard diagnose` recognises: a new one is a file of this folder and a name in this list."""

from __future__ import annotations

from typing import Final

from laggard.diagnose.debug_server import DEBUG_STACKS, DEBUG_TABLES
from laggard.diagnose.deepspeed import DEEPSPEED_CONFIG
from laggard.diagnose.environment import ENVIRONMENT
from laggard.diagnose.file_format import FileFormat
from laggard.diagnose.gpu_tools.amd_smi import AMD_SMI
from laggard.diagnose.gpu_tools.dcgm_diag import DCGM_DIAG, DCGM_DIAG_JSON
from laggard.diagnose.gpu_tools.dcgm_health import DCGM_HEALTH
from laggard.diagnose.gpu_tools.hl_smi import HL_SMI
from laggard.diagnose.gpu_tools.nvlink_status import NVLINK
from laggard.diagnose.gpu_tools.rocm_smi import ROCM_SMI
from laggard.diagnose.gpu_tools.service_status import SERVICE_STATUS
from laggard.diagnose.gpu_tools.smi import NVIDIA_SMI_TABLE
from laggard.diagnose.gpu_tools.topology import TOPOLOGY
from laggard.diagnose.health_services import GPUD, NVSENTINEL
from laggard.diagnose.inspector import INSPECTOR_LOG, INSPECTOR_METRICS
from laggard.diagnose.job_log import JOB_LOG, TRAINING_OUTPUT
from laggard.diagnose.kernel_log import FILE_SYSTEM_LOG, KERNEL_LOG
from laggard.diagnose.lspci import LSPCI
from laggard.diagnose.nccl_log import NCCL_LOG
from laggard.diagnose.nccl_tests import NCCL_TESTS
from laggard.diagnose.nvidia_smi import NVIDIA_SMI, NVIDIA_SMI_TEXT
from laggard.diagnose.own_samples import OWN_SAMPLES
from laggard.diagnose.pastes.tools import TOOL_OUTPUTS
from laggard.diagnose.rank_events import RANK_EVENTS
from laggard.diagnose.ras_report import RAS_REPORT, RAS_REPORT_JSON
from laggard.diagnose.stack_dumps import STACK_DUMPS
from laggard.diagnose.traceml import TRACEML, TRACEML_TEXT
from laggard.diagnose.tuner_table import TUNER_TABLE
from laggard.diagnose.unanswered import UNANSWERED

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
