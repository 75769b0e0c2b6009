"""What a training process reports of its NCCL: the loaded library, variables, open RDMA devices, the private log."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.nccl_logs import log_text
from support.rows import rows

from laggard.kit.environment import ENV_NCCL_LOG
from laggard.nccl.private_log import (
    PrivateLog,
    Transport,
    count_open_uverbs,
    loaded_version,
    nccl_variables,
    observe,
    prepare_log,
)
from laggard.nccl.transport import LOG_EMPTY, LOG_NONE, LOG_OF_THE_USER, LOG_READ

NO_CONF = "/nonexistent"
FAKE_SOURCE = "int ncclGetVersion(int *version) { *version = %d; return 0; }\n"


def prepare(tmp_path: Path, **environ: str) -> tuple[PrivateLog | None, dict[str, str]]:
    own = {"HOME": str(tmp_path), **environ}
    return prepare_log(own, str(tmp_path / "logs"), NO_CONF), own


def write_log(environ: dict[str, str], text: str, pid: int | None = None) -> Path:
    """Writes where NCCL would: it expands %p and %% in NCCL_DEBUG_FILE (src/debug.cc). Returns the path."""
    pattern = environ["NCCL_DEBUG_FILE"]
    path = Path(pattern.replace("%%", "\0").replace("%p", str(pid or os.getpid())).replace("\0", "%"))
    with path.open("a") as file:
        file.write(text)
    return path


def rank_log(name: str, rank: int) -> str:
    """That rank's lines in a sample log, as this process would have written them."""
    pid = f":{4100 + rank}:{4100 + rank} "
    lines = [line for line in log_text(name).splitlines(True) if pid in line]
    return "".join(line.replace(pid, f":{os.getpid()}:{os.getpid()} ") for line in lines)


def test_nccl_logs_into_a_private_folder(tmp_path: Path) -> None:
    log, environ = prepare(tmp_path)
    assert log is not None
    assert (environ["NCCL_DEBUG"], environ["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET,ENV")
    assert environ["NCCL_DEBUG_FILE"] == environ[ENV_NCCL_LOG] == f"{log.folder}/log.%p"
    assert stat.S_IMODE(os.stat(log.folder).st_mode) == 0o700
    log.remove()
    assert list((tmp_path / "logs").iterdir()) == []


@pytest.mark.parametrize("setting", ["NCCL_DEBUG=WARN", "NCCL_DEBUG=", "NCCL_DEBUG_FILE=/tmp/mine.%h.%p"])
@pytest.mark.parametrize("where", ["environment", "home", "conf_file"])
def test_the_users_settings_stay(setting: str, where: str, tmp_path: Path) -> None:
    name, _, value = setting.partition("=")
    environ = {"environment": {name: value}, "home": {}, "conf_file": {"NCCL_CONF_FILE": str(tmp_path / "mine.conf")}}[
        where
    ]
    (tmp_path / {"home": ".nccl.conf"}.get(where, "mine.conf")).write_text(setting + "\n")
    before = {"HOME": str(tmp_path), **environ}
    log, after = prepare(tmp_path, **environ)
    assert log is None and after == before
    assert not (tmp_path / "logs").exists()


def test_the_machines_settings_stay(tmp_path: Path) -> None:
    etc = tmp_path / "nccl.conf"
    etc.write_text("NCCL_DEBUG=VERSION\n")
    environ = {"HOME": str(tmp_path)}
    assert prepare_log(environ, str(tmp_path), str(etc)) is None and environ == {"HOME": str(tmp_path)}


def test_a_subsystem_that_the_user_chose_stays(tmp_path: Path) -> None:
    log, environ = prepare(tmp_path, NCCL_DEBUG_SUBSYS="GRAPH")
    assert log is not None and environ["NCCL_DEBUG_SUBSYS"] == "GRAPH"


def test_a_rank_under_a_launcher_with_a_private_log_has_its_own(tmp_path: Path) -> None:
    """A launcher under `laggard run` passes its environment on to ranks that are under `laggard run`, too."""
    outer, environ = prepare(tmp_path)
    inner = prepare_log(environ, str(tmp_path / "logs"), NO_CONF)
    assert outer is not None and inner is not None and inner.folder != outer.folder
    assert environ["NCCL_DEBUG_FILE"].startswith(inner.folder)


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_folder_of_a_killed_process_goes_with_the_next_start(end: str, tmp_path: Path) -> None:
    log, environ = prepare(tmp_path)
    script = "import os, signal, sys\nfrom laggard.nccl.private_log import prepare_log\n"
    script += f"assert prepare_log(os.environ, sys.argv[1], {NO_CONF!r})\n{end}"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "logs")], env={**os.environ, **environ}, timeout=300)
    assert log is not None
    (left,) = {path for path in (tmp_path / "logs").iterdir()} - {Path(log.folder)}
    (left / "log.1").write_text("what NCCL wrote")
    young, _ = prepare(tmp_path)
    assert young is not None and left.exists(), "another process may be about to lock it"
    for path in (left, Path(log.folder), Path(young.folder)):
        os.utime(path, (1, 1))
    latest, _ = prepare(tmp_path)
    assert latest is not None
    kept = {Path(each.folder) for each in (log, young, latest)}
    assert set((tmp_path / "logs").iterdir()) == kept, "those of processes that live"


