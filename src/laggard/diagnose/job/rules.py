"""The lines that say why a job failed, each with its code, weight and kind. A pattern begins where the line does, after
the heads of launchers; prose, settings and help that only speak of a failure do not match.

Sources: torch 2.0 to 2.13 (c10/util/Exception.h, c10d/ProcessGroupNCCL.cpp, c10d/socket.cpp, elastic/multiprocessing,
utils/data/_utils), NCCL 2.7 to 2.32 (src/transport, src/misc, src/debug.cc), DeepSpeed's launcher, Slurm (slurmstepd,
srun), Open MPI, bash, Ray, Kubernetes, and the issues that users of these filed.
"""

from __future__ import annotations

import re
from typing import Final

from laggard.diagnose.job.events import (
    DIED,
    EXCEPTION_NAME,
    FAILED,
    NCCL_WARN,
    PEER_GONE,
    RAISED,
    STOPPED,
    SUMMARY,
    WAITED,
    Rule,
    rule_of,
)
from laggard.diagnose.job.known_reasons import KNOWN_REASONS

_REASON: Final = r"(?:[\s-]*|.*[{,]\s*\"?)[Rr]eason\"?: *\"?"
_END_OF_REASON: Final = r"(?:[\",]|\s*$).*"
"""A reason as Kubernetes writes it: a field of a description, of YAML or of JSON."""
_OF_SHELL: Final = r"(?:(?:\S+: )?line \d+: +\d+ |\S+: \S+: task \d+: )?"
_NAN: Final = r"\b(?:nan|NaN|NAN)\b"
_OF_A_LOSS: Final = r"(?:loss|Loss|[Gg]rad\w*|logits|outputs?|activations?|weights|anomaly)\b"
_NAN_OF_A_LOSS: Final = rf"(?:{_NAN}.*{_OF_A_LOSS}|{_OF_A_LOSS}.*{_NAN})"

