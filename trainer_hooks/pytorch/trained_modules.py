"""Finds the modules that an optimizer trains, where nothing has named them: a loop of its own, without DDP, FSDP or an
engine. It looks through all objects of the process, some tenths of a second for millions, and so once."""

from __future__ import annotations

import gc
import sys
from typing import Any


def trained_modules(optimizer: Any) -> list[Any]:
    """The outermost modules that hold a parameter of `optimizer`: what a script calls for its forward pass."""
    nn = sys.modules["torch"].nn
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    # By type(): other objects may answer isinstance() with code of their own, as lazy proxies do.
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module) and _is_made(each)]
    holders = (nn.ModuleList, nn.ModuleDict)  # which nobody calls
    inner = {id(child) for each in modules if type(each) not in holders for child in each._modules.values()}
    outermost = (each for each in modules if id(each) not in inner and type(each) not in holders)
    return [each for each in outermost if any(id(parameter) in trained for parameter in each.parameters())]


def _is_made(module: Any) -> bool:
    """False of one whose __init__() has not come to that of its base."""
    return "_modules" in module.__dict__ and "_parameters" in module.__dict__
