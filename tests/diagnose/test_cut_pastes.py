"""A paste that was cut before it tells anything is unknown, and never ok."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.diagnose.command import diagnose
from laggard.diagnose.input_file import InputFile
from laggard.model import Verdict

CUT = {
    "nvidia-smi": "+------+\n| NVIDIA-SMI 535.104.05   Driver Version: 535.104.05   CUDA Version: 12.2     |\n",
    "nvidia-smi -q": "==============NVSMI LOG==============\n\nDriver Version : 550.54.15\n\nAttached GPUs : 8\n"
    "GPU 00000000:1B:00.0\n    Product Name : NVIDIA H100 80GB HBM3\n",
    "dcgmi diag": "Successfully ran diagnostic for group.\n+-----+-----+\n"
    "| Diagnostic                | Result      |\n",
    "df": "Filesystem      Size  Used Avail Use% Mounted on\n/dev/sda1",
    "ibstat": "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n",
    "free": "               total        used        free      shared  buff/cache   available\n",
    "sinfo": "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n",
    "ethtool": "Settings for ens3:\n\tSupported ports: [ FIBRE ]\n",
}


@pytest.mark.parametrize("name", CUT)
def test_a_paste_that_was_cut_is_unknown(name: str, tmp_path: Path) -> None:
    path = tmp_path / "paste"
    path.write_text(CUT[name])
    diagnosis = diagnose([InputFile(str(path))])
    assert diagnosis.verdict is Verdict.UNKNOWN and diagnosis.files[0].unknown, diagnosis


def test_sinfo_prints_a_heading_alone_where_no_node_is_out(tmp_path: Path) -> None:
    path = tmp_path / "paste"
    path.write_text("REASON               USER      TIMESTAMP           NODELIST\n")
    assert diagnose([InputFile(str(path))]).verdict is Verdict.OK
