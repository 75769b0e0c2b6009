"""The amount of work that a model is given, by the shape of its first input: that costs no look at the device."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Any, Final

_MAX_LOOKED_AT: Final = 8  # of a call's arguments, and of what is in one of them


def elements(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The number of elements of the first tensor among a forward pass's arguments, or in the first list or mapping of
    tensors among them: tokens, where a model takes tokens. 0 where there is none, and where the model is being traced:
    to ask would become a part of the trace."""
    try:
        torch = sys.modules["torch"]
        if torch._C._is_tracing():
            return 0
        if args and isinstance(args[0], torch.Tensor):  # mostly
            return _known(args[0])
        return _search(torch.Tensor, chain(args, kwargs.values()))
    except Exception:
        return 0


def _search(kind: Any, values: Iterable[Any]) -> int:
    for value in islice(values, _MAX_LOOKED_AT):
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
        for each in chain((value,), islice(inner, _MAX_LOOKED_AT)):
            if isinstance(each, kind):  # and no stand-in of torch.fx's, which would note that it was asked
                return _known(each)
    return 0


def _known(tensor: Any) -> int:
    """A compiler's tensor may have a symbol for its size: that is not looked into."""
    count = tensor.numel()
    return count if type(count) is int else 0


ASKED_OF_TENSORS: Final = (elements, _search, _known)
"""The functions here that ask tensors something: a compiler must not take them for the user's."""
