"""A process that takes the GPU after another one: some work, and its end."""

from __future__ import annotations

from gpu_check.ending import end_with_parent
from gpu_check.jobs.loads import find_loads

if __name__ == "__main__":
    end_with_parent()
    loads = find_loads()
    loads.work()
    loads.synchronize()
