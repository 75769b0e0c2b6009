"""A call after a library's own: with the same arguments and result, and without an error of ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from laggard.trainer_hooks.wrapping import call_after


class Module:
    def __init__(self, module: object, device: str = "cpu") -> None:
        """The library's own words."""
        self.arguments = module, device


def test_after_a_constructor_however_its_arguments_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(Module, "__init__", Module.__init__)  # put back at the end
    call_after(Module, "__init__", lambda _, module, /, *__, **___: made.append(module))
    modules = [Module(1), Module(module=1), Module(1, device="cuda")]
    assert made == modules and modules[2].arguments == (1, "cuda")
    assert Module.__init__.__doc__ == "The library's own words."


def test_after_a_function_its_result_comes_first() -> None:
    library, calls = SimpleNamespace(add=lambda a, b: a + b), []
    call_after(library, "add", lambda result, a, b: calls.append((result, a, b)))
    assert library.add(1, b=2) == 3 and calls == [(3, 1, 2)]


def test_what_a_call_of_ours_raises_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    library = SimpleNamespace(initialize=lambda: "engine")
    call_after(library, "initialize", lambda result: 1 // 0)
    assert library.initialize() == "engine"
    assert "the training goes on without it: ZeroDivisionError" in caplog.text


def test_the_librarys_own_error_passes_and_nothing_is_called_after_it() -> None:
    def refuse() -> None:
        raise ConnectionError

    library, calls = SimpleNamespace(close=refuse), []
    call_after(library, "close", lambda _: calls.append("after"))
    with pytest.raises(ConnectionError):
        library.close()
    assert calls == []
