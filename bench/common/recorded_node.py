"""An HGX H100 node for daemons on a machine that is none: a recorded /sys with its 8 GPUs and 10 NICs (two of them for
storage) in place of this machine's, and an NVML library of the tests' that answers for the GPUs. Needs root and gcc.

What the daemons cannot have here: the driver's files in /proc, and device nodes. They pay for looking.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from support.gpus import nvml
from support.materialise import materialise
from support.paths import TESTS

_MOUNT = 'mount --bind "$1" /sys && shift && exec "$@"'


class RecordedNode:
    """`folder`: where its files lie."""

    def __init__(self, folder: Path) -> None:
        self._machine = materialise("hgx_h100", folder / "machine")
        self._library = folder / "nvml"
        self._library.mkdir()
        self._scenario = folder / "scenario"
        gpus = nvml()["gpus"]
        lines = [f"count {len(gpus)}", *(f"{gpu['index']}.bus {int(gpu['bus_id'].split(':')[1], 16)}" for gpu in gpus)]
        self._scenario.write_text("\n".join(lines) + "\n")
        words = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC", "-o"]
        source = TESTS / "support" / "nvml_fake.c"
        subprocess.run([*words, self._library / "libnvidia-ml.so.1", source], check=True)

    def start(self, command: Sequence[str | Path], **how: Any) -> subprocess.Popen[Any]:
        """Starts a program on the node, as Popen does; the process is the program's own."""
        words = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", self._machine / "sys", *command]
        environ = os.environ | {"LD_LIBRARY_PATH": str(self._library), "NVML_FAKE": str(self._scenario)}
        return subprocess.Popen([str(word) for word in words], env=environ, **how)
