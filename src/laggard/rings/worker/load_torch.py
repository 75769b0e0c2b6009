"""The one place of rings that imports torch. It runs in workers alone, which are processes of their own."""

from __future__ import annotations

from typing import Any


def load_torch() -> Any:
    """Returns torch with torch.distributed. Raises ImportError, or OSError where a library of it is missing."""
    import torch
    import torch.distributed

    return torch
