"""Variables of torch and CUDA that help to find a defect, and make each step slower meanwhile: remove them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.recommend.advice.rule import Rule, variable
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = "PyTorch's documentation: torch.distributed, ProcessGroupNCCL and CUDA environment variables"


class _Switch(NamedTuple):
    """`on`: the values, in lower case, with which it costs time."""

    on: tuple[str, ...]
    does: str


_SWITCHES: Final = {
    "TORCH_DISTRIBUTED_DEBUG": _Switch(("detail",), "compares every collective of all ranks before it begins"),
    "CUDA_LAUNCH_BLOCKING": _Switch(("1",), "waits for every kernel before the next one is launched"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _Switch(("1",), "asks the driver for every tensor's memory"),
    "TORCH_NCCL_NAN_CHECK": _Switch(("1", "true", "yes", "on", "y"), "looks at every number that is sent"),
}


def judge(situation: Situation) -> Iterator[Item]:
    """Its gain is known of no job before it was tried: how much there is to check differs."""
    for name, switch in _SWITCHES.items():
        value = situation.torch_variables.get(name, "")
        if value.lower() not in switch.on:
            continue
        apply, revert = variable(name, value, None)
        yield Item(
            target="launcher",
            key=name,
            current=value,
            recommended=None,
            reason=f"{name}={value} {switch.does}, to find a defect",
            evidence=(f"the ranks have {name}={value}",),
            gain=Gain("rule", None, 1.0, None),
            risk="Whoever looks for a defect with it needs it until that is found: ask.",
            apply=apply,
            revert=revert,
            commands=(apply,),
            source=SOURCE,
        )


RULE = Rule("debug_variables", judge, SOURCE, "torch 2.4 to 2.13")
