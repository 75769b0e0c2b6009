"""The processes on the GPUs, by NVML, again and again: for who has to make room for them. A call may never return where
the driver hangs."""

from __future__ import annotations

from typing import Any

from laggard.probes.nvml.fields import failure_name


class NvmlUnreadable(Exception):
    """NVML does not tell. The text says why."""


_NO_GPUS = frozenset({"LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED"})


class GpuProcesses:
    """NVML, opened once."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []

    def pids(self) -> frozenset[int] | None:
        """Returns the ids of the processes that compute on any GPU; None: the machine has no NVIDIA GPU or driver.
        Raises NvmlUnreadable."""
        try:
            if self._nvml is None:
                self._open()
            found = [self._nvml.nvmlDeviceGetComputeRunningProcesses(handle) for handle in self._handles]
        except ImportError as error:
            raise NvmlUnreadable(f"nvidia-ml-py is not installed ({error})") from None
        except Exception as error:
            self._nvml = None
            if failure_name(error) in _NO_GPUS:
                return None
            raise NvmlUnreadable(f"NVML fails ({failure_name(error)})") from None
        return frozenset(int(process.pid) for own in found for process in own)

    def _open(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self._nvml = pynvml
