"""What comes after each step."""

from __future__ import annotations

from reviews import checkpoint, feeds, logs, memory, metrics, native


def after_step(step: int) -> None:
    logs.progress(step)
    metrics.send(step)
    memory.tidy()
    feeds.next_shard(step)
    native.calibrate(step)
    checkpoint.save(step)
