"""The savings of layered gradient accumulation and modular pipelines (arXiv 2106.02679). Pure.

With the usual accumulation gradients are complete in the last micro-step, whose backward pass alone can hide their
reduction. Layered accumulation runs all micro-batches of a layer before the next layer: its reduction is hidden by the
rest of the whole backward pass, and partitioned weights are gathered once for all micro-batches.
"""

from __future__ import annotations

from typing import NamedTuple


class BandwidthNeed(NamedTuple):
    """Bytes per second that hide all of the gradients' reduction."""

    usual: float
    layered: float

    def pays(self, bandwidth: float) -> bool:
        """Returns whether layered accumulation hides what the usual one does not, at this bandwidth."""
        return self.layered <= bandwidth < self.usual


def bandwidth_need(reduced_bytes: float, backward_seconds: float, grad_accum: int) -> BandwidthNeed:
    """Returns the need for `reduced_bytes` on each GPU's link in an optimizer step of `grad_accum` micro-steps, whose
    backward passes take `backward_seconds` each."""
    return BandwidthNeed(reduced_bytes / backward_seconds, reduced_bytes / (backward_seconds * grad_accum))


def partitioned_volume(weights_bytes: float, grad_accum: int, layered: bool) -> float:
    """Returns the bytes that ZeRO-3 moves in an optimizer step: weights twice and gradients once, in each micro-step or
    once in all."""
    return 3 * weights_bytes * (1 if layered else grad_accum)


def bubble_seconds(stages: int, layers: int, layer_seconds: float, modular: bool) -> float:
    """Returns the time that a pipeline's stages wait at its beginning and end: for the layers of a stage, or, where
    stage i holds layers i, i + stages, ..., for one layer."""
    return (stages - 1) * layer_seconds * (1 if modular else layers / stages)
