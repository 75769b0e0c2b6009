"""A digest changes with every bit, whichever way it is computed, and with nothing else."""

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch

DTYPES = ("float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "complex64", "uint8")


@pytest.fixture(params=["hash_tensor", "older"])
def torch(request: pytest.FixtureRequest) -> Any:
    """torch, and one that has no hash_tensor, as torch 2.4 to 2.8."""
    import torch

    if request.param == "hash_tensor":
        return torch
    return SimpleNamespace(**{name: value for name, value in vars(torch).items() if name != "hash_tensor"})


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_bit_of_each_element_counts(torch: Any, dtype: str) -> None:
    from laggard.trainer_hooks.pytorch.ddp import digest

    kind = getattr(torch, dtype)
    tensors = [torch.linspace(1, 3, 6).view(2, 3).to(kind), torch.ones(1).to(kind)]
    whole = [each.contiguous().view(torch.uint8).view(-1) for each in tensors]
    healthy = int(digest(torch, tensors))
    assert int(digest(torch, [each.clone() for each in tensors])) == healthy
    for raw in whole:
        for place in range(len(raw)):
            for bit in range(8):
                raw[place] ^= 1 << bit
                assert int(digest(torch, tensors)) != healthy, (place, bit)
                raw[place] ^= 1 << bit
    assert int(digest(torch, tensors)) == healthy


def test_parts_are_weighted_beyond_a_chunk(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from laggard.trainer_hooks.pytorch import ddp as parameter_digest

    monkeypatch.setattr(parameter_digest, "_CHUNK", 4)
    tensor = torch.arange(11, dtype=torch.float32)
    healthy = int(parameter_digest.weighted_sum(torch, tensor))
    for place in range(11):
        changed = tensor.clone()
        changed.view(torch.int32)[place] ^= 1
        assert int(parameter_digest.weighted_sum(torch, changed)) != healthy


def test_a_transposed_parameter_is_read_as_it_is(torch: Any) -> None:
    from laggard.trainer_hooks.pytorch.ddp import weighted_sum

    tensor = torch.arange(6, dtype=torch.float32).view(2, 3)
    assert int(weighted_sum(torch, tensor.t())) == int(weighted_sum(torch, tensor.t().contiguous()))


def test_frozen_modules_are_left_out_and_shards_are_known(torch: Any) -> None:
    from torch import nn

    from laggard.trainer_hooks.pytorch.ddp import are_sharded, trained_parameters

    frozen, trained = nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)
    assert trained_parameters([frozen, trained, nn.Sequential(trained)]) == list(trained.parameters())
    assert not are_sharded([trained], list(trained.parameters()))
    trained.weight.ds_id = 3  # as ZeRO-3 marks its parameters
    assert are_sharded([trained], list(trained.parameters()))
