"""What the parts of gpu-check find, as values. Standard library only."""

from __future__ import annotations

import glob
import importlib.util
import os
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]

OK, FAIL, INFO, NOT_RUN = "ok", "FAIL", "info", "not run"


class Outcome(NamedTuple):
    """One line of the table. `status`: OK; FAIL, something in laggard is wrong; INFO, a figure or fact that is not
    judged; NOT_RUN, with the reason in `text`."""

    check: str
    status: str
    text: str

    @property
    def good(self) -> bool:
        return self.status != FAIL


class Context(NamedTuple):
    """What a part is given. `out`: the folder for its files. `rehearse`: run on the CPU what can run there, to try
    gpu-check itself on a machine without a GPU."""

    out: Path
    rehearse: bool = False


class CannotRun(Exception):
    """The part cannot run on this machine; the text gives the reason."""


def judged(check: str, good: bool, text: str) -> Outcome:
    return Outcome(check, OK if good else FAIL, text)


def info(check: str, text: str) -> Outcome:
    return Outcome(check, INFO, text)


DEVICE_FILES = (  # any of these: there may be a GPU that torch can use. NVIDIA's; WSL's; Jetson's; AMD's
    *("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/proc/driver/nvidia/gpus/*", "/dev/dxg", "/dev/nvmap", "/dev/nvhost-*"),
    "/dev/kfd",
)


def python_path() -> str:
    """PYTHONPATH for a part and its jobs: laggard's source and this package come before what is installed."""
    own = [str(REPOSITORY / "src"), str(REPOSITORY / "scripts")]
    others = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each not in own]
    return os.pathsep.join((*own, *others))


def torch_on_gpu() -> Any:
    """Returns torch. Raises CannotRun where there is none or it finds no GPU, ImportError where torch is damaged. Where
    the machine has no file of a GPU's driver, torch is not imported to say so: that takes seconds for each part."""
    if not any(glob.glob(pattern) for pattern in DEVICE_FILES):
        raise CannotRun("no GPU: there is no /dev/nvidia0 or /dev/kfd")
    try:
        import torch
    except ModuleNotFoundError as error:
        raise CannotRun(needs_module(error)) from None
    if not torch.cuda.is_available():
        raise CannotRun(f"no GPU: torch {torch.__version__} finds none")
    return torch


def require_nvidia_gpu() -> None:
    """Raises CannotRun where neither the driver's files nor the PCI tree show an NVIDIA GPU. In some containers only
    one of the two is visible."""
    if glob.glob("/dev/nvidia[0-9]*") or glob.glob("/proc/driver/nvidia/gpus/*"):
        return
    for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
        folder = Path(path).parent
        try:
            if Path(path).read_text().strip() == "0x10de" and (folder / "class").read_text().startswith("0x03"):
                return
        except OSError:
            continue
    raise CannotRun("no GPU: there is no /dev/nvidia0, and no NVIDIA GPU in the PCI tree")


def require_locate() -> None:
    """Raises CannotRun where this Python lacks what `laggard locate` needs."""
    missing = [name for name in ("msgspec", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise CannotRun(f"`laggard locate` needs the Python modules {names} (PYTHONPATH, or another PYTHON=...)")


def needs_module(error: ModuleNotFoundError) -> str:
    return f"this Python has no module {error.name} (PYTHONPATH, or another PYTHON=...)"
