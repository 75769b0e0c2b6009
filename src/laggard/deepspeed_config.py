"""A DeepSpeed configuration (JSON) as values: what it sets, and what is wrong with it. Pure, standard library only.

Names and defaults are those of DeepSpeed 0.19 (deepspeed/runtime/zero/config.py, runtime/constants.py). `overlap_comm`
is off by default but for stage 3. Hugging Face's Trainer fills in values that are `auto`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

_MAX_JSON_CHARACTERS: Final = 1 << 20
AUTO: Final = "auto"
BUCKET_ELEMENTS: Final = 500_000_000
PREFETCH_ELEMENTS: Final = 50_000_000
_MARKS: Final = frozenset(
    {"zero_optimization", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"}
)
_ZERO_KEYS: Final = frozenset(
    [
        "stage",
        "contiguous_gradients",
        "reduce_scatter",
        "reduce_bucket_size",
        "use_multi_rank_bucket_allreduce",
        "allgather_partitions",
        "allgather_bucket_size",
        "overlap_comm",
        "compute_grad_norm",
        "load_from_fp32_weights",
        "elastic_checkpoint",
        "offload_param",
        "offload_optimizer",
        "zenflow",
        "sub_group_size",
        "cpu_offload_param",
        "cpu_offload_use_pin_memory",
        "cpu_offload",
        "prefetch_bucket_size",
        "stage3_prefetch_bucket_size",
        "param_persistence_threshold",
        "stage3_param_persistence_threshold",
        "model_persistence_threshold",
        "stage3_model_persistence_threshold",
        "max_live_parameters",
        "stage3_max_live_parameters",
        "max_reuse_distance",
        "stage3_max_reuse_distance",
        "gather_16bit_weights_on_model_save",
        "stage3_gather_16bit_weights_on_model_save",
        "module_granularity_threshold",
        "stage3_module_granularity_threshold",
        "use_all_reduce_for_fetch_params",
        "stage3_use_all_reduce_for_fetch_params",
        "allgather_sequential",
        "stage3_allgather_sequential",
        "stage3_gather_fp16_weights_on_model_save",
        "ignore_unused_parameters",
        "legacy_stage1",
        "round_robin_gradients",
        "parameter_alignment",
        "zero_hpz_partition_size",
        "zero_quantized_weights",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_gradients",
        "mics_shard_size",
        "mics_hierarchical_params_gather",
        "memory_efficient_linear",
        "pipeline_loading_checkpoint",
        "override_module_apply",
        "log_trace_cache_warnings",
        "enable_sanity_checks",
        "save_muon_momentum_buffer_in_memory",
        "leaf_module",
    ]
)
"""DeepSpeed refuses any other key of `zero_optimization`."""


_HASHED: Final = (
    *("zero_optimization", "optimizer", "scheduler", "fp16", "bf16", "amp", "gradient_clipping", "prescale_gradients"),
    *("activation_checkpointing", "communication_data_type", "sparse_attention", "compression_training", "aio"),
    *("compile", "pipeline", "flops_profiler", "wall_clock_breakdown", "dataloader_drop_last"),
)


class DeepSpeedConfig(NamedTuple):
    """The settings of a configuration, defaults filled in. None: `auto`, or not set and without a default."""

    stage: int = 0
    overlap_comm: bool = False
    reduce_bucket_size: int = BUCKET_ELEMENTS
    allgather_bucket_size: int = BUCKET_ELEMENTS
    reduce_scatter: bool = True
    multi_rank_bucket_allreduce: bool = True
    contiguous_gradients: bool = True
    micro_batch: int | None = None
    grad_accum: int | None = None
    train_batch: int | None = None
    offload_optimizer: str = ""
    """The place to which the optimizer's state is moved: `cpu` or `nvme`; empty: it stays on the GPU."""
    offload_param: str = ""
    quantized_weights: bool = False
    quantized_gradients: bool = False
    prefetch_bucket_size: int = PREFETCH_ELEMENTS


def is_deepspeed_config(tree: Any) -> bool:
    if not isinstance(tree, dict):
        return False
    return "zero_optimization" in tree or len(_MARKS & tree.keys()) >= 2


def parse_config(tree: Mapping[str, Any]) -> DeepSpeedConfig:
    """Returns the settings; a value of a wrong type counts as not set, and `find_problems` names it."""
    zero = _zero(tree)
    stage = _whole(zero.get("stage")) or 0
    stage = stage if stage in range(4) else 0
    return DeepSpeedConfig(
        stage=stage,
        overlap_comm=_flag(zero, "overlap_comm", stage == 3),
        reduce_bucket_size=_whole(zero.get("reduce_bucket_size")) or BUCKET_ELEMENTS,
        allgather_bucket_size=_whole(zero.get("allgather_bucket_size")) or BUCKET_ELEMENTS,
        reduce_scatter=_flag(zero, "reduce_scatter", True),
        multi_rank_bucket_allreduce=_flag(zero, "use_multi_rank_bucket_allreduce", True),
        contiguous_gradients=_flag(zero, "contiguous_gradients", True),
        micro_batch=_whole(tree.get("train_micro_batch_size_per_gpu")),
        grad_accum=_whole(tree.get("gradient_accumulation_steps")),
        train_batch=_whole(tree.get("train_batch_size")),
        offload_optimizer=_offload(zero, "offload_optimizer", "cpu_offload"),
        offload_param=_offload(zero, "offload_param", "cpu_offload_param"),
        quantized_weights=_flag(zero, "zero_quantized_weights", False),
        quantized_gradients=_flag(zero, "zero_quantized_gradients", False),
        prefetch_bucket_size=_whole(zero.get("stage3_prefetch_bucket_size")) or PREFETCH_ELEMENTS,
    )


