"""The format `job log`: what a job and its launcher printed, all ranks in one file or each in its own."""

from __future__ import annotations

from collections.abc import Iterable

from laggard.diagnose.failing_lines import ends_well
from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.job.events import JobEvidence
from laggard.diagnose.job.findings import judge_job
from laggard.diagnose.job.reader import JobLogReader
from laggard.diagnose.nccl import read_hardware_of_log, with_settings
from laggard.diagnose.settings_compared import SettingsReader
from laggard.nccl.log.reader import NcclLogReader
from laggard.probes.nccl.model.job import HardwareFacts
from laggard.probes.nccl.rules.log_findings import judge_nccl_log


def recognise(content: FileContent) -> bool:
    """Returns whether anything in the text is a job's failure, or a job's progress with its ranks."""
    reader = JobLogReader()
    reader.begin_file()
    for piece in content.pieces():
        reader.feed(piece)
        if _is_job(reader.evidence(ended=False)):
            return True
    return _is_job(reader.evidence())


def _is_job(evidence: JobEvidence) -> bool:
    trains = bool(evidence.ranks_seen and sum(evidence.progress))
    return bool(evidence.events or evidence.statuses or evidence.nan) or trains


def judge_together(contents: Iterable[FileContent], hardware: KnownHardware) -> FileJudgement:
    """Judges the files as the output of one job, and what NCCL logged within it."""
    job, nccl, settings, piece = JobLogReader(), NcclLogReader(), SettingsReader(), ""
    for content in contents:
        job.begin_file()
        for piece in content.pieces():
            job.feed(piece)
            nccl.feed(piece)
            settings.feed(piece, content.host)
        nccl.end()
        del content  # while the next one is read
    evidence = job.evidence()
    found = judge_job(evidence)
    network = judge_nccl_log(nccl.log(), HardwareFacts(rdma=hardware.rdma, gpus=hardware.gpus))
    facts = {
        "ranks_seen": len(evidence.ranks_seen),
        "world_size": evidence.world_size,
        "failures": len(evidence.events),
        "failures_left_out": evidence.dropped,
        "nccl": network.facts if network.facts["processes"] else None,
    }
    return FileJudgement(
        (*found, *with_settings(network.findings, settings, not found and ends_well(piece))), facts, "", evidence, found
    )


JOB_LOG = FileFormat(
    "job log",
    recognise,
    None,
    read_hardware_of_log,
    judge_together,
    whole="job",
    end_matters=True,
    holds_others=True,
    covers=("NCCL log",),
    takes=lambda line: False,
)
