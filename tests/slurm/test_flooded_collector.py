"""The gate in a real SLURM, while a user floods the collector that it asks with connections that come to no request."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Files, client
from support.paths import REPOSITORY
from support.slurm_fleet import Fleet, a_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FULL = "drained laggard: DISK_FULL"
CONNECTIONS, ADDRESSES = 700, 60
"""More than a collector has places."""


@pytest.fixture(params=["plain", "tls"])
def flooded(
    request: pytest.FixtureRequest, cluster: Any, files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Fleet]:
    flags: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = None
    conf = cluster.folder / "gate/gate.conf"
    before = conf.read_text()
    if request.param == "tls":
        flags, tls = ("--web.config.file", files.config()), client(files)
        conf.write_text(f"{before}\nexport LAGGARD_TLS_CA_FILE={files.folder}/ca.pem\n")
    try:
        with a_fleet(cluster, tmp_path, capsys, *flags, tls=tls) as fleet:
            fleet.wait_for_failing()
            with flood(fleet.url, request.param):
                yield fleet
    finally:
        conf.write_text(before)


@contextlib.contextmanager
def flood(url: str, kind: str) -> Iterator[None]:
    words = [url.rpartition(":")[2], str(CONNECTIONS), str(ADDRESSES), kind]
    program = [sys.executable, str(REPOSITORY / "tests/support/half_open.py"), *words]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline() == "floods\n"
        yield
        assert process.poll() is None, "it went on until the end"
    finally:
        process.kill()
        process.communicate()


def test_healthy_nodes_stay_and_a_rejected_one_stays_out(cluster: Any, flooded: Fleet) -> None:
    cluster.configure(seconds="15")
    well = cluster.srun("n1", "n3")
    assert sorted(well.stdout.split()) == ["n1", "n3"], well.stderr
    flooded.set_machine("disk_full", "n2")
    flooded.wait_for_failing("n2")
    for _ in range(2):  # resumed by hand, and still unfit: the collector's busyness is no word for it
        assert cluster.refuses("n2")
        assert cluster.wait_settled("n2").startswith(FULL)
        cluster.update("n2", "State=RESUME")
        cluster.wait_for_state("n2", "idle")
    again = cluster.srun("n1", "n3")
    assert sorted(again.stdout.split()) == ["n1", "n3"], again.stderr
    assert [cluster.wait_settled(node) for node in ("n1", "n3", "n4")] == ["idle"] * 3
