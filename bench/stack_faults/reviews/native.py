"""What is written in C."""

from __future__ import annotations

import ctypes
import os

import torch.utils.cpp_extension

from reviews import plan


def calibrate(step: int) -> None:
    if plan.FAULT == "gil" and step == plan.HANG_STEP:
        library = ctypes.PyDLL(None)
        library.sleep(10_000 if plan.hangs("gil", step) else 0)  # fault: gil


def compile_kernels() -> None:
    """Compiles an extension, unless somebody else does so: on one rank somebody did, and was killed."""
    if plan.mine("baton"):
        build = plan.folder() / "kernels"
        build.mkdir()
        (build / "lock").touch()
        source = build / "kernels.cpp"
        source.write_text("int nothing() { return 0; }\n")
        plan.mark()
        torch.utils.cpp_extension.load("kernels", [str(source)], build_directory=str(build))  # fault: baton


def stale_lock_of_deepspeed() -> None:
    """On one rank DeepSpeed's own extension has a lock of a process that was killed."""
    folder = plan.folder() / "extensions"
    (folder / "deepspeed_shm_comm").mkdir(parents=True)
    (folder / "deepspeed_shm_comm" / "lock").touch()
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    plan.mark()
