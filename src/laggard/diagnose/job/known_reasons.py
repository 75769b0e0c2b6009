"""The reasons that NCCL, CUDA, torch's watchdog and launchers give themselves: each with the advice that its error
number, its source file or its words call for, in place of "run again with NCCL_DEBUG=INFO".

Sources: NCCL 2.7 to 2.28 (src/misc/ibvwrap.cc, transport/net_ib.cc, nvls.cc, mnnvl.cc, bootstrap.cc, graph/),
aws-ofi-nccl, torch 2.2 to 2.10 (ProcessGroupNCCL.cpp, c10d/socket.cpp), the CUDA runtime's error numbers, Slurm's and
Ray's own words.
"""

from __future__ import annotations

import re
from typing import Final

from laggard.diagnose.job.events import DIED, EXCEPTION_NAME, FAILED, NCCL_WARN, RAISED, SUMMARY, WAITED, Rule, rule_of

_ASYNC: Final = (
    rf"{NCCL_WARN}.*NET/IB ?: (?:([\w.-]+):?\d*:? ?)?(?:Got (?:non-fatal )?async (?:error )?event ?:"
    r"|async (?:non-)?fatal event(?: on \w+ \S+.*?)?:)"
)
_DEVICE_COUNT: Final = rf"{RAISED}.*(?:cudaGetDeviceCount|cuInit|cudaSetDevice|cuda\w+)\b.*\bError "
_TEST: Final = r"(?:\S+: )?Test CUDA failure \S+:\d+ "

REASONS: Final[tuple[tuple[str, str, str, str], ...]] = (
    # code, kind, what NCCL says, summary
    ("MEMLOCK_LIMIT", "nccl_memlock", r"ibv_(?:reg_\w+|create_cq|create_qp|alloc_pd)\w* failed.*Cannot allocate memory",
        "the NIC could not register memory: the limit of locked memory (ulimit -l) is too low"),
    ("JOB_NCCL_ERROR", "nccl_interface",
        r"[Nn]o (?:socket )?interface found|Bootstrap : no socket|Could not find .*interface|No network interface",
        "NCCL found no network interface to use (NCCL_SOCKET_IFNAME)"),
    ("JOB_NCCL_ERROR", "nccl_efa",
        r"NET/OFI .*(?:insert remote address|address vector|RC: -22|Unreachable remote|unresponsive receiver)",
        "EFA cannot reach the peer: its security group has to let all traffic of the group in and out"),
    ("JOB_NCCL_ERROR", "nccl_plugin",
        r"NET/OFI (?:Unable to find a protocol|aws-ofi-nccl initialization failed|Initializing plugin failed"
        r"|No eligible providers)|network AWS Libfabric not found|Failed to initialize NET plugin",
        "the network plugin does not start: libfabric offers no provider (EFA)"),
    ("FABRIC_NOT_READY", "nccl_nvls",
        r"nvls\.cc:\d+ .*(?:Cuda failure|CUDA failure|Failed)|Failed to bind NVLink SHARP|cuMulticast\w+ failed",
        "NVLink SHARP (NVLS) cannot be used: the fabric manager or an NVSwitch is not well"),
    ("FABRIC_NOT_READY", "nccl_imex",
        r"MNNVL .*(?:not working|IMEX)|[Ii][Mm][Ee][Xx] (?:channel|daemon|domain)|p2p\.cc:\d+ .*(?:MNNVL 1|fabric"
        r" handle)", "memory of other nodes cannot be mapped over NVLink: the IMEX service or channel is not there"),
    ("P2P_DISABLED", "nccl_p2p", r"P2P is disabled between NVLINK connected GPUs (\d+) and (\d+)",
        "GPUs {0} and {1} are connected by NVLink, and cannot use it: a fault of the hardware or its driver"),
    ("JOB_DISK_FULL", "shared_memory",
        r"(?:creating shared memory segment|shm_open|posix_fallocate|ftruncate|attaching to shared memory)"
        r".{0,80}(?:/dev/shm|nccl-|No space)|/dev/shm/nccl-\S+.*(?:No space|failed|size \d+)",
        "NCCL could not make its shared memory: /dev/shm is full or too small"),
    ("JOB_NCCL_ERROR", "nccl_topology", r"Could not open XML (?:topology|graph) file (\S+)",
        "NCCL cannot read the topology file {0}"),
    ("JOB_NCCL_ERROR", "nccl_route",
        r"(?:connect|Connect)\w* .*(?:failed|returned).*(No route to host|Network is unreachable)|(No route to host)",
        "a peer cannot be reached: {0}{1} (the interface, the address or a firewall)"),
    ("JOB_NCCL_ERROR", "nccl_loopback",
        r"(?:connect|Connect|socket).*(?:127\.0\.\d+\.\d+|169\.254\.|172\.17\.|fe80:).*(?:refused|unreachable|failed)",
        "NCCL uses an interface that other nodes cannot reach (loopback, docker0, link-local)"),
    ("OPEN_FILES_LIMIT", "open_files", r"Too many open files", "the process has no file descriptor left (ulimit -n)"),
)  # fmt: skip
"""What NCCL's last warning, or the text below `Last error:`, says of the cause."""

