"""What the hooks see in torch's own objects: which modules an optimizer trains, how large an input is, and whether an
update only makes the optimizer's state. test_trained_modules.py has them in trainings."""

from __future__ import annotations

from typing import Any

import pytest
from support.later import Later

torch = Later("torch")
input_size = Later("laggard.trainer_hooks.pytorch.forward")
state_making = Later("laggard.trainer_hooks.pytorch.training")
trained = Later("laggard.trainer_hooks.pytorch.training")

pytestmark = pytest.mark.torch


def sgd(*modules: Any) -> Any:
    return torch.optim.SGD([each for module in modules for each in module.parameters()], lr=0.1)


def test_the_outermost_modules_with_the_optimizers_parameters_are_trained() -> None:
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(2, 2), torch.nn.Sequential(linear(2, 2)))
    part, other = linear(2, 2), linear(2, 2)
    held = torch.nn.ModuleList([linear(2, 2)])  # nobody calls a list: its members are called
    half_made = object.__new__(linear)  # its __init__() has not come to that of its base
    assert {id(each) for each in trained.trained_modules(sgd(model, part, held))} == {id(model), id(part), id(held[0])}
    assert trained.trained_modules(sgd(other)) == [other] and half_made not in trained.trained_modules(sgd(part))
    assert trained.trained_modules(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)) == []


def test_an_inputs_size_is_that_of_its_first_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, other = torch.ones(4, 8), torch.ones(100)
    for args, kwargs, size in (
        ((tokens, other), {}, 32),
        ((), {"input_ids": tokens, "labels": other}, 32),
        (("text", [tokens, other]), {}, 32),
        (({"input_ids": tokens},), {}, 32),
        ((tuple("abc"), None), {"batch": other}, 100),
        (([[tokens]],), {}, 0),  # deeper is not looked
        ((list("abcdefgh") + [tokens],), {}, 0),  # nor further
        ((), {}, 0),
    ):
        assert input_size.elements(args, kwargs) == size, (args, kwargs)

    class Broken:
        @property
        def __class__(self) -> Any:
            raise RuntimeError

    assert input_size.elements((Broken(),), {}) == 0
    monkeypatch.setattr("torch._C._is_tracing", lambda: True)
    assert input_size.elements((tokens,), {}) == 0, "what is asked while a model is traced would be part of the trace"


def test_an_update_with_gradients_of_zero_alone_makes_state() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = sgd(model)
    assert not state_making.only_makes_state(optimizer), "there are no gradients"
    model(torch.ones(1, 3)).sum().backward()
    assert not state_making.only_makes_state(optimizer)
    for parameter in model.parameters():
        parameter.grad.zero_()
    assert state_making.only_makes_state(optimizer)
    model.bias.grad[1] = 1e-30
    assert not state_making.only_makes_state(optimizer)
    assert not state_making.only_makes_state(object()), "what cannot be read trains"
