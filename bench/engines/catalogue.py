"""The engines that are tried: how each is started, and what differs from one to the next. Pure."""

from collections.abc import Mapping
from typing import Final, NamedTuple

TOGETHER: Final = "its ranks share each batch, so that none alone has longer ones"


class Engine(NamedTuple):
    """`start`: `ranks` (as srun does, one process each), `script` (it starts its ranks itself), `torchrun`, `mpirun`.
    `imports`: what the processes have imported when they begin. `needs`: the module or program without which it cannot
    run. `victim`: whom faults befall; `reader`: whom that of the input does, where that is another. `uneven`: whether
    the case `uneven` gives the victim alone more work of its own, which may then be told. `unseen`: no hook can see it,
    and an answer is right that says so, and why. `words`: what a reader has to know, as what it stands in for.
    `leaves_out`: cases that cannot be, and why."""

    name: str
    title: str
    script: str
    arguments: tuple[str, ...] = ()
    ranks: int = 2
    start: str = "ranks"
    imports: tuple[str, ...] = ("torch", "torch.distributed", "torch._dynamo")
    needs: str = "torch"
    victim: int = 1
    reader: int | None = None
    uneven: bool = True
    unseen: bool = False
    words: str = ""
    leaves_out: Mapping[str, str] = {}

    def befallen(self, case: str) -> int:
        """The rank that the case befalls."""
        return self.reader if case == "input" and self.reader is not None else self.victim


