"""What must be there and is not: by the machine's own tables, by what earlier boots had, and by a site's line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.judge import judge
from support.paths import DATA
from support.rows import rows

from laggard.cli import main
from laggard.model import Report, Verdict
from laggard.probes.choose import choose_probes
from laggard.probes.host.counter_history import LEARNT, CounterSnapshot
from laggard.probes.host.host import Host
from laggard.probes.profiles import PROFILES
from laggard.probes.record.journal import write_documents
from laggard.probes.record.recorder import RecordingHost
from laggard.probes.runner import state_file
from laggard.probes.runner.report import ProbeAnswer, build_report
from laggard.probes.runner.state_file import MAX_BOOTS, HistoryStore
from laggard.probes.runner.worker import observe

pytestmark = pytest.mark.usefixtures("without_processes")

Copy = Callable[[str], Path]

HOUR = 3600.0
FSTAB = (DATA / "host" / "fstab").read_text()
MOUNTS = (DATA / "host" / "mounts").read_text()
EXPECTED = choose_probes(PROFILES["full"], ("expected",), (), "full")


def write(machine: Path, path: str, text: str) -> None:
    place = machine / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.write_text(text)


def found(report: Report) -> list[tuple[str, str, str]]:
    return [(it.code, it.severity.value, it.device) for it in report.findings]


def judged(machine: Path) -> list[tuple[str, str, str]]:
    return found(judge(machine, EXPECTED))


def mounts_without(*points: str) -> str:
    return "".join(f"{line}\n" for line in MOUNTS.splitlines() if line.split()[1] not in points)


def gate(machine: Path, tmp_path: Path, lines: str) -> int:
    """The gate's exit status with these lines for --expect."""
    path = tmp_path / "expect.yaml"
    path.write_text(lines)
    words = ["--host-root", str(machine), "--expect", str(path), "--only", "expected", "--format", "json"]
    return main(["healthcheck", "--no-agent", *words])


