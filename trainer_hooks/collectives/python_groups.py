"""Process groups and works that are written in Python, as subclasses of torch's own: they run as without the hooks.

Torch's C++ asks such an object for a Python method before it does the work itself (pybind11, get_override), and takes a
hook at torch's class for one. It takes none where the attribute is a C++ function, or where the innermost Python
function has the method's name and the object as its first argument: then that is the method, which calls torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any, NamedTuple

from laggard.trainer_hooks.wrapping import suppress_errors


class HookedMethod(NamedTuple):
    """A method of torch's own class: torch's function, and the function with the hook that stands in its place."""

    original: Callable[..., Any]
    hooked: Callable[..., Any]


def as_method(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns a function that does what `original` does, for calls from a function that is not the method `name`."""

    def method(self: Any, *args: Any, **named: Any) -> Any:
        return original(self, *args, **named)

    method.__code__ = method.__code__.replace(co_name=name)
    return method


def leave_to_torch(torch_class: Any, methods: Mapping[str, HookedMethod]) -> None:
    """Gives objects of subclasses of `torch_class` torch's own functions for those of `methods` that the subclass does
    not define. A call of super() in those that it defines comes to the hooks."""
    for subclass in _subclasses(torch_class):
        _leave(subclass, methods)

    def init_subclass(subclass: Any, /, **named: Any) -> None:
        super(torch_class, subclass).__init_subclass__(**named)
        suppress_errors(_leave, subclass, methods)

    torch_class.__init_subclass__ = classmethod(init_subclass)


def _subclasses(torch_class: Any) -> Iterator[Any]:
    for subclass in torch_class.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _leave(subclass: Any, methods: Mapping[str, HookedMethod]) -> None:
    for name, method in methods.items():
        if name not in vars(subclass):
            setattr(subclass, name, _LeftToTorch(subclass, name, method))


class _LeftToTorch:
    """Stands in `subclass` for a method that it does not define: the next class's, except that an object whose own
    method would be the hooked one has torch's."""

    def __init__(self, subclass: Any, name: str, method: HookedMethod) -> None:
        self._subclass = subclass
        self._name = name
        self._method = method

    def __get__(self, instance: Any, owner: Any) -> Any:
        found = getattr(super(self._subclass, owner if instance is None else instance), self._name)
        if instance is not None and getattr(found, "__func__", None) is self._method.hooked and self._is_first(owner):
            return MethodType(self._method.original, instance)
        return found

    def _is_first(self, owner: Any) -> bool:
        """Whether the object was asked, and not super() in a method of one of its classes."""
        return next(vars(each)[self._name] for each in owner.__mro__ if self._name in vars(each)) is self

    def __reduce__(self) -> tuple[Any, ...]:
        """The reader gets the method that its torch has, where a class is pickled as a whole (by cloudpickle)."""
        import torch.distributed

        return getattr, (torch.distributed.ProcessGroup, self._name)
