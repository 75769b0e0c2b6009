"""RDMA probes on recordings of real machines, where those are in the folder shared beside the repository."""

import io
import json
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from support.paths import SHARED

from laggard.cli import main

RECORDED = SHARED / "data"
RDMA = ("rdma_devices", "rdma_ports", "rdma_net", "rdma_errors", "roce_pfc", "roce_ecn")

pytestmark = pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recordings in {RECORDED}")

Check = Callable[..., tuple[list[tuple[str, str, str]], dict[str, str]]]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    def run(*words: str) -> tuple[list[tuple[str, str, str]], dict[str, str]]:
        """Returns the findings, and the verdicts by probe."""
        only = [word for probe in RDMA for word in ("--only", probe)]
        main(["healthcheck", "--host-root", str(tmp_path), *only, "--format", "json", *words])
        report = json.loads(capsys.readouterr().out)
        found = [(finding["code"], finding["severity"], finding["device"]) for finding in report["findings"]]
        return found, {probe["name"]: probe["verdict"] for probe in report["probes"]}

    return run


def write(root: Path, path: str, text: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def link(root: Path, path: str, target: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def unpack_json(root: Path, name: str) -> None:
    """Writes files given by path. The recording lacks the links that sysfs has to them; they are made here."""
    files: dict[str, str] = json.loads((RECORDED / name).read_text())
    for path, text in files.items():
        write(root, path, text)
    for place in {tuple(path.split("/")[5:8]) for path in files if path.startswith("/sys/bus/pci/devices/")}:
        address, kind, device = place
        if kind in ("infiniband", "net"):
            link(root, f"/sys/class/{kind}/{device}", f"/sys/bus/pci/devices/{address}/{kind}/{device}")
            link(root, f"/sys/bus/pci/devices/{address}/{kind}/{device}/device", "../..")


def unpack_tar(root: Path) -> None:
    with tarfile.open(RECORDED / "h100-sys-class-infiniband.tar.gz") as archive:
        for member in archive.getmembers():
            if member.isfile():
                file = archive.extractfile(member)
                assert file is not None
                path = member.name.partition("sys-class-infiniband-h100.0/")[2]
                write(root, f"/sys/class/infiniband/{path}", file.read().decode())
    (root / "sys/bus/pci/devices").mkdir(parents=True)


def unpack_ttar(root: Path) -> None:
    """Unpacks a text archive: `Path:`, then `Lines:` and that many lines, or `SymlinkTo:`."""
    text = zlib.decompress((RECORDED / "procfs-fixtures.ttar.gz").read_bytes(), 31).decode()
    lines = io.StringIO(text)
    for line in lines:
        path = line.removeprefix("Path: fixtures").strip()
        if not line.startswith("Path: fixtures/sys/") or "#" in path:
            continue
        head = next(lines)
        if head.startswith("SymlinkTo: "):
            link(root, path, head.removeprefix("SymlinkTo: ").strip())
        elif head.startswith("Lines: "):
            count = int(head.removeprefix("Lines: "))
            write(root, path, "".join(next(lines) for _ in range(count)).replace("EOF\n", ""))


def test_an_old_saturated_counter_is_no_fault(tmp_path: Path, check: Check) -> None:
    """mlx5_1 of this H100 node is active and healthy, and holds link_downed=255."""
    unpack_tar(tmp_path)
    found, verdicts = check()
    assert found == []
    assert (verdicts["rdma_ports"], verdicts["rdma_errors"]) == ("ok", "ok")


def test_a_healthy_dgx_a100_is_quiet(tmp_path: Path, check: Check) -> None:
    unpack_json(tmp_path, "dgx-a100-learn_good.json")
    found, verdicts = check()
    assert found == [] and verdicts["rdma_ports"] == "ok" and verdicts["rdma_net"] == "ok"


def test_ports_stuck_in_init_are_found_and_no_others(tmp_path: Path, check: Check) -> None:
    unpack_json(tmp_path, "dgx-a100-learn_stuck_ib_intf.json")
    found, _ = check()
    assert found == [("RDMA_PORT_DOWN", "critical", "mlx5_6"), ("RDMA_PORT_DOWN", "critical", "mlx5_8")]


def test_hand_edited_fixtures_of_several_makes_can_be_judged(tmp_path: Path, check: Check) -> None:
    unpack_ttar(tmp_path)
    found, verdicts = check()
    assert all(code.startswith("RDMA") for code, _, _ in found), found
    assert verdicts["rdma_ports"] != "skipped"
