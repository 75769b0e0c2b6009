"""The kernel's log of this machine: by its device, and in a container that has none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from laggard.probes.host.kernel_log import parse_messages, read_kmsg

READ = "from laggard.probes.host.kernel_log import read_kmsg; print(read_kmsg(), end='')"


def _lines(text: str) -> set[str]:
    """Of all messages with a time. Records of one level and time are one message where the device is hidden."""
    messages = (message.text for message in parse_messages(text) if message.seconds is not None)
    return {line.replace(r"\x09", "\t") for message in messages for line in message.split(r"\x0a")}


@pytest.mark.parametrize("hide", ["mount -t tmpfs none /dev", "mount --bind /dev/null /dev/kmsg"])
def test_a_container_without_the_device_gets_the_same_messages(hide: str) -> None:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root, to hide /dev/kmsg from a process")
    try:
        with_device = _lines(read_kmsg())
    except OSError as error:
        pytest.skip(f"this machine shows its kernel's log to nobody: {error}")
    words = ["unshare", "--mount", "sh", "-c", f'{hide} && exec "$0" -c "$1"', sys.executable, READ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    without = _lines(done.stdout)
    assert len(without & with_device) > 0.9 * len(without) > 0, "the rest came meanwhile"
