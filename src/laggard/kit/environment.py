"""laggard's environment variables, and the paths and names that follow from the environment.

docs/hooks.md describes the variables. Standard library only: the training process imports this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

ENV_OFF: Final = "LAGGARD_OFF"
ENV_RANK_DIR: Final = "LAGGARD_RANK_DIR"
ENV_JOB_ID: Final = "LAGGARD_JOB_ID"
ENV_NODE: Final = "LAGGARD_NODE"
ENV_RECORD_DIR: Final = "LAGGARD_RECORD_DIR"
ENV_EXPORT: Final = "LAGGARD_EXPORT"
ENV_HOST_CLOCK: Final = "LAGGARD_HOST_CLOCK"
ENV_STATE_DIR: Final = "LAGGARD_STATE_DIR"
ENV_NCCL_LOG: Final = "LAGGARD_NCCL_LOG"
ENV_RANK_PROCESS: Final = "LAGGARD_RANK_PROCESS"
ENV_READER: Final = "LAGGARD_READER"
ENV_RUNBOOKS: Final = "LAGGARD_RUNBOOKS"
ENV_GATE_TICKET: Final = "LAGGARD_GATE_TICKET"
ENV_GATE_JOBS: Final = "LAGGARD_GATE_JOBS"
ENV_RING_TOKEN: Final = "LAGGARD_RING_TOKEN"
ENV_RING_TOKEN_FILE: Final = "LAGGARD_RING_TOKEN_FILE"
ENV_STACKS: Final = "LAGGARD_STACKS"
ENV_HANG_DIR: Final = "LAGGARD_HANG_DIR"
ENV_COLLECTOR: Final = "LAGGARD_COLLECTOR"
ENV_REDUCE_SCATTER: Final = "LAGGARD_REDUCE_SCATTER"
ENV_ANSWER: Final = "LAGGARD_ANSWER"
ENV_DIGEST_STEPS: Final = "LAGGARD_DIGEST_STEPS"

SHARED_RANK_DIR: Final = "/run/laggard/ranks"
FALLBACK_RANK_DIR: Final = "/dev/shm/laggard"


def rank_dir(environ: Mapping[str, str]) -> str:
    """The directory of this node's rank files: LAGGARD_RANK_DIR, else /run/laggard/ranks where that exists, else
    /dev/shm/laggard."""
    chosen = environ.get(ENV_RANK_DIR)
    if chosen:
        return chosen
    return SHARED_RANK_DIR if os.path.isdir(SHARED_RANK_DIR) else FALLBACK_RANK_DIR


def state_dir(environ: Mapping[str, str]) -> str:
    """The directory where this user's laggard keeps its state from one run to the next: LAGGARD_STATE_DIR, else
    /run/laggard/state for root, else a directory of the user's own."""
    if environ.get(ENV_STATE_DIR):
        return environ[ENV_STATE_DIR]
    if os.geteuid() == 0:
        return "/run/laggard/state"
    runtime = environ.get("XDG_RUNTIME_DIR")
    return os.path.join(runtime, "laggard") if runtime else f"/tmp/laggard-{os.geteuid()}"


def job_id(environ: Mapping[str, str]) -> str:
    """The job's name: LAGGARD_JOB_ID, SLURM_JOB_ID, torchelastic's run id, else a hash of its rendezvous address."""
    for variable in (ENV_JOB_ID, "SLURM_JOB_ID"):
        if environ.get(variable):
            return environ[variable]
    run_id = environ.get("TORCHELASTIC_RUN_ID", "")
    if run_id and run_id != "none":  # torchrun's default, the same for every job
        return run_id
    import hashlib  # only here: it loads OpenSSL, a tenth of the gate's time, and the gate needs no job

    address = f"{environ.get('MASTER_ADDR', 'localhost')}:{environ.get('MASTER_PORT', '0')}"
    return "job-" + hashlib.sha256(address.encode()).hexdigest()[:12]


def node_name(environ: Mapping[str, str]) -> str:
    """The name of this machine in reports: LAGGARD_NODE, else its host name."""
    return environ.get(ENV_NODE) or os.uname().nodename