RULES: Final[tuple[Rule, ...]] = (
    *KNOWN_REASONS,
    # What says of itself that it is a consequence
    rule_of("JOB_EXCEPTION", "summary", SUMMARY, r"(?:[\w.]*\.)?ChildFailedError(?::|$)", "a worker failed"),
    rule_of("JOB_EXCEPTION", "summary", SUMMARY, r"(?:subprocess\.)?CalledProcessError: Command .*non-zero exit status",
        "a command failed"),
    rule_of("JOB_EXCEPTION", "summary", SUMMARY,
        r"(?:[\w.]*\.)?Process(?:Raised|Exited)Exception(?::|$)|-- Process \d+ terminated with the following error",
        "a spawned process failed"),
    rule_of("JOB_EXCEPTION", "summary", SUMMARY,
        r"(?:[\w.]*\.)?(?:ActorDiedError|RayActorError|WorkerCrashedError|RayTaskError)(?:\(\w+\))?(?::|$)",
        "a worker of Ray died"),
    # Memory of GPUs
    rule_of("JOB_GPU_OUT_OF_MEMORY", "gpu_memory", FAILED,
        RAISED + r"(?:CUDA|HIP|XPU|NPU) out of memory\.?\s*(Tried to allocate .*)?", "CUDA out of memory. {0}"),
    rule_of("JOB_GPU_OUT_OF_MEMORY", "gpu_memory", FAILED,
        RAISED + r"(?:CUDA error: out of memory|.*CUBLAS_STATUS_ALLOC_FAILED|.*cudaErrorMemoryAllocation)",
        "CUDA out of memory"),
    rule_of("JOB_GPU_OUT_OF_MEMORY", "gpu_memory", FAILED,
        r"(?:Error executing|Failed to) .{1,400}: (?:CUDA|HIP) out of memory\. (Tried to allocate .*)",
        "CUDA out of memory. {0}"),
    rule_of("JOB_GPU_OUT_OF_MEMORY", "gpu_memory", FAILED, rf"{NCCL_WARN}.*Cuda failure (?:\d+ )?'out of memory'",
        "CUDA out of memory within NCCL"),
    rule_of("JOB_GPU_OUT_OF_MEMORY", "gpu_memory", FAILED,
        rf"(?:{EXCEPTION_NAME}: )(?:RESOURCE_EXHAUSTED: .*[Oo]ut of memory (.*)|OOM when allocating tensor(.*))",
        "GPU out of memory {0}{1}"),
    # CUDA
    rule_of("JOB_CUDA_ERROR", "cuda_ecc", FAILED, RAISED + r".*CUDA error: (uncorrectable ECC error.*)",
        "CUDA error: {0}"),
    rule_of("JOB_CUDA_ERROR", "cuda_assert", FAILED, RAISED + r".*CUDA error: (device-side assert triggered)",
        "CUDA error: {0}"),
    rule_of("JOB_CUDA_ERROR", "cuda_assert", FAILED,
        r"\S+\.(?:cu|cuh):\d+: .{0,300}block: \[.*thread: \[.*Assertion `?(.*?)`? failed",
        "an assertion in a CUDA kernel failed: {0}"),
    rule_of("JOB_CUDA_ERROR", "cuda_setup", FAILED,
        RAISED + r"(?:.*CUDA error: )?(no kernel image is available.*|invalid device ordinal|No CUDA GPUs are available"
        r"|CUDA driver version is insufficient.*|.*all CUDA-capable devices are busy or unavailable"
        r"|The NVIDIA driver .*)", "CUDA does not start: {0}"),
    rule_of("JOB_CUDA_ERROR", "cuda", FAILED,
        RAISED + r"(?:.*(?:CUDA|HIP) error: (?!out of memory)|.*\b(?=CUDNN_STATUS_|CUBLAS_STATUS_|cudaError[A-Z]))(.+)",
        "CUDA error: {0}"),
    rule_of("JOB_CUDA_ERROR", "cuda", FAILED, rf"{NCCL_WARN}.*Cuda failure (?:\d+ )?'(?!out of memory)([^']+)'",
        "CUDA error: {0} (in NCCL)"),
    rule_of("JOB_CUDA_ERROR", "cuda", FAILED,
        r"(Memory access fault by GPU node-\d+) .*on address \S+ ?(?:Reason: )?(.*)",
        "a kernel used memory that is not mapped: {0} {1}"),
    rule_of("JOB_CUDA_ERROR", "cuda", FAILED, r".*aborting with error ?: (HSA_STATUS_ERROR_\w+)(.*)",
        "a kernel of a GPU failed: {0}{1}"),
    # The host's memory
    rule_of("JOB_HOST_OUT_OF_MEMORY", "host_memory", FAILED,
        r"(?:slurmstepd: )?error: Detected ([1-9]\d*) oom[-_ ]kill event\(?s?\)? in (?:StepId=|step )([\w.]*\w)",
        "the kernel killed processes for want of host memory (Slurm, step {1})"),
    rule_of("JOB_HOST_OUT_OF_MEMORY", "host_memory", FAILED,
        r"(?:\[ *\d+\.\d+\] )?(?:Memory cgroup out of memory|Out of memory): Killed process (\d+) \(([^)]*)\)",
        "the kernel killed process {0} ({1}) for want of host memory"),
    rule_of("JOB_HOST_OUT_OF_MEMORY", "host_memory", FAILED, _REASON + r"(OOMKilled)\b" + _END_OF_REASON,
        "the kernel killed the container for want of host memory ({0})"),
    rule_of("JOB_HOST_OUT_OF_MEMORY", "host_memory", FAILED, r"\s*\"OOMKilled\": true,?$",
        "the kernel killed the container for want of host memory (OOMKilled)"),
    rule_of("JOB_HOST_OUT_OF_MEMORY", "host_memory", FAILED,
        r"(?:ray\.exceptions\.)?OutOfMemoryError: Task was killed due to the node running low on memory",
        "Ray killed a worker: the node was low on memory"),
    rule_of("JOB_HOST_OUT_OF_MEMORY", "host_memory", FAILED,
        rf"(?:MemoryError(?:: (.*)|$)|[\w.]*_ArrayMemoryError: (.*)|{RAISED}.*"
        r"(?:DefaultCPUAllocator: can't allocate memory"
        r"|\[Errno 12\] Cannot allocate memory|std::bad_alloc)[: ]*(.*))",
        "host memory is used up: {0}{1}{2}"),
    # Data loaders
    rule_of("JOB_DATALOADER_DIED", "shared_memory", FAILED,
        r"(?:RuntimeError: DataLoader worker \(pid (\d+)\) is killed by signal: Bus error"
        r"|ERROR: Unexpected bus error encountered in worker)",
        "a DataLoader worker died of a bus error: /dev/shm is full"),
    rule_of("JOB_DATALOADER_DIED", "dataloader", FAILED,
        r"RuntimeError: DataLoader worker \(pid (\d+)\) is killed by signal: ([\w ]+)",
        "DataLoader worker {0} was ended by a signal: {1}"),
    rule_of("JOB_DATALOADER_DIED", "dataloader", FAILED,
        r"RuntimeError: DataLoader worker \(pid\(s\) ([\d, ]+)\) exited unexpectedly",
        "DataLoader worker {0} ended unexpectedly"),
    rule_of("JOB_DATALOADER_DIED", "dataloader", FAILED, r"RuntimeError: DataLoader timed out after ([\d.]+) seconds",
        "a DataLoader worker gave nothing for {0} s"),
    # Storage
    rule_of("JOB_DISK_FULL", "shared_memory", FAILED,
        rf"{EXCEPTION_NAME}: .*(?:No space left on device.*|unable to (?:write to|open|mmap|resize).*)/torch_\d+_\d+"
        r"(?:'|.*(?:No space left|Cannot allocate|Bus error))",
        "no room in /dev/shm, through which DataLoader workers hand over tensors"),
    rule_of("JOB_DISK_FULL", "disk", FAILED,
        rf"{EXCEPTION_NAME}: .*(?:\[Errno (?:28|122)\]|[Nn]o space left on device|[Dd]isk quota exceeded)"
        r"(?: \(\d+\)$)?(.*)", "no room on the disk{0}"),
    rule_of("JOB_DISK_FULL", "disk", FAILED,
        r"(?:\S+: )?(?:write error|cannot (?:write|create|copy).*|error writing .*): (No space left on device)",
        "no room on the disk"),
    rule_of("JOB_STORAGE_ERROR", "storage", FAILED, rf"{EXCEPTION_NAME}: .*\[Errno (?:116|5|30|107|108|121)\] (.*)",
        "the file system failed: {0}"),
    rule_of("JOB_STORAGE_ERROR", "storage", FAILED,
        r"\S+: (?:.*(?:: |\] ))?((?:Stale (?:NFS )?file handle|Transport endpoint is not connected).*)",
        "the file system failed: {0}"),
    # The network and NCCL
    rule_of("JOB_NCCL_ERROR", "nccl_flushed", SUMMARY,
        r".*NET/IB.*Got completion (?:from peer (\S+) )?with (?:error|status)[ =](?:IBV_WC_WR_FLUSH_ERR\()?5\b",
        "InfiniBand work was flushed (status 5): its connection had failed before"),
    rule_of("JOB_NCCL_ERROR", "nccl_retry", WAITED,
        r".*NET/IB.*Got completion (?:from peer (\S+) )?with (?:error|status)[ =](?:IBV_WC_RETRY_EXC_ERR\()?12\b",
        "InfiniBand transfer with peer {0} got no answer (status 12, retries exceeded)"),
    rule_of("JOB_COLLECTIVE_TIMEOUT", "mismatch", FAILED,
        r".*NET/IB.*Got completion (?:from peer (\S+) )?with (?:error|status)[ =](?:IBV_WC_LOC_LEN_ERR\()?1\b",
        "ranks called a collective with different sizes: a message of {0} did not fit (status 1, local length error)"),
    rule_of("JOB_NCCL_ERROR", "nccl_protection", FAILED,
        r".*NET/IB.*Got completion (?:from peer (\S+) )?with (?:error|status)[ =](?:IBV_WC_\w+\()?(4|10)\b",
        "the NIC was refused access to memory (status {1}, peer {0})"),
    rule_of("JOB_NCCL_ERROR", "nccl_retry", WAITED,
        r".*NET/IB.*Got completion (?:from peer (\S+) )?with (?:error|status)[ =](?:IBV_WC_\w+\()?([1-9]\d*)\b",
        "InfiniBand transfer with peer {0} failed (status {1})"),
    rule_of("JOB_NCCL_ERROR", "nccl_connect", WAITED,
        rf"{NCCL_WARN}.*Call to (ibv_modify_qp|ibv_create_qp|ibv_open_device) failed(?: with error)? (.*)",
        "NCCL could not connect by RDMA: {0} failed: {1}"),
    rule_of("JOB_NCCL_ERROR", "nccl_usage", FAILED,
        rf"{NCCL_WARN}.*(Duplicate GPU detected.*|Attempted to connect incompatible.*)", "NCCL was used wrongly: {0}"),
    rule_of("JOB_NCCL_ERROR", "nccl_peer", SUMMARY,
        rf"{NCCL_WARN}.*(?:{PEER_GONE}|Connection timed out|No route to host)", "NCCL lost a peer"),
    rule_of("JOB_NCCL_ERROR", "nccl_usage", FAILED,
        r"(?:ncclInvalid(?:Usage|Argument): [A-Z].*|.*NCCL error in: .*invalid (?:usage|argument).*)",
        "NCCL was used wrongly"),
    rule_of("JOB_NCCL_ERROR", "nccl_peer", SUMMARY,
        rf"(?:{EXCEPTION_NAME}: |what\(\):\s+|.*terminated with exception: )?"
        rf".*NCCL (?:error(?: in)?: |operation.*(?:failed|aborted|timed out)).*(?:{PEER_GONE})",
        "NCCL lost a peer: a remote process ended, or the network failed"),
    rule_of("JOB_NCCL_ERROR", "nccl_peer", SUMMARY, r"ncclRemoteError: .*|.*NET/OFI Request \S+ completed with error.*",
        "NCCL lost a peer: a remote process ended, or the network failed"),
    rule_of("JOB_NCCL_ERROR", "nccl_system", WAITED,
        rf"(?:{RAISED}.*NCCL (?:[Ee]rror|operation).*(unhandled system error|internal error|unhandled cuda error).*"
        r"|nccl(System|Internal|UnhandledCuda)Error: [A-Z].*)", "NCCL failed: {0}{1}"),
    rule_of("JOB_NCCL_ERROR", "nccl_system", WAITED, r"(?:\S+: )?Test NCCL failure \S+:\d+ '([^'/(]+)",
        "NCCL failed in nccl-tests: {0}"),
    rule_of("JOB_CUDA_ERROR", "cuda", FAILED, r"(?:\S+: )?Test CUDA failure \S+:\d+ '([^']+)'",
        "CUDA error in nccl-tests: {0}"),
    # Waiting
    rule_of("JOB_COLLECTIVE_TIMEOUT", "watchdog", WAITED,
        r".*Watchdog caught collective operation timeout: WorkNCCL\((?:SeqNum=(\d+), )?OpType=(\w+).*?ran for (\d+)",
        "collective {1}, number {0}, did not end within {2} ms"),
    rule_of("JOB_COLLECTIVE_TIMEOUT", "watchdog", WAITED,
        r".*(?:Timeout at NCCL work|Exception \(either an error or timeout\) detected by watchdog at work): (\d+)",
        "collective number {0} did not end in time"),
    rule_of("JOB_COLLECTIVE_TIMEOUT", "watchdog", WAITED,
        r".*(?:Received a dump signal due to a collective timeout|Heartbeat monitor timed out"
        r"|failure detected by watchdog)", "the watchdog stopped the process"),
    rule_of("JOB_COLLECTIVE_TIMEOUT", "monitored", WAITED,
        r".*\[Rank \d+\]: Ranks? ([\d, ]+) failed to pass monitoredBarrier in (\d+) ms",
        "rank {0} did not come to a barrier within {1} ms"),
    rule_of("JOB_COLLECTIVE_TIMEOUT", "gloo", WAITED,
        rf"(?:{EXCEPTION_NAME}: |what\(\):\s+).*Timed out waiting (\d+) ?ms for (send|recv) operation",
        "a {1} of gloo did not end within {0} ms"),
    rule_of("JOB_COLLECTIVE_TIMEOUT", "gloo", WAITED,
        rf"{RAISED}.*\bgloo/.*(Application timeout caused pair closure|No route to host|(?:Network|Host) is unreachable"
        r"|Network is down|Connection timed out|[Cc]onnect timeout|connectFullMesh failed)",
        "gloo lost its peer: {0}"),
    rule_of("JOB_KILLED", "stuck_process", SUMMARY,
        r".*Unable to shutdown process (\d+) via \S+, forcefully exit+ing via",
        "process {0} did not end on SIGTERM, and its launcher killed it"),
    rule_of("JOB_COLLECTIVE_TIMEOUT", "xla", WAITED,
        r".*Termination timeout for .*Expected (\d+) threads to join the rendezvous, but"
        r" (?:only (\d+) of them|(not all)(?: of them)?) arrived",
        "a rendezvous of XLA did not end in time: {1}{2} of {0} threads came to it"),
    rule_of("JOB_COLLECTIVE_TIMEOUT", "mismatch", FAILED,
        rf"{RAISED}.*(Detected mismatch between collectives on ranks.*)", "ranks called different collectives: {0}"),
    # Downloads
    rule_of("JOB_EXCEPTION", "download", FAILED,
        rf"{EXCEPTION_NAME}: .*?(?:host='|[Cc]ouldn't connect to '(?:\w+://)?)([\w.-]+).*(?:Max retries exceeded"
        r"|Failed to (?:resolve|establish a new connection)|load the files)",
        "a download failed, since this node does not reach {0}"),
    rule_of("JOB_EXCEPTION", "download", FAILED,
        rf"(?=(?:urllib|requests|httpx|httpcore|aiohttp|huggingface_hub|botocore|fsspec)\w*\.)(?:{EXCEPTION_NAME}): .*?"
        r"((?:[Nn]ame or service not known|Temporary failure in name resolution|Network is unreachable"
        r"|All connection attempts failed|Max retries exceeded).*?)>?$",
        "a download failed: {0}"),
    # Rendezvous
    rule_of("JOB_RENDEZVOUS_FAILED", "address_in_use", FAILED,
        rf"{EXCEPTION_NAME}: .*(?:EADDRINUSE|[Aa]ddress already in use)",
        "the port of the rendezvous is taken: address already in use"),
    rule_of("JOB_RENDEZVOUS_FAILED", "rendezvous", FAILED,
        rf"{EXCEPTION_NAME}: .*(?:Error initializing torch\.distributed using env:// rendezvous)(?:: )?(.*)",
        "the rendezvous is not configured: {0}"),
    rule_of("JOB_RENDEZVOUS_FAILED", "rendezvous", FAILED,
        rf"{EXCEPTION_NAME}: .*network addresses of \(([^,()]+), \d+\) cannot be retrieved \(gai error: -?\d+ - "
        r"([^()]+)\)",
        "the name of the rendezvous' host, {0}, does not resolve: {1}"),
    rule_of("JOB_RENDEZVOUS_FAILED", "rendezvous", FAILED,
        rf"{EXCEPTION_NAME}: .*"
        r"([Nn]ame or service not known|Temporary failure in name resolution)",
        "the name of a host does not resolve: {0}"),
    rule_of("JOB_RENDEZVOUS_FAILED", "rendezvous", WAITED,
        rf"{EXCEPTION_NAME}: .*(client socket has (?:timed out|failed to connect).*"
        rf"|Timed out after \d+ seconds waiting for"
        r" clients.*|[Tt]imed out waiting for (?:all )?(?:clients|nodes).*)", "ranks did not meet: {0}"),
    rule_of("JOB_RENDEZVOUS_FAILED", "rendezvous", WAITED,
        r"(?:[\w.]*\.)?(Rendezvous\w*(?:Error|Exception)|DistStoreError|DistNetworkError)(?::|$) ?"
        rf"(?!.*(?:{PEER_GONE}))(.*)", "the rendezvous failed ({0}): {1}"),
    # The scheduler
    rule_of("JOB_PREEMPTED", "preempted", FAILED,
        r"(?:slurmstepd: )?error: \*\*\* \w+ [\w.]+ ON (\S+) CANCELLED AT \S+ DUE TO (PREEMPTION|JOB REQUEUE"
        r"|MAINTENANCE)", "Slurm took the nodes for another job ({1})"),
    rule_of("JOB_PREEMPTED", "time_limit", FAILED,
        r"(?:slurmstepd: )?error: \*\*\* \w+ [\w.]+ ON (\S+) CANCELLED AT \S+ DUE TO (TIME LIMIT)",
        "Slurm ended the job at its time limit"),
    rule_of("JOB_PREEMPTED", "preempted", FAILED,
        r"submitit \w+ \([^)]*\) - Caught signal (\w+) on (\S+): this job is (preempted|timed-out)",
        "the scheduler ended the job: {2} ({0})"),
    rule_of("JOB_PREEMPTED", "preempted", FAILED,
        r"(?:Warning|Normal)\s+(Evicted|Preempted|Preempting|TaintManagerEviction|NodeShutdown)\s+.*"
        rf"|{_REASON}(Evicted|Preempted|Terminated by NodeShutdown|NodeShutdown){_END_OF_REASON}"
        r"|(The node was low on resource: \S+)\s.*", "Kubernetes ended the pod: {0}{1}{2}"),
    rule_of("JOB_PREEMPTED", "preempted", FAILED, r".*Spot ITN received\. (Instance will be interrupted at \S+)",
        "the cloud takes its spot instance back: {0}"),
    rule_of("JOB_KILLED", "node_failed", FAILED,
        r"(?:\(raylet\S*.*?\) |\[.*?\] )*The node with node id: \w+ and address: (\S+) .*has been marked dead",
        "Ray lost the node {0}, which gave no sign of life"),
    rule_of("JOB_KILLED", "node_failed", FAILED, r"The actor died because its node has died\. Node Id: (\w+)",
        "Ray lost a node, and the actors on it ({0})"),
    rule_of("JOB_KILLED", "node_failed", FAILED,
        r"(?:slurmstepd: error: \*\*\* \w+ [\w.]+ ON (\S+) CANCELLED AT \S+ DUE TO NODE FAILURE"
        r"|srun: error: Node failure on (\S+))", "Slurm lost the node {0}{1}"),
    rule_of("JOB_EXCEPTION", "summary", SUMMARY,
        r"(?:slurmstepd: )?error: \*\*\* \w+ [\w.]+ ON \S+ CANCELLED AT \S+ DUE TO TASK FAILURE",
        "Slurm ended the other tasks"),
    rule_of("JOB_KILLED", "cancelled", STOPPED,
        r"(?:slurmstepd: )?error: \*\*\* \w+ [\w.]+ ON (\S+) CANCELLED AT \S+ (?:\*\*\*|DUE TO)",
        "the job was cancelled (scancel, or Slurm after a task failed)"),
    rule_of("JOB_KILLED", "interrupted", STOPPED, r"KeyboardInterrupt(?::|$)",
        "the job was interrupted (Ctrl-C, SIGINT)"),
    rule_of("JOB_KILLED", "terminated", STOPPED, r"(?:[\w.]*\.)?SignalException: Process (\d+) got signal: (\d+)",
        "the launcher was told to stop by signal {1}, from outside"),
    # Deaths by signals, as the process itself or its launcher reports them
    rule_of("JOB_SEGFAULT", "segfault", FAILED,
        r"Fatal Python error: (Segmentation fault|Illegal instruction|Floating.point exception)",
        "the process crashed: {0}"),
    rule_of("JOB_SEGFAULT", "bus_error", FAILED,
        r"(?:Fatal Python error: Bus error|(?:\[[\w.-]+:\d+\] )?Signal: Bus error \(\d+\))",
        "the process crashed: bus error"),
    rule_of("JOB_SEGFAULT", "segfault", FAILED,
        r"(?:\[[\w.-]+:\d+\] )?(?:!!!!!!! )?(?:Signal: (Segmentation fault) \(\d+\)|(Segfault) encountered)",
        "the process crashed: {0}{1}"),
    rule_of("JOB_SEGFAULT", "bus_error", DIED, _OF_SHELL + r"Bus error(?: *\(core dumped\).*)?$",
        "the process crashed: bus error"),
    rule_of("JOB_SEGFAULT", "segfault", DIED, _OF_SHELL + r"(Segmentation fault|Illegal instruction)"
        r"(?: *\(core dumped\).*)?$", "the process crashed: {0}"),
    rule_of("JOB_KILLED", "aborted", DIED,
        r"(?:\S{1,80}: )?((?:free|realloc|malloc|munmap_chunk|malloc_consolidate)\(\): "
        r"(?:invalid|double|corrupted|unaligned|mismatching|too large).{0,60}"
        r"|double free or corruption.{0,40}|corrupted "
        r"(?:size vs\. prev_size|double-linked list|unsorted chunks).{0,40})$",
        "the process aborted, since its native code spoilt the heap: {0}"),
    rule_of("JOB_KILLED", "killed", DIED, r"(?:\S+: )?line \d+: +\d+ (Killed)\b", "a process was killed (SIGKILL)"),
    rule_of("JOB_KILLED", "killed", DIED, r"(?:.*(?:it/s|s/it)\])?(Killed)$", "a process was killed (SIGKILL)"),
    # The numbers themselves
    rule_of("JOB_NAN_LOSS", "nan", FAILED, rf"{EXCEPTION_NAME}: .*(?:{_NAN_OF_A_LOSS}|loss scale already at minimum).*",
        "the loss became NaN"),
    rule_of("JOB_NAN_LOSS", "nan", FAILED,
        r".*(?:\b[Ll]oss is (?:nan|NaN|NAN|inf)[,;:.!]? ?(?:[Ss]topping|[Aa]bort|exit)"
        r"|found NaN in local (?:\w+ )?(?:loss|grad))", "the loss became NaN"),
)  # fmt: skip
"""The rules in order: the first that matches counts."""

