"""Ends a process with the one that started it. Standard library only.

Where gpu-check is killed, its parts would go on, and a rank with a kernel that never ends would keep the GPU for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

PARENT = "GPU_CHECK_PARENT"  # the variable that has the process number of who started this process
_PR_SET_PDEATHSIG = 1  # Linux, include/uapi/linux/prctl.h


def end_with_parent() -> None:
    """Has this process killed when the thread that started it ends. Does nothing where the kernel does not know how."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1 and os.environ.get(PARENT, "1") != "1":  # it had ended before that
        os._exit(1)
    os.environ[PARENT] = str(os.getpid())