def test_a_site_line_is_critical_on_the_nodes_that_it_names(
    copy_of: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = copy_of("plain")
    lines = """
nodes:
  "*": {expected: {mounts: [/scratch, /home], memory_bytes: 137438953472, processors: 16}}
  "pla*": {expected: {mounts: [/scratch, /nothing], modules: [xfs, nvidia-fs]}}
  "other": {expected: {processors: 999}}
"""
    assert gate(machine, tmp_path, lines) == 1
    told = [[it["code"], it["severity"], it["device"]] for it in json.loads(capsys.readouterr().out)["findings"]]
    assert told == [["MOUNT_MISSING", "critical", "/nothing"], ["MODULE_MISSING", "critical", "nvidia-fs"]]


def test_a_site_line_says_how_much_memory_and_how_many_processors(
    copy_of: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = copy_of("plain")
    gate(machine, tmp_path, "thresholds: {expected: {memory_bytes: 300000000000, processors: 32}}")
    told = [[it["code"], it["severity"]] for it in json.loads(capsys.readouterr().out)["findings"]]
    assert told == [["HOST_MEMORY_LOW", "critical"], ["CPU_MISSING", "critical"]]
    write(machine, "sys/devices/system/cpu/online", "0-7\n")
    write(machine, "proc/self/mounts", mounts_without("/scratch", "/boot"))
    ignored = "thresholds: {expected: {processors: 8, ignore: [/scratch, /bo*]}}"
    assert gate(machine, tmp_path, ignored) == 0, "a site's line stands over the kernel's count"


@pytest.mark.parametrize(
    "lines",
    ["nodes: {plain: {expectd: {}}}", "nodes: {plain: {expected: {mounts: 7}}}", "nodes: [expected]", "nodes: {a: 3}"],
)
def test_a_wrong_line_is_refused_in_one_line(
    lines: str, copy_of: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate(copy_of("plain"), tmp_path, lines) == 64
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Traceback" not in said


def test_a_mount_is_writable_for_jobs_where_a_service_sees_it_read_only(copy_of: Copy) -> None:
    """ProtectSystem=strict mounts all read-only for the service itself; process 1 has the table of jobs."""
    machine = copy_of("plain")
    write(machine, "proc/self/mounts", MOUNTS.replace(" rw,", " ro,"))
    assert ("MOUNT_MISSING", "critical", "/, /home, /scratch") in judged(machine)
    write(machine, "proc/1/mounts", MOUNTS)
    write(machine, "proc/2/comm", "kthreadd\n")
    assert judged(machine) == []
    write(machine, "proc/1/mounts", MOUNTS.replace("/scratch xfs rw", "/scratch xfs ro"))
    assert judged(machine) == [("MOUNT_MISSING", "critical", "/scratch")]


def test_a_machine_without_tables_has_no_finding(copy_of: Copy) -> None:
    machine = copy_of("hgx_h100")
    for path in ("etc/fstab", "proc/meminfo", "sys/devices/system/cpu/present", "proc/self/mounts"):
        (machine / path).unlink()
    report = judge(machine, choose_probes(PROFILES["full"], ("expected", "gpu_driver"), (), "full"))
    assert report.findings == ()


@pytest.mark.parametrize("root_alone", ["root alone may read it", ""])
def test_firmware_that_does_not_say_is_no_expectation(copy_of: Copy, root_alone: str) -> None:
    machine = copy_of("memory_module_failed")
    assert judged(machine) == [("HOST_MEMORY_LOW", "critical", "memory")]
    raw = machine / "sys/firmware/dmi/entries/17-3/raw"
    if root_alone:
        raw.unlink()
        raw.mkdir()
    else:
        data = bytearray(raw.read_bytes())
        data[0x0C:0x0E] = b"\xff\xff"  # a size that the firmware does not know
        raw.unlink()
        raw.write_bytes(data)
    assert judged(machine) == []


@given(st.lists(st.one_of(st.text(max_size=40), st.sampled_from(FSTAB.splitlines())), max_size=8))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_table_of_mounts_makes_the_probe_fail(machine: Copy, tmp_path: Path, lines: list[str]) -> None:
    root = tmp_path / "machine"
    write(root, "proc/self/mounts", MOUNTS)
    write(root, "etc/fstab", "\n".join(lines).encode("utf-8", "replace").decode())
    report = judge(root, EXPECTED)
    assert [it.reason for it in report.probes if it.verdict is Verdict.UNKNOWN] == []


class Boots:
    """The machine's looks over its boots; what one leaves for the next is kept where a recording has it."""

    def __init__(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = machine
        kept = machine / state_file.RECORDED_PATH.lstrip("/")
        monkeypatch.setattr(state_file, "replace_state", lambda name, data: kept.write_bytes(data))

    def look(self, boot: int, uptime: float) -> list[tuple[str, str, str]]:
        write(self.machine, "proc/sys/kernel/random/boot_id", f"boot-{boot}\n")
        write(self.machine, "proc/uptime", f"{uptime:.2f} 0.00\n")
        host = Host(str(self.machine))
        store = HistoryStore(host)
        store._recorded = False  # a live machine's is saved
        return found(self._judge(host, store))

    def _judge(self, host: Host, store: HistoryStore) -> Report:
        host.counter_history = store.history("expected")
        observed = observe(EXPECTED[0], host)
        assert observed.verdict is Verdict.OK, observed.reason
        assert store.save({"expected": observed.counters or {}}) == ""
        answer = ProbeAnswer("expected", observed, 0.0)
        return build_report([answer], node="n", elapsed_seconds=0.0, facts={}, warnings_fail=False)


@pytest.fixture
def boots(copy_of: Copy, monkeypatch: pytest.MonkeyPatch) -> Boots:
    machine = copy_of("plain")
    (machine / "etc/fstab").unlink()  # what no table asks for, a boot may have brought
    return Boots(machine, monkeypatch)


def test_what_earlier_boots_had_all_along_is_a_warning(boots: Boots) -> None:
    boots.machine.joinpath("etc").mkdir(exist_ok=True)
    assert boots.look(1, 2 * HOUR) == [] and boots.look(1, 3 * HOUR) == []
    write(boots.machine, "proc/self/mounts", mounts_without("/home"))
    assert boots.look(1, 4 * HOUR) == [], "within a boot somebody has unmounted it"
    write(boots.machine, "proc/self/mounts", MOUNTS)
    assert boots.look(2, HOUR) == []
    write(boots.machine, "proc/self/mounts", mounts_without("/home"))
    assert boots.look(3, 2 * HOUR) == [("MOUNT_MISSING", "warning", "/home")]
    for boot in range(4, 4 + MAX_BOOTS + 1):
        last = boots.look(boot, 2 * HOUR)
    assert last == [], "what is gone for good is no longer told"


def test_a_mount_of_a_job_is_not_learnt(boots: Boots) -> None:
    of_a_job = MOUNTS + "beegfs_ondemand /mnt/beeond beegfs rw 0 0\n"
    boots.look(1, 2 * HOUR)
    write(boots.machine, "proc/self/mounts", of_a_job)
    boots.look(1, 3 * HOUR)
    write(boots.machine, "proc/self/mounts", MOUNTS)
    assert boots.look(2, HOUR) == []


def test_memory_that_shrinks_from_boot_to_boot_is_told(boots: Boots) -> None:
    for entry in (boots.machine / "sys/firmware/dmi/entries").iterdir():
        (entry / "raw").unlink()
    boots.look(1, HOUR)
    meminfo = (boots.machine / "proc/meminfo").read_text()
    write(boots.machine, "proc/meminfo", meminfo.replace("MemTotal: 134217728", "MemTotal: 117440512"))
    assert boots.look(2, HOUR) == [("HOST_MEMORY_LOW", "warning", "memory")]


def test_the_first_minutes_of_a_boot_teach_nothing(boots: Boots) -> None:
    boots.look(1, HOUR)
    write(boots.machine, "proc/self/mounts", mounts_without("/home"))
    assert boots.look(2, 60.0) == [("MOUNT_MISSING", "warning", "/home")]
    write(boots.machine, "proc/self/mounts", MOUNTS)
    boots.look(2, HOUR)
    write(boots.machine, "proc/self/mounts", mounts_without("/home"))
    assert boots.look(3, HOUR) == [("MOUNT_MISSING", "warning", "/home")]


def test_counters_alone_are_not_kept_over_a_boot() -> None:
    shots = (CounterSnapshot(1.0, {"errors": 5, LEARNT + "memory memory": 7}), CounterSnapshot(9.0, {"errors": 6}))
    assert state_file.all_along(shots[:1]) == {LEARNT + "memory memory": 7}
    assert state_file.all_along(shots) == {} and state_file.all_along(()) == {}


def test_a_root_of_another_type_may_be_read_only(copy_of: Copy) -> None:
    """A diskless node keeps its image's fstab."""
    machine = copy_of("plain")
    root = "/dev/mapper/system-root / ext4 rw,relatime"
    write(machine, "proc/self/mounts", MOUNTS.replace(root, "filer:/roots/n1 / nfs4 ro,relatime"))
    assert judged(machine) == []
    write(machine, "proc/self/mounts", MOUNTS.replace(root, root.replace("rw", "ro")))
    assert judged(machine) == [("MOUNT_MISSING", "critical", "/")]
    write(machine, "proc/self/mounts", MOUNTS.replace("/home nfs4 rw", "/home nfs4 ro"))
    assert judged(machine) == [("MOUNT_MISSING", "critical", "/home")]


# Services, and everybody's places.


@pytest.mark.parametrize(("services", "exit_status"), [("[munge, chronyd.service]", 0), ("[munge, postfix]", 1)])
def test_a_sites_line_names_services_that_must_run(
    services: str, exit_status: int, copy_of: Copy, tmp_path: Path
) -> None:
    assert gate(copy_of("services_run"), tmp_path, f"thresholds: {{expected: {{services: {services}}}}}") == exit_status


def test_a_service_that_systemd_cannot_be_asked_for_is_told_by_its_files(copy_of: Copy) -> None:
    machine = copy_of("munge_failed")
    write(machine, "laggard/facts.json", '{"laggard_machine": 1, "time": 1763719200.0}')
    assert ("SERVICE_DOWN", "critical", "munge") in judged(machine)


@pytest.mark.parametrize("state", ["activating", "active", "reloading"])
def test_systemds_own_answer_counts_more_than_its_files(state: str, copy_of: Copy) -> None:
    machine = copy_of("munge_failed")
    text = (machine / "laggard/facts.json").read_text().replace("ActiveState=failed", f"ActiveState={state}")
    write(machine, "laggard/facts.json", text)
    assert judged(machine) == []


def test_a_recording_keeps_kinds_and_modes_of_places(tmp_path: Path) -> None:
    folder, missing, recording = tmp_path / "all", tmp_path / "none", tmp_path / "machine"
    folder.mkdir()
    folder.chmod(0o1777)
    recording.joinpath("laggard").mkdir(parents=True)
    paths = ("/dev/null", str(folder), str(missing))
    told = RecordingHost("/", str(recording)).places(paths)
    assert told == dict(zip(paths, ("crw-rw-rw- 1:3", "drwxrwxrwt", "No such file or directory"), strict=True))
    write_documents(str(recording), {})
    assert Host(str(recording)).places(paths) == told


@rows("probes/expected_places")
def test_a_place_has_the_kind_the_numbers_and_what_all_need(
    path: str, about: str, severity: str | None, copy_of: Copy
) -> None:
    machine = copy_of("gpu_files_of_a_group")
    places = json.loads((machine / "laggard/places.json").read_text())
    write(machine, "laggard/places.json", json.dumps({**places, path: about}))
    assert judged(machine) == ([("FILE_MODE_WRONG", severity, path)] if severity else [])


def test_a_site_s_mounts_that_a_container_does_not_show_are_unknown(copy_of: Copy, tmp_path: Path) -> None:
    machine = copy_of("mounts_of_a_container")
    assert gate(machine, tmp_path, "thresholds: {expected: {mounts: [/scratch]}}") == 2
    assert gate(machine, tmp_path, "thresholds: {expected: {modules: []}}") == 0


@rows("probes/slurm_conf")
def test_slurm_conf_is_read_as_slurm_reads_it(copy_of: Copy, lines: str, told: tuple[tuple[str, ...], ...]) -> None:
    machine = copy_of("plain")
    write(machine, "etc/slurm/slurm.conf", f"ClusterName=c1\n{lines}\n")
    assert tuple(judged(machine)) == told
