"""The demo's training script: a small transformer under DeepSpeed, on CPU and gloo, with one rank slowed in a phase.

The script contains nothing of laggard: `laggard run` installs the hooks. Only this script knows what is slowed.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from torch.utils.data import DataLoader, Dataset

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled, perhaps without a compiler

VOCABULARY, SEQUENCE, WIDTH, LAYERS, HEADS = 512, 32, 64, 2, 4


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--zero", type=int, default=2)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-phase", default="forward")
    parser.add_argument("--slow-by", type=float, default=0.0)
    return parser.parse_args()


class Delay:
    """Sleeps in one phase of one rank, as long as a throttled GPU or a slow disk would delay it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._phase = options.slow_phase if int(os.environ["RANK"]) == options.slow_rank else None
        self._seconds = options.slow_by

    def __call__(self, phase: str) -> None:
        if phase == self._phase:
            time.sleep(self._seconds)


class Tokens(Dataset[torch.Tensor]):
    """Random token sequences; the delay in `input` is a slow read."""

    def __init__(self, options: argparse.Namespace, delay: Delay) -> None:
        self._generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
        self._length: int = options.steps * options.micro_batch
        self._micro_batch = options.micro_batch
        self._delay = delay

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % self._micro_batch == 0:
            self._delay("input")
        return torch.randint(VOCABULARY, (SEQUENCE + 1,), generator=self._generator)


class SlowBackward(torch.autograd.Function):
    """The identity function with a slow gradient."""

    @staticmethod
    def forward(context: Any, hidden: torch.Tensor, delay: Delay) -> torch.Tensor:
        context.delay = delay
        return hidden.view_as(hidden)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        context.delay("backward")
        return gradient, None


class Transformer(torch.nn.Module):
    """A language model of a few hundred thousand parameters. forward() returns the loss."""

    def __init__(self, delay: Delay) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)
        self._delay = delay

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self._delay("forward")
        mask = torch.nn.Transformer.generate_square_subsequent_mask(SEQUENCE)
        hidden = self.layers(self.embedding(tokens[:, :-1]), mask=mask, is_causal=True)
        logits = self.head(SlowBackward.apply(hidden, self._delay))  # type: ignore[no-untyped-call]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class SlowAdamW(torch.optim.AdamW):
    """AdamW with the delay in its step."""

    delay: Delay

    def step(self, closure: Any = None) -> Any:
        self.delay("optimizer")
        return super().step(closure)


def configuration(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": options.micro_batch,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": options.zero, "reduce_bucket_size": 100_000},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
    }


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    delay = Delay(options)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    model = Transformer(delay)
    optimizer = SlowAdamW(model.parameters(), lr=1e-3)
    optimizer.delay = delay
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration(options))
    for tokens in DataLoader(Tokens(options, delay), batch_size=options.micro_batch):
        loss = engine(tokens)
        engine.backward(loss)
        engine.step()
    torch.distributed.destroy_process_group()
    # gloo's threads may still hold the last collective's tensors. A thread that releases them while the interpreter
    # ends kills the process (in 2 % of runs: pthread_exit through C++ frames, SIGABRT).
    time.sleep(0.5)


if __name__ == "__main__":
    main()