def test_a_folder_that_cannot_be_created_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file is in the way")
    log, environ = prepare(tmp_path)
    assert log is None and environ == {"HOME": str(tmp_path)}


def test_a_percent_sign_in_the_path_is_escaped(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    log = prepare_log(environ, str(tmp_path / "100%pure"), NO_CONF)
    assert log is not None
    write_log(environ, rank_log("roce_gpudirect", 0))
    process = log.read()
    assert process is not None and process.network == "IB"


def test_the_log_is_read_as_it_grows(tmp_path: Path) -> None:
    log, environ = prepare(tmp_path)
    assert log is not None and log.read() is None
    text = rank_log("roce_gpudirect", 1)
    for start in range(0, len(text), 97):
        write_log(environ, text[start : start + 97])
        process = log.read()
    assert process is not None
    assert (process.rank, process.network, process.version) == (1, "IB", "2.27.5")
    assert {connection.gdr for connection in process.connections if connection.transport == "NET"} == {True}


def test_the_log_of_a_child_process_is_not_read(tmp_path: Path) -> None:
    log, environ = prepare(tmp_path)
    write_log(environ, log_text("tcp_no_device"), pid=1)
    assert log is not None and log.read() is None


@pytest.mark.slow
def test_the_space_of_what_was_read_is_freed(tmp_path: Path) -> None:
    log, environ = prepare(tmp_path)
    assert log is not None
    filler = f"node:{os.getpid()}:1 [0] NCCL INFO NET/IB: Dev 0 Port 1 qpn 7 mtu 5 LID 3\n" * 10_000
    path = write_log(environ, rank_log("roce_gpudirect", 0))
    with path.open("a") as nccl:  # as NCCL does, which keeps the file open and goes on at its offset
        for _ in range(40):
            nccl.write(filler)
            nccl.flush()
            log.read()
        assert path.stat().st_blocks * 512 < 16 << 20 < path.stat().st_size
        nccl.write(rank_log("tcp_switched_off", 0))
        nccl.flush()
        process = log.read()
    assert process is not None and process.network == "Socket", "what is written afterwards is read"


def test_a_fork_does_not_remove_the_log(tmp_path: Path) -> None:
    log, _ = prepare(tmp_path)
    assert log is not None
    child = os.fork()
    if child == 0:
        log.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert Path(log.folder).is_dir()
    log.remove()
    assert not Path(log.folder).exists()


def test_only_variables_that_something_reads_are_reported() -> None:
    environ = {
        "NCCL_IB_HCA": "mlx5_0" + "x" * 1000,
        "NCCL_FASTRAK_NUM_FLOWS": "2",
        "NCCL_COMM_ID": "10.0.0.1:4711",
        "NCCL_API_KEY": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HOME": "/root",
        "nccl_ib_hca": "x",
    }
    assert [name for name, _ in nccl_variables(environ)] == ["NCCL_FASTRAK_NUM_FLOWS", "NCCL_IB_HCA"]
    assert all(len(value) <= 256 for _, value in nccl_variables(environ))


def test_open_rdma_devices_are_counted(tmp_path: Path) -> None:
    (tmp_path / "fd").mkdir()
    for number, target in enumerate(
        ["/dev/infiniband/uverbs0", "/dev/infiniband/uverbs11", "/dev/infiniband/rdma_cm", "pipe:[3]", "/dev/nvidia0"]
    ):
        (tmp_path / "fd" / str(number)).symlink_to(target)
    assert count_open_uverbs(str(tmp_path)) == 2
    assert count_open_uverbs("/proc/self") == 0
    assert count_open_uverbs(str(tmp_path / "nowhere")) is None


def fake_library(folder: Path, code: int, name: str = "libnccl.so.2") -> Path:
    """Builds a library with NCCL's name, or RCCL's, and the only function of NCCL that laggard calls."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    folder.mkdir()
    (folder / "nccl.c").write_text(FAKE_SOURCE % code)
    library = folder / name
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(folder / "nccl.c")], check=True)
    return library


@rows("nccl/library_versions")
def test_the_version_is_the_loaded_librarys(code: int, version: str, name: str, tmp_path: Path) -> None:
    script = (
        "import ctypes, sys\n"
        "from laggard.nccl.private_log import loaded_version\n"
        "print(repr(loaded_version('/proc/self')))\n"
        "held = ctypes.CDLL(sys.argv[1])\n"
        "print(repr(loaded_version('/proc/self')))\n"
    )
    words = [sys.executable, "-c", script, str(fake_library(tmp_path / "a folder", code, name))]
    result = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert result.stdout.splitlines() == ["''", repr(version)], result.stderr


def test_no_library_is_loaded_for_its_version(tmp_path: Path) -> None:
    """A memory map that names a library which this process has not loaded."""
    library = fake_library(tmp_path / "nccl", 22705)
    (tmp_path / "maps").write_text(f"7f0000000000-7f0000001000 r-xp 00000000 08:01 11     {library}\n")
    assert loaded_version(str(tmp_path)) == ""
    assert str(library) not in Path("/proc/self/maps").read_text()
    assert loaded_version(str(tmp_path / "nowhere")) == ""


def test_what_is_observed_with_a_private_log(tmp_path: Path) -> None:
    log, environ = prepare(tmp_path, NCCL_IB_DISABLE="1")
    assert log is not None and observe(log, environ).log == LOG_EMPTY
    write_log(environ, rank_log("tcp_switched_off", 3))
    transport = observe(log, environ)
    assert (transport.log, transport.process.rank, transport.process.network) == (LOG_READ, 3, "Socket")
    assert transport.variables == (("NCCL_IB_DISABLE", "1"),), "laggard does not report what it has set itself"
    assert observe(log, environ, rank=19).rank == 19
    assert Transport.from_json(transport.to_json()).process.connections == transport.process.connections


def test_the_reason_is_reported_where_there_is_no_log() -> None:
    assert observe(None, {"NCCL_DEBUG": "WARN"}).log == LOG_OF_THE_USER
    assert observe(None, {}).log == LOG_NONE


def test_observing_imports_the_standard_library_alone() -> None:
    script = (
        "import sys, laggard.nccl.private_log as t\n"
        "t.observe(None, {})\n"
        "print(sorted({'torch', 'numpy', 'msgspec', 'yaml', 'psutil'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert result.stdout == "[]\n", result.stderr