NAN_LOSS: Final = re.compile(
    r"(?<![\w-])(?:(?:lm|train|training|total|avg|mean|step|reduced)[ _-]?)?(?:loss"
    r"|grad[_ ]?norm)['\"]?\s{0,4}[:=]?\s{0,4}"
    r"(?:tensor\()?[+-]?(?:nan|NaN|NAN)\b"
)
"""A metric line whose loss is NaN. Not `nan_count: 0`, nor a validation that did not run yet."""

WEAK_TEXT: Final = re.compile(PEER_GONE)
"""The words in an exception's text which say that a peer is gone."""

EXIT_LINES: Final[tuple[re.Pattern[str], ...]] = (
    re.compile(
        r"(?:ERROR:\S*:|\S*\] )?failed \(exitcode: (?P<status>-?\d+)\) local_rank: (?P<local_rank>\d+)"
        r" \(pid: (?P<pid>\d+)\)"
    ),
    re.compile(  # the rows of torchrun's table in one line, as they are copied out of a picture
        r"rank *:? *(?P<rank>\d+) *\(local[_ ]rank: (?P<local_rank>\d+)\) *exitcode *: (?P<status>-?\d+) \(pid"
    ),
    re.compile(r"exitcode\s*: (?P<status>-?\d+) \(pid: (?P<pid>\d+)\)"),
    re.compile(r"srun: error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,-]+): (?P<words>.+)"),
    re.compile(r".*?(?:--local_rank=(?P<local_rank>\d+)\b.*)? exits with return code = (?P<status>-?\d+)"),
    re.compile(r".*process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on signal (?P<signal>\d+)"),
    re.compile(
        r"(?:[Gg]lobal )?[Rr]ank (?P<rank>\d+)(?: \(PID \d+\))? (?:crashed|exited) with (?:exit )?"
        r"code (?P<status>-?\d+)"
    ),
    re.compile(r"Child process with PID \d+ terminated with code (?P<status>-?\d+)"),
    re.compile(r"=\s+(?:EXIT CODE: (?P<status>\d+)|KILLED BY SIGNAL: (?P<signal>\d+))"),
    re.compile(r".*died with <Signals\.SIG\w+: (?P<signal>\d+)>"),
    re.compile(r".*process \d+ terminated with (?:signal (?P<name>SIG\w+)|exit code (?P<status>\d+))"),
    re.compile(
        r"(?:[Cc]ommand terminated|command terminated) (?:by signal (?P<signal>\d+)|with exit code (?P<status>\d+))"
    ),
    re.compile(
        r"(?:\W*|.{0,60}(?:[Ff]ailed|[Ee]xited|[Tt]erminated|[Pp]rocess|[Ww]orker|[Cc]ontainer|[Jj]ob|[Tt]ask)\b.{0,40})"
        r"\b[Ee]xit ?[Cc]ode\"?: *(?P<status>\d+),?$"
    ),
)
"""Forms in which launchers report how a process ended."""
