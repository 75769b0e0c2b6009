"""What a stack says its process waits for: a collective, another process, the GPU; and which processes of a job
train nothing: launchers, loaders' workers, idle actors.

Sources of the names: torch/distributed (2.0 to 2.10), DeepSpeed's deepspeed/runtime/zero, Megatron-LM's
megatron/core/pipeline_parallel and megatron/core/distributed, vLLM's vllm/distributed/device_communicators, NCCL's src.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from laggard.diagnose.joined.dump_lines import Frame
from laggard.stacks.frames import collective_of as collective_of_frames
from laggard.stacks.frames import own_frame as own_python_frame

_C10D = re.compile(r"torch/distributed/(?:distributed_c10d|rendezvous)\.py$")
_ZERO = re.compile(r"deepspeed/runtime/zero/")
_ZERO_CALL = re.compile(r"_{0,2}(?:all_?gather|reduce_?scatter|all_?reduce|wait)\w*")
_PIPELINE = re.compile(r"megatron/core/(?:pipeline_parallel/p2p_communication|distributed/param_and_grad_buffer)\.py$")
_PIPELINE_CALL = re.compile(r"_?(?:communicate|p2p_ops|batched_p2p_ops|(?:send|recv)_\w+|finish_(?:param|grad)_sync)")
_MESSAGES = re.compile(r"distributed/device_communicators/shm_broadcast\.py$")
_MESSAGE_CALL = re.compile(r"(?:\w+\.)?(?:dequeue|enqueue|acquire_read|acquire_write|recv|wait)")
_GPU_WAIT = re.compile(r"_{0,2}(?:cuda|cu|hip)(?:Stream|Event|Device|Ctx)Synchronize\w*|(?:cuda|cu|hip)Memcpy\w*")
_GPU_LIBRARY = re.compile(r"\blib(?:cuda|amdhip64|hsa-runtime64)\.so")
_COMM_LIBRARY = re.compile(r"\blib(nccl|rccl|gloo|hccl|mpi)(?:_cxx)?\.so")
_SERVICE = re.compile(
    r"^ncclProxy|^persistentThread$|^ncclIbAsyncThread|^ncclRasThread|^rasThread|[wW]atchdog|HeartbeatMonitor"
    r"|gloo::transport::\w+::Loop::run|ProcessGroupGloo::runLoop|TCPStore\w*Daemon|::BackgroundThread::"
)
_NO_PLACE = re.compile(
    r"^(?:\?\?|0x[0-9a-f]+|_{0,2}(?:GI_)?_{0,3}(?:pthread|futex|poll|ppoll|epoll|select|read|recv|nanosleep|clock_nanosleep|syscall"
    r"|lll_lock|libc|sched_yield|clone|start_thread|internal_syscall)\w*(?:@.*)?|PyEval_\w+|_PyEval_\w+|_?Py\w+)$"
)
_PYTHON_FILE = re.compile(r"\.pyx?$|^<")
_LAUNCHER = re.compile(
    r"torch/distributed/(?:elastic/agent/server/|launcher/api\.py$)|deepspeed/launcher/|accelerate/commands/launch\.py$"
)
_WORKER = re.compile(
    r"torch/utils/data/_utils/worker\.py$|multiprocessing/(?:resource_tracker|forkserver)\.py$|_inductor/compile_worker/"
)
_SPAWNER = re.compile(r"torch/multiprocessing/spawn\.py$|multiprocessing/popen_\w+\.py$")
_ACTOR: Final = "ray/_private/worker.py"


def is_service(frames: Sequence[Frame]) -> bool:
    """Whether a thread is one of a library's own, which every process has and which waits all the time."""
    return any(_SERVICE.search(frame.function) for frame in frames)


def is_helper(frames: Sequence[Frame]) -> bool:
    """Whether a process trains nothing itself: a launcher, a worker of a DataLoader, an actor without a task."""
    if any(_WORKER.search(frame.file) or _LAUNCHER.search(frame.file) for frame in frames):
        return True
    if any(_SPAWNER.search(frame.file) and frame.function.rpartition(".")[2] in ("join", "poll") for frame in frames):
        return True
    return bool(frames) and frames[0].function.endswith("main_loop") and frames[0].file.endswith(_ACTOR)


def wait_of(frames: Sequence[Frame]) -> str:
    """Returns what a thread waits in, which others of its job or the GPU end. Empty: it waits for none of them."""
    if told := collective_of_frames(frames):
        return told
    for frame in frames:
        name = frame.function.rpartition(".")[2]
        for files, calls in ((_ZERO, _ZERO_CALL), (_PIPELINE, _PIPELINE_CALL), (_MESSAGES, _MESSAGE_CALL)):
            if files.search(frame.file) and calls.fullmatch(name):
                return name.strip("_")
        if _C10D.search(frame.file):
            return name
        if library := _COMM_LIBRARY.search(frame.file):
            return library[1].upper()
        if _GPU_WAIT.fullmatch(frame.function) or _GPU_LIBRARY.search(frame.file):
            return "synchronize"
    return ""


def own_frame(frames: Sequence[Frame]) -> Frame:
    """Returns the innermost frame that is no library's, of a stack with Python frames; else the innermost with a name
    that says more than how a thread sleeps."""
    python = [frame for frame in frames if _PYTHON_FILE.search(frame.file)]
    if python:
        return own_python_frame(python)
    return next((frame for frame in frames if not _NO_PLACE.match(frame.function)), frames[0])


def departing_frame(frames: Sequence[Frame], others: Sequence[Sequence[Frame]]) -> Frame:
    """Returns the frame that stands still: the own one, unless that line is on the others' stacks, too. Then it is the
    innermost line of Python that is not on theirs."""
    own = own_frame(frames)
    shared = {(it.function, it.file, it.line) for each in others for it in each}
    if (own.function, own.file, own.line) not in shared:
        return own
    python = [it for it in frames if _PYTHON_FILE.search(it.file) and (it.function, it.file, it.line) not in shared]
    outer = [it for it in python if "/" in it.file and not it.file.startswith("/usr/lib/python")]
    return next(iter(outer or python), own)
