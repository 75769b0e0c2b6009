"""What the kernel says of disks, memory and itself: each fault, and the machines that look like it and are sound."""

from collections.abc import Callable, Mapping
from pathlib import Path

from support.judge import judge
from support.rows import rows

from laggard.model import Verdict
from laggard.probes.system.kernel_faults import PROBE

Copy = Callable[[str], Path]


def found_on(root: Path, changes: Mapping[str, str]) -> list[str]:
    for name, text in changes.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
    report = judge(root, [PROBE])
    assert [probe.verdict for probe in report.probes] != [Verdict.UNKNOWN], report.probes[0].reason
    return [f"{found.severity.value} {found.code} {found.device}" for found in report.findings]


@rows("probes/sick_kernels")
def test_what_is_so_now_takes_the_node_away(says: str, files: dict[str, str], due: str, copy_of: Copy) -> None:
    """`files`: what the machine has in the place of, or beside, those of a healthy one."""
    assert found_on(copy_of("plain"), files) == [f"critical {due}"], says


@rows("probes/sound_kernels")
def test_what_was_repaired_or_is_told_alone_does_not(says: str, files: dict[str, str], due: str, copy_of: Copy) -> None:
    assert found_on(copy_of("plain"), files) == ([f"warning {due}"] if due else []), says


def test_a_log_that_cannot_be_read_hides_no_state(copy_of: Copy) -> None:
    root = copy_of("disk_controller_dead")
    (root / "laggard/kmsg").unlink()
    report = judge(root, [PROBE])
    assert [found.device for found in report.findings] == ["nvme1"]
    assert report.probes[0].verdict.value == "fail"
