"""What differs between the versions of torch with which the hooks' tests run. Torch is not imported for that."""

import importlib.metadata
import importlib.util
import re
from typing import Final


def version_of(package: str) -> tuple[int, int]:
    """Major and minor; (0, 0) where it is not installed."""
    if importlib.util.find_spec(package) is None:
        return 0, 0
    major, minor = re.findall(r"\d+", importlib.metadata.version(package))[:2]
    return int(major), int(minor)


TORCH: Final = version_of("torch")
GLOO_CAN_BE_RECORDED: Final = TORCH >= (2, 8)
"""Whether the Flight Recorder can hold gloo's collectives. In older versions it has NCCL's alone."""
GLOO_IS_RECORDED: Final = TORCH >= (2, 12)
"""Whether it does so where nothing is set. Where it does not, collectives that C++ makes on gloo are counted as lost,
and a wait for them is not known."""
LAUNCHES_ARE_HOOKED: Final = TORCH >= (2, 15)
"""Whether a process group has hooks of its own, which name what the Flight Recorder does not."""