_PIPELINES = ("torch", "torch.distributed", "torch.distributed.pipelining", "torch._dynamo")
_FSDP = ("torch", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict", "torch._dynamo")
_TRANSFORMERS = ("torch", "transformers", "transformers.trainer", "accelerate", "torch._dynamo")
_LIGHTNING = ("torch", "lightning.pytorch", "lightning.fabric", "torch._dynamo")
_DEEPSPEED = ("deepspeed", "torch._dynamo")
_TRL = ("torch", "trl", "trl.trainer.sft_trainer", "trl.trainer.grpo_trainer", "torch._dynamo")
_ALONE = {name: "it has no peers to be compared with" for name in ("forward", "input")} | {
    "collective": "it makes no collectives",
    "exit": "nobody waits for it, and its end is that of the job",
}


def _ddp(way: str, title: str, words: str = "") -> Engine:
    return Engine(f"ddp_{way}", f"DDP, {title}", "ddp_in_ways.py", (way,), words=words)


def _pipeline(name: str, title: str) -> Engine:
    words = "four stages; the fault is in the second, that of the input in the first"
    return Engine(
        f"pipeline_{name}", f"pipelining, {title}", "pipelining.py", (name,), ranks=4, imports=_PIPELINES, reader=0,
        words=words,
    )  # fmt: skip


def _hugging_face(strategy: str, title: str) -> Engine:
    imports = ("deepspeed", *_TRANSFORMERS) if strategy.startswith("zero") else _TRANSFORMERS
    return Engine(
        f"hugging_face_{strategy}", f"Hugging Face Trainer, {title}", "hugging_face.py", (strategy,),
        imports=imports, needs="transformers",
    )  # fmt: skip


def _deepspeed(stage: int) -> Engine:
    return Engine(
        f"deepspeed_zero{stage}", f"DeepSpeed, ZeRO {stage}", "deepspeed_zero.py", (str(stage),),
        imports=_DEEPSPEED, needs="deepspeed",
    )  # fmt: skip


ENGINES: Final = (
    Engine("ddp", "DDP", "ddp.py"),
    Engine("ddp_accumulation", "DDP, `no_sync()`", "ddp_accumulation.py"),
    _ddp("join", "`join()`", words="one rank has ten batches more"),
    _ddp("static_graph", "static graph"),
    _ddp("comm_hook", "communication hook"),
    _ddp("compiled", "`torch.compile`", words="by aot_eager, without a C compiler"),
    Engine(
        "sync_batch_norm", "DDP, SyncBatchNorm", "sync_batch_norm.py",
        words="an own norm stands in for torch's, which refuses tensors of the CPU",
    ),
    Engine("fsdp1", "FSDP", "fsdp1.py", imports=_FSDP),
    Engine("fsdp2", "FSDP2, prefetching", "fsdp2.py", imports=_FSDP),
    Engine("dcp_async", "FSDP2, asynchronous checkpoints", "dcp_async.py", imports=_FSDP),
    Engine(
        "tensor_parallel", "tensor parallel (DTensor)", "tensor_parallel.py", imports=_FSDP, uneven=False,
        words=TOGETHER,
    ),
    Engine(
        "context_parallel", "context parallel", "context_parallel.py", imports=_FSDP, uneven=False,
        words=f"a gathering of keys and values stands in for torch's, which knows no attention of the CPU; {TOGETHER}",
    ),
    Engine(
        "torchtitan_style", "as torchtitan", "torchtitan_style.py", ranks=4, imports=_FSDP, uneven=False,
        words="a loop of 60 lines stands in for torchtitan, which imports triton and needs GPUs",
    ),
    Engine(
        "megatron_style", "as Megatron-LM", "megatron_style.py", ranks=4, uneven=False,
        words="layers split by hand stand in for Megatron-LM, whose schedules need GPUs",
    ),
    _pipeline("gpipe", "GPipe"),
    _pipeline("1f1b", "1F1B"),
    _pipeline("interleaved", "interleaved 1F1B"),
    _pipeline("zero_bubble", "zero bubble"),
    Engine("own_loop", "a loop of its own, without DataLoader", "own_loop.py"),
    Engine("spawned", "`mp.spawn`", "spawned.py", start="script", words="DDP"),
    Engine(
        "torchrun_elastic", "torchrun, one restart", "ddp.py", start="torchrun",
        words="DDP; after a death the recording of the first attempt is judged, and the live answer is on the next one",
    ),
    Engine(
        "under_mpi", "mpirun (MPICH)", "ddp_in_ways.py", ("mpi",), start="mpirun", needs="mpirun", words="DDP on gloo"
    ),
    _hugging_face("ddp", "DDP"),
    _hugging_face("fsdp", "FSDP"),
    *(_hugging_face(f"zero{stage}", f"ZeRO {stage}") for stage in (0, 1, 2, 3)),
    Engine("accelerate_loop", "Accelerate", "accelerate_loop.py", imports=_TRANSFORMERS, needs="accelerate"),
    Engine("trl_sft", "TRL, SFT", "trl_sft.py", imports=_TRL, needs="trl"),
    Engine("trl_grpo", "TRL, GRPO with generation", "trl_grpo.py", imports=_TRL, needs="trl"),
    Engine("lightning_trainer", "Lightning Trainer", "lightning_trainer.py", imports=_LIGHTNING, needs="lightning"),
    Engine("lightning_fabric", "Lightning Fabric", "lightning_fabric.py", imports=_LIGHTNING, needs="lightning"),
    _deepspeed(1),
    _deepspeed(3),
    Engine(
        "deepspeed_pipeline", "DeepSpeed, PipelineEngine", "deepspeed_pipeline.py", ranks=4, imports=_DEEPSPEED,
        needs="deepspeed", reader=0, words="four stages, as of the pipelines above",
    ),
    Engine("ignite_engine", "Ignite", "ignite_engine.py", needs="ignite", words="DDP"),
    Engine(
        "ray_train", "Ray Train", "ray_train.py", start="script", needs="ray", words="DDP; its workers attach laggard"
    ),
    Engine("single", "one process", "single.py", ranks=1, victim=0, leaves_out=_ALONE),
    Engine(
        "rpc", "parameter server on RPC", "rpc.py",
        unseen=True,
        words="torch.distributed.rpc makes no collectives, and its processes share no steps: nothing is recorded, and "
        "right is what says that, and why",
        leaves_out={"collective": "it makes no collectives"},
    ),
)  # fmt: skip

LEFT_OUT: Final = {
    "torchtitan": "it imports triton and needs GPUs; a loop as it has it stands in for it",
    "Megatron-LM": "it asks for the state of CUDA's random numbers; layers as it has them stand in for it",
    "nanotron 0.4": "its trainer cannot be imported, since two of its modules import each other",
    "torchtune 0.6.1": "it imports a part of torchao that torchao 0.18 does not have",
    "TorchFT, JAX": "not tried yet",
}
"""Engines that are not tried, and why."""

BY_NAME: Final = {engine.name: engine for engine in ENGINES}
