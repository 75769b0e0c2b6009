"""Hostile processes of an ordinary user, as C programs of tests/data/hostile that are compiled for the test."""

import contextlib
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import DATA
from support.readers import OTHER

needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse") or shutil.which("gcc") is None,
    reason="needs root, /dev/fuse and gcc",
)


def compiled(name: str, folder: Path) -> str:
    program = folder / name
    source = DATA / "hostile" / f"{name}.c"
    subprocess.run(["gcc", "-O1", "-Wall", "-pthread", "-o", program, source], check=True, timeout=300)
    program.chmod(0o755)
    return str(program)


@contextlib.contextmanager
def held_memory(folder: Path, name: str = "held", uid: int = OTHER, **variables: str) -> Iterator[int]:
    """A process of the user `uid` whose environment keeps everybody waiting who reads it. Yields its id."""
    program = shutil.copy(compiled("hold_memory", folder), f"/tmp/laggard-hold-{os.getpid()}")
    mode = stat.S_IMODE(os.stat("/dev/fuse").st_mode)
    os.chmod("/dev/fuse", 0o666)  # as udev has it
    words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", program, "240", name]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"], **variables})
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            pytest.skip("this kernel lets no user mount FUSE in a namespace of its own")
        time.sleep(1.0)  # its second thread waits for the first
        assert is_held(int(line)), "it does not hold its readers"
        yield int(line)
    finally:
        process.kill()
        process.communicate()
        os.chmod("/dev/fuse", mode)
        os.unlink(program)


def is_held(pid: int) -> bool:
    """Whether who reads its environment waits."""
    reader = subprocess.Popen(["cat", f"/proc/{pid}/environ"], stdout=subprocess.DEVNULL)
    try:
        reader.wait(1.0)
    except subprocess.TimeoutExpired:
        return True
    finally:
        reader.kill()
        reader.wait()
    return False
