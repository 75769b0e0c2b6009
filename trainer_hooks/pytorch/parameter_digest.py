"""A 64-bit digest of parameters, computed where they are, with no synchronisation.

torch.hash_tensor (from torch 2.9 on) is the XOR of all elements, as 64-bit numbers: one that changes changes it. Where
that is not, or not for a type of numbers, the digest is the sum of the bits of each element, as an integer, times an
odd weight by its place, modulo 2**64: a flipped bit adds or takes an odd multiple of a power of two below 2**64, which
is not 0. Neither depends on the order of the additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from laggard.trainer_hooks.collectives.groups import sharding_groups

_CHUNK: Final = 1 << 22
"""The elements that are weighted at once: 32 MiB of weights, and as much of products."""

_HASHED: Final = ("float64", "float32", "float16", "bfloat16")


def trained_parameters(modules: Sequence[Any]) -> list[Any]:
    """The parameters, each once, of the modules that have any to train."""
    of_each = [list(module.parameters()) for module in modules]
    trained = [own for own in of_each if any(each.requires_grad for each in own)]
    return list({id(each): each for own in trained for each in own}.values())


def are_sharded(modules: Sequence[Any], parameters: Sequence[Any]) -> bool:
    """Whether ranks hold parts of these parameters: FSDP of either kind, ZeRO-3 (`ds_id`), DTensor (`device_mesh`)."""
    names = ("ds_id", "device_mesh")
    if any(hasattr(each, name) for each in parameters for name in names):
        return True
    parts = [part for module in modules for part in module.modules()]
    return any(type(part).__name__ == "FullyShardedDataParallel" or sharding_groups(part) for part in parts)


def digest(torch: Any, parameters: Sequence[Any]) -> Any:
    """A tensor of one int64, on the device of the first of `parameters`; those on other devices are left out. Raises
    whatever torch does of tensors that it cannot read so."""
    with torch.no_grad():
        device = parameters[0].device
        here = [each.detach() for each in parameters if each.device == device and each.numel()]
        parts = torch.stack([_tensor_digest(torch, each) for each in here])
        return (parts * _weights(torch, len(here), device)).sum()


def _tensor_digest(torch: Any, tensor: Any) -> Any:
    hash_tensor = getattr(torch, "hash_tensor", None)
    if hash_tensor is not None and str(tensor.dtype).removeprefix("torch.") in _HASHED:
        return hash_tensor(tensor).view(torch.int64)
    return weighted_sum(torch, tensor)


def weighted_sum(torch: Any, tensor: Any) -> Any:
    """The sum of the bits of each element times its weight, modulo 2**64: a tensor of one int64."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat = tensor.contiguous().view(integers).flatten()
    weights = _weights(torch, min(_CHUNK, len(flat)), tensor.device)
    chunks = flat.split(_CHUNK)
    sums = torch.stack([(chunk * weights[: len(chunk)]).sum() for chunk in chunks])
    return (sums * _weights(torch, len(chunks), tensor.device)).sum()


def _weights(torch: Any, count: int, device: Any) -> Any:
    """The first odd numbers."""
    return torch.arange(1, 2 * count, 2, dtype=torch.int64, device=device)
