"""Draws from a generator, as plain Python values."""

from typing import Any

import numpy as np

Generator = np.random.Generator


def pick(rng: Generator, values: list[Any]) -> Any:
    """One of the values, each as likely; as numpy has it, so that the caller says of which type it is."""
    return rng.choice(values)


def chance(rng: Generator, share: float) -> bool:
    return bool(rng.random() < share)


def uniform(rng: Generator, low: float, high: float) -> float:
    return float(rng.uniform(low, high))
