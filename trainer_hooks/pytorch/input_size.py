"""How much a model is given to do, by the shape of its first input: that costs no look at the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Any, Final

_MAX_LOOKED_AT: Final = 8  # of a call's arguments, and of what is in one of them


def elements(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """How many elements the first tensor has among a forward pass's arguments, or in the first list or mapping of
    tensors among them: tokens, where a model takes tokens. 0 where there is none."""
    try:
        if args:
            return int(args[0].numel())  # mostly a tensor: nothing is asked twice
    except Exception:
        pass
    return _search(chain(args, kwargs.values()))


def _search(values: Iterable[Any]) -> int:
    try:
        for value in islice(values, _MAX_LOOKED_AT):
            inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
            for each in chain((value,), islice(inner, _MAX_LOOKED_AT)):
                if hasattr(each, "numel"):
                    return int(each.numel())
    except Exception:
        return 0  # a tensor of another kind, with a size that is not known
    return 0