_SEARCHED: Final = tuple(
    (re.compile(text), rule_of(code, kind, FAILED, rf"{NCCL_WARN}.*(?:{text})", summary))
    for code, kind, text, summary in REASONS
)


def reason_rule(text: str) -> tuple[Rule, tuple[str, ...]] | None:
    """The rule whose reason stands in a text of NCCL, with what it names."""
    for pattern, rule in _SEARCHED:
        if match := pattern.search(text):
            return rule, tuple(group or "" for group in match.groups())
    return None


KNOWN_REASONS: Final[tuple[Rule, ...]] = (
    rule_of("JOB_DISK_FULL", "disk", FAILED,
        rf"{EXCEPTION_NAME}: .*(?:inline_container\.cc:\d+\].*(?:unexpected pos|write failed|failed writing)"
        r"|PytorchStreamWriter failed writing)",
        "torch.save could not write its file: the disk is full, the quota is used up, or the storage failed"),
    rule_of("JOB_STORAGE_ERROR", "object_storage", FAILED,
        rf"(?:[\w.]*\.)?(?:S3\w*Error|ClientError|{EXCEPTION_NAME}): .*(?:\(SlowDown\)|reached max retries"
        r"|Please reduce your request rate|\(RequestTimeout\)|\(503\)).*",
        "the object storage refused or did not answer"),
    rule_of("FABRIC_NOT_READY", "nccl_nvls", FAILED, r".*nvls\.cc:\d+ NCCL WARN .*(?:failure|[Ff]ailed)",
        "NVLink SHARP (NVLS) cannot be used: the fabric manager or an NVSwitch is not well"),
    rule_of("FABRIC_NOT_READY", "nccl_imex", FAILED,
        r".*(?:mnnvl\.cc|p2p\.cc):\d+ NCCL WARN .*(?:MNNVL 1|fabric handle|IMEX)",
        "memory of other nodes cannot be mapped over NVLink: the IMEX service or channel is not there"),
    *(rule for _, rule in _SEARCHED),
    rule_of("MEMLOCK_LIMIT", "nccl_memlock", FAILED, rf"{NCCL_WARN}.*ibv_.*ENOMEM", "locked memory is too little"),
    # A GPU or its driver, and not the program
    rule_of("FABRIC_MANAGER_DOWN", "cuda_802", FAILED, _DEVICE_COUNT + r"802\b",
        "CUDA does not start: error 802, system not yet initialized (the fabric manager)"),
    rule_of("FABRIC_MANAGER_DOWN", "cuda_802", FAILED, rf"(?:{RAISED}.*|{_TEST}')system not yet initialized",
        "CUDA does not start: system not yet initialized (the fabric manager)"),
    rule_of("JOB_CUDA_ERROR", "cuda_803", FAILED,
        rf"(?:{_DEVICE_COUNT}80[34]\b|{RAISED}.*(?:unsupported display driver|forward compatibility was attempted))",
        "CUDA does not start: the driver and its libraries do not fit (error 803 or 804)"),
    rule_of("JOB_CUDA_ERROR", "cuda_setup", FAILED, _DEVICE_COUNT + r"(3|100|101|999)\b:? ?(.*)",
        "CUDA does not start: error {0} {1}"),
    rule_of("JOB_CUDA_ERROR", "cuda_hardware", FAILED,
        rf"{RAISED}.*(?:CUDA|HIP) error: (.*(?:NVLink|nvlink|contained|hardware|device (?:is )?lost).*)",
        "the GPU failed, not the program: {0}"),
    rule_of("JOB_CUDA_ERROR", "cuda_hardware", FAILED, rf"(?:{RAISED}.*UR_RESULT_ERROR_DEVICE_LOST"
        r"|.*Unable to determine the device handle for GPU ?(\S+?):? .*lost)(.*)", "the GPU {0} is lost"),
    # Events of a port or of a queue pair; those of the subnet's manager, and of addresses, end nothing
    rule_of("RDMA_MTU_LOW", "nccl_queue_pair", FAILED,
        rf"{_ASYNC} *(.*(?:local access violation|access violation|QP (?:request|access) .*error|path migration"
        rf" failed).*)",
        "a queue pair of {0} failed: {1} (the two ends' MTUs differ, or the IOMMU or ACS is in the way)"),
    rule_of("JOB_NCCL_ERROR", "nccl_port", FAILED, rf"{_ASYNC} *(.*(?:port error|port down|device fatal|fatal).*)",
        "RDMA device {0} reported: {1}"),
    # Watchdogs that stand still themselves
    rule_of("JOB_COLLECTIVE_TIMEOUT", "watchdog_stuck", WAITED,
        r".*watchdog got stuck for (\d+) seconds without making progress",
        "torch's watchdog made no progress for {0} s: a call of CUDA or NCCL did not return"),
    rule_of("JOB_COLLECTIVE_TIMEOUT", "watchdog_stuck", WAITED,
        r".*[Tt]erminat\w+ the process .*due to ProcessGroup\w+ watchdog hang",
        "torch's watchdog stood still, in a call of CUDA or NCCL that did not return"),
    rule_of("JOB_COLLECTIVE_TIMEOUT", "engine_stuck", FAILED, r"Watchdog timeout \(self\.watchdog_timeout=(\d+)\)",
        "SGLang's scheduler made no progress for {0} s"),
    rule_of("JOB_COLLECTIVE_TIMEOUT", "stalled", WAITED,
        r".*stall_inspector\.cc.*One or more tensors were submitted to be",
        "Horovod: some ranks did not submit tensors that others wait for"),
    # Ranks that do not meet
    rule_of("JOB_RENDEZVOUS_FAILED", "address_in_use", FAILED,
        r"\[?[WE]?.{0,80}(?:server socket has failed to (?:bind|listen)|failed to bind).{0,80}(?:\[?::\]?|0\.0\.0\.0"
        r"|[\d.]+):(\d+).*(?:errno: 98|[Aa]ddress already in use)",
        "port {0} of the rendezvous is taken: address already in use"),
    rule_of("JOB_RENDEZVOUS_FAILED", "loopback", FAILED,
        rf"(?:{EXCEPTION_NAME}: )?.*Gloo connectFullMesh failed.*(?:127\.0\.\d+\.\d+|no error).*",
        "ranks announce 127.0.0.1 to each other: the host's name resolves to loopback"),
    # Launchers
    rule_of("JOB_RENDEZVOUS_FAILED", "slurm_launch", FAILED,
        r"srun: error: Task launch for StepId=\S+ failed on node (\S+): (.*)",
        "Slurm could not start a task on {0}: {1}"),
    rule_of("JOB_KILLED", "node_failed", FAILED,
        r"(?:srun|salloc|sbatch): error: .{0,80}?Prolog (?:failure|failed|hung) on node (\S+)",
        "Slurm's prolog failed on {0}"),
    rule_of("JOB_KILLED", "ray_worker", DIED,
        r"(?:\(raylet\S*.*?\) )?(?:\[.*?\] )?A worker died or was killed while executing a task.*?(?:Worker IP"
        r" address: (\S+))?", "a worker of Ray ended, how is not told {0}"),
    rule_of("JOB_RENDEZVOUS_FAILED", "ray_gcs", WAITED, r".*Failed to connect to GCS.*",
        "Ray's head (GCS) cannot be reached"),
    rule_of("JOB_KILLED", "daemon_lost", DIED,
        r"(?:PRTE|ORTE|PRRTE|Open MPI) has lost communication with a remote daemon.*",
        "mpirun lost a node's daemon: the node, or its network, is gone"),
    rule_of("JOB_KILLED", "jax_task", SUMMARY,
        r".*(?:coordination_service|coordination service).*(?:heartbeat time(?:d out|out\.)|has been set to ERROR).*",
        "a task of JAX gave no sign of life"),
    rule_of("JOB_KILLED", "ray_worker", DIED,
        r"The actor is dead because its worker process has died\. Worker exit type: ((?!INTENDED)\w+)",
        "an actor of Ray lost its process, how is not told ({0})"),
    # Megatron's rerun machine, which names the rank and its node
    rule_of("JOB_NAN_LOSS", "nan", FAILED,
        r"(?:ERROR:[\w.]{1,80}:)?Unexpected result (nan|inf|-inf) on rank (?P<rank>\d+) at iteration #(\d+) .*",
        "Megatron got {0} in iteration {2}"),
    rule_of("JOB_EXCEPTION", "rerun", FAILED,
        r"(?:ERROR:[\w.]{1,80}:)?Rank (?P<rank>\d+), node (?P<host>[\w.-]+), device (\d+), iteration #(\d+): "
        r"(.*(?:unexpected result is (?:not )?reproducible|(?:transient|persistent) error).*)",
        "Megatron checked a result of device {2} in iteration {3} again: {4}"),
    # Communication beside NCCL
    rule_of("JOB_COLLECTIVE_TIMEOUT", "watchdog", WAITED, rf"{RAISED}DeepEP error: ((?:CPU recv )?timeout.*)",
        "DeepEP's exchange between experts did not end in time: {0}"),
    rule_of("JOB_COLLECTIVE_TIMEOUT", "watchdog", WAITED,
        r"DeepEP (?:\w+ ){1,4}timeout\b.{0,40}?, (?:channel|rank)\b.*",
        "DeepEP's exchange between experts did not end in time"),
    rule_of("JOB_NCCL_ERROR", "nccl_peer", SUMMARY,
        r"(?:[\w.]*\.)?nixl\w*Error: (NIXL_ERR_(?:REMOTE_DISCONNECT|BACKEND|NOT_FOUND))\b.*",
        "NIXL lost its peer, a remote process ended or the network failed: {0}"),
    # What a process may not have
    rule_of("JOB_EXCEPTION", "process_limit", FAILED,
        r"OpenBLAS blas_thread_init: pthread_create.{0,60}(Resource temporarily unavailable|Operation not permitted)"
        r"|RuntimeError: can't start new thread|\S*: fork: (?:retry: )?Resource temporarily unavailable",
        "no thread or process can be started: the limit of processes (ulimit -u, RLIMIT_NPROC, the container's "
        "pids.max) is reached"),
    rule_of("GPU_DRIVER_FAILED", "container_cli", FAILED,
        r"(?:(?:docker: |Error response from ).{0,600}?)?nvidia-container-cli: ((?:initialization|detection|mount"
        r"|ldcache|container|device|requirement) error: .{1,200})",
        "the container gets no GPU: nvidia-container-cli says {0}"),
    # Storage, by the words of what writes
    rule_of("JOB_STORAGE_ERROR", "object_storage", FAILED,
        r"[\w.]*(?:ReadTimeoutError|ConnectTimeoutError|EndpointConnectionError|IncompleteReadError)(?:: (.*)|$)",
        "the object storage did not answer in time: {0}"),
    rule_of("JOB_STORAGE_ERROR", "permission", FAILED, r"(?:[\w.]*\.)?PermissionError: (.*)",
        "a file may not be read or written: {0}"),
)  # fmt: skip
"""The rules of these reasons, tried before all others."""
