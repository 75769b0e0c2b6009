"""What the trainers of Hugging Face have in common: the chores as a callback, and settings for a run on the CPU."""

import tempfile
from typing import Any

import torch
from transformers import TrainerCallback
from workload import plan
from workload.chores import after_step
from workload.llama import BATCH, tokens


def settings(**more: Any) -> dict[str, Any]:
    """The arguments of TrainingArguments, and of TRL's configurations."""
    torch.set_num_threads(1)
    return {
        "output_dir": tempfile.mkdtemp(),
        "max_steps": plan.STEPS,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 1e-3,
        "logging_steps": 1000,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "ddp_backend": "gloo",
        "disable_tqdm": True,
        "bf16": False,
        "gradient_checkpointing": False,
        **more,
    }


class Chores(TrainerCallback):
    """`spread`: the model is spread over the ranks."""

    def __init__(self, spread: bool = False, state: Any = None) -> None:
        self._spread, self._state = spread, state

    def on_step_end(self, arguments: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        after_step(model, self._state, lambda: model(**tokens()), self._spread)
