"""Text that an ordinary user makes the kernel write to its log: by the real calls, where this kernel lets them."""

import os
import subprocess
import sys
import tempfile
import time

import pytest

NOBODY = 65534

_AS_USER = """
import ctypes, os, resource, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(4, 1, 0, 0, 0)
text = bytes.fromhex(sys.argv[2])
"""
_MOUNT = (
    _AS_USER
    + """
if libc.unshare(0x10000000 | 0x20000):
    raise SystemExit(f"no user namespace: {os.strerror(ctypes.get_errno())}")
libc.mount(b"none", b"/tmp", b"tmpfs", 0, text)
"""
)
_CRASH = (
    _AS_USER
    + """
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print(os.getpid(), flush=True)
libc.prctl(15, text, 0, 0, 0)
ctypes.string_at(0)
"""
)


def mount_with_option(text: bytes) -> None:
    """mount(2) of a tmpfs with an option that nobody knows, in a user namespace of the user's own."""
    _run(_MOUNT, text)


def crash_with_name(text: bytes) -> int:
    """A process of that name accesses memory that is not its own. Returns its pid."""
    return int(_run(_CRASH, text).split()[0])


def _run(script: str, text: bytes, *words: str) -> str:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become an ordinary user")
    done = subprocess.run(
        [sys.executable, "-c", script, "-", text.hex(), *words], capture_output=True, text=True, timeout=300
    )
    if "no user namespace" in done.stderr:
        pytest.skip(f"an ordinary user gets no user namespace here: {done.stderr.strip()}")
    return done.stdout


def kernel_records(since: float) -> str:
    """The records of /dev/kmsg that were written after `since`, in seconds on CLOCK_MONOTONIC, as they stand."""
    records = []
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        pytest.skip(f"this machine does not show its kernel's log: {error}")
    try:
        while True:
            try:
                record = os.read(descriptor, 8192).decode(errors="replace")
            except BrokenPipeError:
                continue
            except BlockingIOError:
                break
            if not record:
                pytest.skip("/dev/kmsg is another file here")
            if int(record.split(",")[2]) / 1e6 >= since - 1:
                records.append(record)
    finally:
        os.close(descriptor)
    return "".join(records)


def now() -> float:
    return time.monotonic()


_FROM_FILE = (
    """
import ctypes, mmap, os, resource, sys
folder = sys.argv[3]
"""
    + _AS_USER
    + """
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
path = os.path.join(folder.encode(), text)
with open(path, "wb") as file:
    file.write(bytes.fromhex("488b042500000000") + bytes(4088))  # mov rax, [0]
print(os.getpid(), flush=True)
with open(path, "rb") as file:
    code = mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC | mmap.PROT_WRITE)
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""
)


def crash_in_file(name: bytes) -> int:
    """A process executes a file of that name, which accesses memory that is not its own. Returns its pid."""
    if os.uname().machine != "x86_64":
        pytest.skip("the file holds instructions of x86-64")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        return int(_run(_FROM_FILE, name, folder).split()[0])
