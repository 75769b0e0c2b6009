"""The advice about each kind of failure of a job."""

from __future__ import annotations

from typing import Final, NamedTuple


class Advice(NamedTuple):
    text: str
    commands: tuple[str, ...] = ()


_LOGS = "Its own output, above the first line that is named here, says more."
_RESTART = "The nodes are not at fault: start the job again from its last checkpoint."
_PEER = (
    "Look for what ended the remote process: this is most often a consequence. Where no process of the job failed by "
    "itself, check the ports and links of both nodes."
)
_LINKS = ("laggard healthcheck", "dmesg -T | grep -iE 'mlx5|link|Xid'")

ADVICE: Final[dict[str, Advice]] = {
    "gpu_memory": Advice(
        "Lower the micro-batch or the sequence length, or shard and recompute more (ZeRO, FSDP, activation "
        "checkpointing). "
        "If much is reserved and unallocated, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. If one rank alone "
        "runs "
        "out, look for another process on its GPU.",
        ("nvidia-smi --query-compute-apps=pid,used_memory --format=csv",),
    ),
    "cuda_ecc": Advice(
        "The GPU's memory failed, not the program: check the node's GPU, and reset it or have it replaced.",
        ("laggard healthcheck", "dmesg -T | grep Xid", "nvidia-smi -q -d ECC,ROW_REMAPPER"),
    ),
    "cuda_assert": Advice(
        "A kernel got values out of range: most often a token or label beyond the size of an embedding. Run that batch "
        "again with CUDA_LAUNCH_BLOCKING=1: the traceback then names the call."
    ),
    "cuda_setup": Advice(
        "The process gets no usable GPU: compare CUDA_VISIBLE_DEVICES, the driver's version and torch's CUDA build, "
        "and "
        "look whether another process holds the GPU.",
        ("nvidia-smi", "python -m torch.utils.collect_env"),
    ),
    "cuda": Advice(
        "A kernel of this rank failed; the call that the traceback names may be a later one. Run again with "
        "CUDA_LAUNCH_BLOCKING=1. If it comes on one node only, check that node's GPUs.",
        ("laggard healthcheck", "dmesg -T | grep Xid"),
    ),
    "host_memory": Advice(
        "Ask for more memory, or use less: fewer DataLoader workers, no copy of the data set in each, checkpoints "
        "that are "
        "not gathered on one rank, no pinned offload beyond the node's memory.",
        ("dmesg -T | grep -iE 'oom|killed process'", "sacct -j JOBID --format=JobID,MaxRSS,ReqMem,State"),
    ),
    "shared_memory": Advice(
        "Enlarge /dev/shm (`--shm-size` for Docker, an emptyDir with medium Memory for Kubernetes), remove what dead "
        "jobs "
        "left in it, or lower num_workers.",
        ("df -h /dev/shm", "ls -la /dev/shm"),
    ),
    "dataloader": Advice(
        "Look for the worker's own end: host memory (the kernel's log), a crash in a decoder, or storage that hangs. "
        "With "
        "num_workers=0 the failure comes in the rank itself, with its traceback.",
        ("dmesg -T | grep -iE 'oom|segfault|killed process'",),
    ),
    "disk": Advice(
        "Make room, or raise the quota, on the file system that the traceback names; then start again from the last "
        "checkpoint that is whole.",
        ("df -h", "df -i", "quota -s"),
    ),
    "storage": Advice(
        "The file system of the path in the traceback did not serve it: check its server and this node's mount.",
        ("laggard healthcheck", "dmesg -T | grep -iE 'nfs|lustre|I/O error'"),
    ),
    "nccl_flushed": Advice(_PEER, _LINKS),
    "nccl_retry": Advice(
        "The peer did not answer: its process or node is gone, or the network between both is broken or drops packets. "
        "Check the peer that is named first, then both ports, and on RoCE the PFC and the GID.",
        _LINKS,
    ),
    "nccl_connect": Advice(
        "The two NICs have no way to each other, or not by this GID: compare NCCL_IB_GID_INDEX and NCCL_IB_HCA of both "
        "nodes with what their ports have (RoCE v2, the same subnet or a route between them), and try the pair alone.",
        ("show_gids", "ib_write_bw -d DEVICE -x GID_INDEX PEER", "laggard healthcheck"),
    ),
    "nccl_protection": Advice(
        "The NIC may not reach the memory that NCCL gave it: check for ACS on the way between GPU and NIC, the IOMMU, "
        "nvidia_peermem and the driver's version.",
        ("laggard healthcheck",),
    ),
    "nccl_port": Advice("A port of this node failed or lost its link: check it and its cable.", _LINKS),
    "nccl_usage": Advice(
        "Give each rank a GPU of its own (torch.cuda.set_device(local_rank), CUDA_VISIBLE_DEVICES), and one version "
        "of NCCL."
    ),
    "nccl_peer": Advice(_PEER, _LINKS),
    "nccl_system": Advice(
        "Run again with NCCL_DEBUG=INFO and give that log to `laggard diagnose`: NCCL's warnings name the call.",
        ("laggard healthcheck",),
    ),
    "watchdog": Advice(
        "Look at the rank that is behind or missing: what it did instead (its output, `py-spy dump`), and whether it "
        "lives. "
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 keep each rank's last collectives; "
        "`laggard run` names the rank while the job hangs.",
        ("laggard locate",),
    ),
    "monitored": Advice("Look at the ranks that did not come: what they did instead, and whether they live."),
    "gloo": Advice(_PEER),
    "peer_gone": Advice(_PEER, _LINKS),
    "xla": Advice(
        "Look for the process whose threads did not come: its own output, whether it lives, and what it did instead "
        "(`py-spy dump`). One that compiles, loads data or left the program early makes all others wait."
    ),
    "mismatch": Advice(
        "The ranks do not run the same program: look for a branch on the rank, on data or on time around a collective."
    ),
    "address_in_use": Advice(
        "Another process has the port: end what an earlier job left, or choose another MASTER_PORT (torchrun: "
        "--rdzv-endpoint=HOST:0 takes a free one).",
        ("ss -ltnp",),
    ),
    "rendezvous": Advice(
        "Check that MASTER_ADDR resolves to the same host on all nodes, that its port can be reached from each, and "
        "that "
        "all nodes started: one that is missing makes all wait.",
        ("getent hosts $MASTER_ADDR", "nc -vz $MASTER_ADDR $MASTER_PORT"),
    ),
    "preempted": Advice(_RESTART),
    "time_limit": Advice(
        "Ask for more time, or save a checkpoint before the end (`#SBATCH --signal=B:USR1@300`). If the last steps are "
        "hours old, the job hung: look for that first."
    ),
    "node_failed": Advice(
        "Look at that node before it gets another job; the job itself is not at fault.",
        ("sinfo -R", "laggard healthcheck"),
    ),
    "cancelled": Advice(
        "Somebody ran scancel, or Slurm ended the step after a task failed: look at which task ended first."
    ),
    "interrupted": Advice("Nothing is wrong, unless nobody pressed Ctrl-C: launchers send SIGINT as well."),
    "terminated": Advice(
        "SIGTERM comes from outside: a scheduler that preempts or ends the job, or a person. Its log says which.",
        ("sacct -j JOBID --format=JobID,State,ExitCode,End", "kubectl get events --sort-by=.lastTimestamp"),
    ),
    "killed": Advice(
        "Nothing in this log says who sent SIGKILL. The kernel does so when memory is used up, and schedulers do: "
        "look at "
        "the kernel's log of that node and at the scheduler's.",
        ("dmesg -T | grep -iE 'oom|killed process'", "sacct -j JOBID --format=JobID,State,ExitCode,MaxRSS,ReqMem"),
    ),
    "aborted": Advice("SIGABRT is how torch and glibc end a process after an error: it stands above. " + _LOGS),
    "segfault": Advice(
        "Native code crashed: run with PYTHONFAULTHANDLER=1 for the Python lines, and look at libraries that were "
        "built "
        "against another torch or CUDA. If one node alone does it, check its memory.",
        ("dmesg -T | grep -iE 'segfault|mce|edac'",),
    ),
    "bus_error": Advice(
        "A page that the process had mapped could not be had: most often /dev/shm is full or too small for the "
        "container (`--shm-size` for Docker, an emptyDir with medium Memory for Kubernetes). Else look for a mapped "
        "file that was cut while it was read, for storage that fails, and for faulty memory.",
        ("df -h /dev/shm", "dmesg -T | grep -iE 'bus error|mce|edac|I/O error'"),
    ),
    "nan": Advice(
        "Go back to the last checkpoint with a finite loss and skip that data, lower the learning rate or clip "
        "gradients; "
        "with fp16 look at the loss scale. If one rank alone has NaN, check that GPU: `laggard healthcheck --active`."
    ),
    "exception": Advice("The program raised it: begin at the line that is named."),
    "summary": Advice("The launcher's account has no cause. " + _LOGS),
    "status": Advice(
        "The process left no reason in this log: look for that rank's own output (torchrun: --redirects 3 --log-dir "
        "DIR), "
        "or decorate main() with torch.distributed.elastic.multiprocessing.errors.record."
    ),
}
