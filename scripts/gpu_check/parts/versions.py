"""What is installed here, and which GPUs there are: facts, nothing is judged. They hold no host name and no address."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_check.outcome import REPOSITORY, Context, Outcome, info

PACKAGES = ("torch", "deepspeed", "nvidia-ml-py", "msgspec", "PyYAML", "numpy", "triton")


def run(context: Context) -> Iterator[Outcome]:
    yield info("laggard", laggard_version())
    yield info("python", f"{platform.python_version()} on {platform.machine()}")
    yield info("packages", ", ".join(f"{name} {version_of(name)}" for name in PACKAGES))
    yield info("driver", driver_version())
    yield info("torch", torch_versions())
    yield info("NCCL", nccl_version())


def laggard_version() -> str:
    from laggard import __version__

    commit = output_of(["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"])
    return f"{__version__} {commit}".strip()


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def driver_version() -> str:
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        text = output_of(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
        return text.partition("\n")[0] or "none found"


def torch_versions() -> str:
    torch = torch_module()
    if torch is None:
        return "cannot be imported"
    platform_name = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    count = torch.cuda.device_count()
    names = sorted({torch.cuda.get_device_name(index) for index in range(count)})
    return f"{torch.__version__}, {platform_name}, {count} GPUs{''.join(f', {name}' for name in names)}"


def nccl_version() -> str:
    torch = torch_module()
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return "none in torch"
    found: Any = torch.cuda.nccl.version()
    return ".".join(map(str, found)) if isinstance(found, tuple) else str(found)


def torch_module() -> Any:
    try:
        import torch
    except Exception as error:  # an installation may be damaged in any way
        print(f"torch: {error}", file=sys.stderr)
        return None
    return torch


def output_of(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
