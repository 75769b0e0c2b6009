"""The advice about each kind of failure of a job."""

from __future__ import annotations

from typing import Final

from laggard.model import Fix

_LOGS = "Its own output, above the first line that is named here, says more."
_RESTART = "The nodes are not at fault: start the job again from its last checkpoint."
_PEER = (
    "Look for what ended the remote process: this is most often a consequence. Where no process of the job failed by "
    "itself, check the ports and links of both nodes."
)
_LINKS = ("laggard healthcheck", "dmesg -T | grep -iE 'mlx5|link|Xid'")

ADVICE: Final[dict[str, Fix]] = {
    "gpu_memory": Fix("Lower the micro-batch or the sequence length, or shard and recompute more (ZeRO, FSDP, "
        "activation checkpointing). If much is reserved and unallocated, set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. If one rank alone runs out, look for another process on "
        "its GPU.", ("nvidia-smi --query-compute-apps=pid,used_memory --format=csv",)),
    "cuda_ecc": Fix(
        "The GPU's memory failed, not the program: check the node's GPU, and reset it or have it replaced.",
        ("laggard healthcheck", "dmesg -T | grep Xid", "nvidia-smi -q -d ECC,ROW_REMAPPER")),
    "cuda_assert": Fix("A kernel got values out of range: most often a token or label beyond the size of an "
        "embedding. Run that batch again with CUDA_LAUNCH_BLOCKING=1: the traceback then names the call."),
    "cuda_setup": Fix("The process gets no usable GPU: compare CUDA_VISIBLE_DEVICES, the driver's version and "
        "torch's CUDA build, and look whether another process holds the GPU.",
        ("nvidia-smi", "python -m torch.utils.collect_env")),
    "cuda": Fix("A kernel of this rank failed; the call that the traceback names may be a later one. Run again "
        "with CUDA_LAUNCH_BLOCKING=1. If it comes on one node only, check that node's GPUs.",
        ("laggard healthcheck", "dmesg -T | grep Xid")),
    "host_memory": Fix("Ask for more memory, or use less: fewer DataLoader workers, no copy of the data set in "
        "each, checkpoints that are not gathered on one rank, no pinned offload beyond the node's memory.",
        ("dmesg -T | grep -iE 'oom|killed process'", "sacct -j JOBID --format=JobID,MaxRSS,ReqMem,State")),
    "shared_memory": Fix("Enlarge /dev/shm (`--shm-size` for Docker, an emptyDir with medium Memory for "
        "Kubernetes), remove what dead jobs left in it, or lower num_workers.", ("df -h /dev/shm", "ls -la /dev/shm")),
    "dataloader": Fix("Look for the worker's own end: host memory (the kernel's log), a crash in a decoder, or "
        "storage that hangs. With num_workers=0 the failure comes in the rank itself, with its traceback.",
        ("dmesg -T | grep -iE 'oom|segfault|killed process'",)),
    "disk": Fix("Make room, or raise the quota, on the file system that the traceback names; then start again from "
        "the last checkpoint that is whole.", ("df -h", "df -i", "quota -s")),
    "storage": Fix(
        "The file system of the path in the traceback did not serve it: check its server and this node's mount.",
        ("laggard healthcheck", "dmesg -T | grep -iE 'nfs|lustre|I/O error'")),
    "nccl_flushed": Fix(_PEER, _LINKS),
    "nccl_retry": Fix("The peer did not answer: its process or node is gone, or the network between both is broken "
        "or drops packets. Check the peer that is named first, then both ports, and on RoCE the PFC and the GID.",
        _LINKS),
    "nccl_connect": Fix("The two NICs have no way to each other, or not by this GID: compare NCCL_IB_GID_INDEX and "
        "NCCL_IB_HCA of both nodes with what their ports have (RoCE v2, the same subnet or a route between them), and "
        "try the pair alone.", ("show_gids", "ib_write_bw -d DEVICE -x GID_INDEX PEER", "laggard healthcheck")),
    "nccl_protection": Fix("The NIC may not reach the memory that NCCL gave it: check for ACS on the way between "
        "GPU and NIC, the IOMMU, nvidia_peermem and the driver's version.", ("laggard healthcheck",)),
    "nccl_port": Fix("A port of this node failed or lost its link: check it and its cable.", _LINKS),
    "nccl_memlock": Fix("Raise the limit of locked memory to unlimited where the ranks start: in the container "
        "(`--ulimit memlock=-1`), in Slurm (PropagateResourceLimits=NONE, LimitMEMLOCK=infinity of slurmd), in "
        "mpirun's shell (limits.conf).", ("ulimit -l", "laggard healthcheck")),
    "nccl_interface": Fix("NCCL_SOCKET_IFNAME names no interface that this node has: compare it with `ip -br "
        "addr`. `eth` matches a beginning, `=eth0` one name, `^docker0` all others. Without the variable NCCL takes "
        "what is up.", ("ip -br addr", "echo $NCCL_SOCKET_IFNAME")),
    "nccl_efa": Fix("The security group of the instances has to allow all traffic from itself, inbound and "
        "outbound, and the instances have to be in one subnet with EFA interfaces.",
        ("fi_info -p efa", "fi_pingpong -p efa PEER")),
    "nccl_plugin": Fix("libfabric offers no provider that the plugin can use: check that the container sees "
        "/dev/infiniband and the EFA driver, and that the plugin is built for this libfabric and NCCL.",
        ("fi_info -p efa", "ls /dev/infiniband", "laggard healthcheck")),
    "nccl_nvls": Fix("No kernel of yet ran: NVLink's switches refused the multicast memory. Look at the fabric "
        "manager (it may have been restarted under live GPUs: reset them or reboot). NCCL_NVLS_ENABLE=0 goes round "
        "it, at some speed.",
        ("systemctl status nvidia-fabricmanager", "nvidia-smi -q | grep -A3 Fabric", "laggard healthcheck")),
    "nccl_imex": Fix("Start nvidia-imex on all nodes of the NVLink domain with one nodes_config.cfg, and give the "
        "container its channel (/dev/nvidia-caps-imex-channels). NCCL_MNNVL_ENABLE=0 goes round it, over the network.",
        ("nvidia-imex-ctl -N", "ls /dev/nvidia-caps-imex-channels")),
    "nccl_p2p": Fix("Look at the NVLinks between both, and at the kernel's log; reset the GPUs or have the board "
        "replaced. NCCL_IGNORE_DISABLED_P2P=1 runs without, slowly.",
        ("nvidia-smi nvlink -s", "nvidia-smi topo -p2p r", "dmesg -T | grep -E 'Xid|NVLink'")),
    "nccl_topology": Fix(
        "Correct NCCL_TOPO_FILE or NCCL_GRAPH_FILE, or take it away: NCCL finds the topology by itself."),
    "nccl_route": Fix("The address that NCCL chose has no way to the peer: set NCCL_SOCKET_IFNAME to the interface "
        "that both nodes share, and let its ports through the firewall.", ("ip route get PEER", "ip -br addr")),
    "nccl_loopback": Fix(
        "Set NCCL_SOCKET_IFNAME to an interface that the other nodes reach (`^docker0,lo` leaves these out).",
        ("ip -br addr",)),
    "nccl_queue_pair": Fix(
        "Compare the active MTU of both ends (they have to be the same), then the IOMMU, ACS and the firmware.",
        ("ibv_devinfo | grep -E 'hca_id|active_mtu'", "laggard healthcheck")),
    "open_files": Fix("Raise `ulimit -n` where the ranks start: NCCL opens sockets to all peers.", ("ulimit -n",)),
    "cuda_802": Fix(
        "Start the fabric manager of the driver's own version on this node; until it runs, no program gets a GPU.",
        ("systemctl status nvidia-fabricmanager", "nvidia-smi -q | grep -A3 Fabric")),
    "cuda_803": Fix("The kernel's driver and the libraries of the container or the host are of different versions, "
        "or the driver is too old for this CUDA: reboot after an upgrade, and compare both.",
        ("cat /proc/driver/nvidia/version", "nvidia-smi", "ls -l /usr/lib/*/libcuda.so.*")),
    "cuda_hardware": Fix("Take the node out, look at its kernel log and its GPU, and have it reset or replaced; "
        "the program is not at fault.",
        ("laggard healthcheck", "dmesg -T | grep -E 'Xid|NVRM'", "nvidia-smi -q -d ECC,ROW_REMAPPER")),
    "watchdog_stuck": Fix("A call of CUDA or NCCL blocks torch's own watchdog: look at these ranks' GPUs (Xid, a "
        "GPU that hangs), at a thread that holds Python's lock within CUDA, and at ranks that are not among them, "
        "which may have another fate. Where the wait is legitimate, raise TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC.",
        ("py-spy dump --native --pid PID", "dmesg -T | grep Xid", "laggard locate")),
    "engine_stuck": Fix(
        "A forward pass or a collective did not end: look at the rank without this line, at its GPU and its stack.",
        ("py-spy dump --pid PID", "dmesg -T | grep Xid")),
    "stalled": Fix(
        "Look at the ranks that it lists as missing: what they do instead (`py-spy dump`), and whether they live."),
    "loopback": Fix("The host's own name stands for 127.0.0.1 or 127.0.1.1 in /etc/hosts: correct it, or set "
        "GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) to the interface that the nodes share.",
        ("getent hosts $(hostname)", "ip -br addr")),
    "slurm_launch": Fix(
        "Look at slurmd on that node: whether it runs, is reached (firewall), and has the same munge key and time.",
        ("scontrol show node NODE", "systemctl status slurmd munge", "remunge")),
    "ray_worker": Fix("Read that worker's own log under /tmp/ray/session_latest/logs, and its node's kernel log: "
        "Ray lists an OOM kill and a crash as possible, and knows neither.",
        ("ray logs cluster", "dmesg -T | grep -iE 'oom|segfault|killed process'")),
    "rerun": Fix("A result that comes again on the same GPU is the data's or the program's; one that does not is "
        "the GPU's: drain its node and check it. Megatron tells which when it runs on another GPU.",
        ("laggard healthcheck --active", "dmesg -T | grep Xid")),
    "process_limit": Fix("Raise the limit where the ranks start (`ulimit -u`, TasksMax of the unit, pids.max of the "
        "container), or start fewer threads: OMP_NUM_THREADS and OPENBLAS_NUM_THREADS to the cores of a rank, fewer "
        "DataLoader workers.", ("ulimit -u", "ps -eLf | wc -l", "cat /sys/fs/cgroup/pids.max")),
    "container_cli": Fix("Try the driver on the host itself: `nvidia-smi` there. Where it hangs or is slow, turn "
        "the persistence daemon on and look for Xids; where it answers at once, the toolkit does not fit the driver, "
        "or the image asks for a newer one (NVIDIA_REQUIRE_CUDA).",
        ("nvidia-smi", "systemctl status nvidia-persistenced", "nvidia-container-cli -k -d /dev/tty info")),
    "ray_gcs": Fix(
        "Look at the head node: whether `ray start --head` still runs there, and its port can be reached.",
        ("ray status", "nc -vz HEAD 6379")),
    "daemon_lost": Fix("Look at the node that mpirun names, or whose ranks are silent: it went away.", _LINKS),
    "jax_task": Fix(
        "Read the log of the task that is named: it ended, or its node did, before the others complained."),
    "object_storage": Fix(
        "Look at the storage's side and the way to it; retries, larger parts and fewer readers help."),
    "permission": Fix("Correct the owner or the mode of the path that is named, or mount it for this user.",
        ("ls -ld PATH", "id")),
    "nccl_usage": Fix("Give each rank a GPU of its own (torch.cuda.set_device(local_rank), CUDA_VISIBLE_DEVICES), "
        "and one version of NCCL."),
    "nccl_peer": Fix(_PEER, _LINKS),
    "nccl_system": Fix(
        "Run again with NCCL_DEBUG=INFO and give that log to `laggard diagnose`: NCCL's warnings name the call.",
        ("laggard healthcheck",)),
    "watchdog": Fix("Look at the rank that is behind or missing: what it did instead (its output, `py-spy dump`), "
        "and whether it lives. TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 keep each rank's "
        "last collectives; `laggard run` names the rank while the job hangs.", ("laggard locate",)),
    "monitored": Fix("Look at the ranks that did not come: what they did instead, and whether they live."),
    "gloo": Fix(_PEER),
    "peer_gone": Fix(_PEER, _LINKS),
    "xla": Fix("Look for the process whose threads did not come: its own output, whether it lives, and what it did "
        "instead (`py-spy dump`). One that compiles, loads data or left the program early makes all others wait."),
    "mismatch": Fix("The ranks do not run the same program: look for a branch on the rank, on data or on time "
        "around a collective."),
    "address_in_use": Fix("Another process has the port: end what an earlier job left, or choose another "
        "MASTER_PORT (torchrun: --rdzv-endpoint=HOST:0 takes a free one).", ("ss -ltnp",)),
    "rendezvous": Fix("Check that MASTER_ADDR resolves to the same host on all nodes, that its port can be reached "
        "from each, and that all nodes started: one that is missing makes all wait.",
        ("getent hosts $MASTER_ADDR", "nc -vz $MASTER_ADDR $MASTER_PORT")),
    "preempted": Fix(_RESTART),
    "time_limit": Fix("Ask for more time, or save a checkpoint before the end (`#SBATCH --signal=B:USR1@300`). If "
        "the last steps are hours old, the job hung: look for that first."),
    "node_failed": Fix("Look at that node before it gets another job; the job itself is not at fault.",
        ("sinfo -R", "laggard healthcheck")),
    "cancelled": Fix(
        "Somebody ran scancel, or Slurm ended the step after a task failed: look at which task ended first."),
    "interrupted": Fix("Nothing is wrong, unless nobody pressed Ctrl-C: launchers send SIGINT as well."),
    "terminated": Fix(
        "SIGTERM comes from outside: a scheduler that preempts or ends the job, or a person. Its log says which.",
        ("sacct -j JOBID --format=JobID,State,ExitCode,End", "kubectl get events --sort-by=.lastTimestamp")),
    "stuck_process": Fix("Look at what the process waits for: /proc/PID/status (T: stopped, D: in the kernel), "
        "`py-spy dump --pid PID`."),
    "killed": Fix("Nothing in this log says who sent SIGKILL. The kernel does so when memory is used up, and "
        "schedulers do: look at the kernel's log of that node and at the scheduler's.",
        ("dmesg -T | grep -iE 'oom|killed process'", "sacct -j JOBID --format=JobID,State,ExitCode,MaxRSS,ReqMem")),
    "aborted": Fix("SIGABRT is how torch and glibc end a process after an error: it stands above. " + _LOGS),
    "segfault": Fix("Native code crashed: run with PYTHONFAULTHANDLER=1 for the Python lines, and look at "
        "libraries that were built against another torch or CUDA. If one node alone does it, check its memory.",
        ("dmesg -T | grep -iE 'segfault|mce|edac'",)),
    "bus_error": Fix("A page that the process had mapped could not be had: most often /dev/shm is full or too "
        "small for the container (`--shm-size` for Docker, an emptyDir with medium Memory for Kubernetes). Else look "
        "for a mapped file that was cut while it was read, for storage that fails, and for faulty memory.",
        ("df -h /dev/shm", "dmesg -T | grep -iE 'bus error|mce|edac|I/O error'")),
    "nan": Fix("Go back to the last checkpoint with a finite loss and skip that data, lower the learning rate or "
        "clip gradients; with fp16 look at the loss scale. If one rank alone has NaN, check that GPU: `laggard "
        "healthcheck --active`."),
    "exception": Fix("The program raised it: begin at the line that is named."),
    "download": Fix(
        "Nodes that compute have often no way to the internet: fetch models, data and tokenizers before the job, on a "
        "file system that all nodes have, and set HF_HUB_OFFLINE=1; or set the proxy (HTTPS_PROXY) for the job.",
        ("curl -sI https://huggingface.co", "env | grep -i proxy"),
    ),
    "summary": Fix("The launcher's account has no cause. " + _LOGS),
    "status": Fix("The process left no reason in this log: look for that rank's own output (torchrun: --redirects "
        "3 --log-dir DIR), or decorate main() with torch.distributed.elastic.multiprocessing.errors.record."),
}  # fmt: skip