def told_settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a later run may be compared with: those that are known and not DeepSpeed's defaults, and of
    each section that decides how fast a step is, and holds no secret, the first digits of its SHA-256: what else
    changed there is seen, and not told."""
    own, default = parse_config(tree), DeepSpeedConfig()
    told = {name: value for name, value in own._asdict().items() if value != getattr(default, name)}
    for name in _HASHED:
        if name in tree:
            text = json.dumps(tree[name], sort_keys=True, default=str)
            told[f"section {name}"] = hashlib.sha256(text.encode()).hexdigest()[:8]
    return told


def find_problems(tree: Mapping[str, Any], data_parallel: int | None = None) -> tuple[str, ...]:
    """Returns what is wrong, one line each. `data_parallel`: how many ranks share a batch, None where not known."""
    return tuple([*_zero_problems(tree), *_batch_problems(tree, data_parallel), *_precision_problems(tree)])


def _zero_problems(tree: Mapping[str, Any]) -> Iterator[str]:
    given = tree.get("zero_optimization", {})
    if not isinstance(given, dict):
        yield f'zero_optimization is {_shown(given)}: give an object, such as {{"stage": 2}}'
        return
    stage = given.get("stage")
    if stage is not None and stage != AUTO and (not isinstance(stage, int) or stage not in range(4)):
        yield f"stage is {_shown(stage)}: DeepSpeed takes 0, 1, 2 or 3"
    for key in given:
        if key not in _ZERO_KEYS:
            close = difflib.get_close_matches(key, _ZERO_KEYS, n=1)
            yield f"{key[:60]} is no key of zero_optimization" + (f": is {close[0]} meant?" if close else "")
    for key in ("overlap_comm", "reduce_scatter", "contiguous_gradients", "use_multi_rank_bucket_allreduce"):
        if key in given and not isinstance(given[key], bool) and given[key] not in (AUTO, None):
            yield f"{key} is {_shown(given[key])}: give true or false"
    for key in ("reduce_bucket_size", "allgather_bucket_size"):
        value = given.get(key)
        if value not in (None, AUTO) and not _whole(value):
            yield f"{key} is {_shown(value)}: give a number of elements, such as 500000000"
    config = parse_config(tree)
    if config.offload_param and config.stage != 3:
        yield "offload_param works with stage 3 alone"
    if config.offload_optimizer and config.stage == 0:
        yield "offload_optimizer works from stage 1 on"
    if (config.quantized_weights or config.quantized_gradients) and config.stage != 3:
        yield "quantised weights and gradients work with stage 3 alone"


def _batch_problems(tree: Mapping[str, Any], data_parallel: int | None) -> Iterator[str]:
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        value = tree.get(key)
        if value not in (None, AUTO) and not _whole(value):
            yield f"{key} is {_shown(value)}: give a whole number above 0"
    config = parse_config(tree)
    train, micro, accumulation = config.train_batch, config.micro_batch, config.grad_accum
    if train and micro and accumulation:
        if train % (micro * accumulation):
            yield f"train_batch_size {train} is no multiple of {micro} x {accumulation}: DeepSpeed refuses it"
        elif data_parallel and train != micro * accumulation * data_parallel:
            product = f"{micro} x {accumulation} x {data_parallel} ranks"
            yield f"train_batch_size {train} is not {product}: DeepSpeed refuses it"


def _precision_problems(tree: Mapping[str, Any]) -> Iterator[str]:
    on = [name for name in ("fp16", "bf16") if isinstance(tree.get(name), dict) and tree[name].get("enabled") is True]
    if len(on) > 1:
        yield "fp16 and bf16 are both enabled: DeepSpeed refuses it"


def _zero(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    given = tree.get("zero_optimization")
    return given if isinstance(given, dict) else {}


def _flag(zero: Mapping[str, Any], key: str, default: bool) -> bool:
    value = zero.get(key)
    return value if isinstance(value, bool) else default


def _whole(value: Any) -> int | None:
    """Returns a number above 0, as DeepSpeed's `5e8` too; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e18 or value != int(value):
        return None
    return int(value)


def _offload(zero: Mapping[str, Any], key: str, old_key: str) -> str:
    given = zero.get(key)
    device = given.get("device", "none") if isinstance(given, dict) else "cpu" if zero.get(old_key) is True else "none"
    return device if device in ("cpu", "nvme") else ""


def _shown(value: Any) -> str:
    return repr(value)[:60]


def read_json(text: str) -> Any:
    """Returns the document; None for what is none, or is too large for a configuration."""
    if not text.lstrip().startswith("{") or len(text) > _MAX_JSON_CHARACTERS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
