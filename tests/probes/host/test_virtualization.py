"""A guest on Arm is told by its firmware's names alone: there is no CPU flag."""

from collections.abc import Callable
from pathlib import Path

from support.rows import rows

from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import is_virtual_machine


@rows("probes/arm_firmware")
def test_arm_is_told_by_its_firmware(vendor: str, product: str, expected: bool | None, tmp_path: Path) -> None:
    names = tmp_path / "sys/class/dmi/id"
    names.mkdir(parents=True)
    (names / "sys_vendor").write_text(f"{vendor}\n")
    (names / "product_name").write_text(f"{product}\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd sve2\n")
    assert is_virtual_machine(Host(str(tmp_path))) is expected


def test_on_x86_the_cpus_flag_decides(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("vm_l40s_x8")
    assert is_virtual_machine(Host(str(root)))
    (root / "proc/cpuinfo").write_text("flags\t\t: fpu avx512f\n")  # of a `.metal` one
    assert is_virtual_machine(Host(str(root))) is False
