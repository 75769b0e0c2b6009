"""torch_jobs.py in a process that computes on a device: a lazy one, in whose stream the host's work leaves gaps."""

import runpy
from pathlib import Path

from support.lazy_cuda_device import LazyCudaDevice
from support.lazy_device import LazyDevice

from laggard.trainer_hooks.attach import session
from laggard.trainer_hooks.device import phases
from laggard.trainer_hooks.device.collectives import DeviceCollectives

phases.MAX_PERIOD = 1  # type: ignore[misc]  # each step has marks: its times are compared one by one
gpu = LazyCudaDevice(LazyDevice(clock_offset=10**12, drift=2e-5), takes_all=True)
recorder = session().recorder
recorder.live.device = DeviceCollectives(gpu, recorder)
runpy.run_path(str(Path(__file__).with_name("torch_jobs.py")), run_name="__main__")
assert recorder.live.device is not None
gpu.check()
