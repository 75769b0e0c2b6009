"""What the reader tells of other users' processes and of the kernel's log: what an agent without privileges needs."""

import contextlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.readers import NOBODY, OTHER, as_nobody, as_root, environ
from support.waiting import wait_for

from laggard.kit.environment import ENV_READER
from laggard.probes.host.host import Host
from laggard.probes.host.reader import ask
from laggard.probes.nccl.model import running_ranks
from laggard.probes.nccl.model.running_ranks import RankProcesses

KMSG = """
try:
    print("read", len(read_kmsg()) > 0)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.slow
@as_root
def test_the_kernels_log_comes_through_the_reader_to_those_who_may_ask(
    start_reader: Callable[..., Path], tmp_path: Path
) -> None:
    without = as_nobody(KMSG, tmp_path / "none.sock")
    if without.startswith("read"):
        pytest.skip("on this machine every user may read the kernel's log (kernel.dmesg_restrict=0)")
    assert "; laggard's reader, which may, does not run" in without
    assert as_nobody(KMSG, start_reader("--allow-user", str(NOBODY))) == "read True\n"


@pytest.mark.slow
@as_root
def test_how_a_process_ended_comes_through_the_reader(start_reader: Callable[..., Path]) -> None:
    path = start_reader("--allow-user", str(NOBODY))
    code = (
        "from laggard.agent.ranks.end import read_exit_status\n"
        "print(read_exit_status(os.open('/dev/null', os.O_RDONLY), {pid}))"
    )
    child = subprocess.Popen(["sh", "-c", "exit 3"], user=OTHER)
    wait_for(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    try:
        assert as_nobody(code.format(pid=child.pid), path) == "ExitStatus(code=3, signal='')\n"
        assert as_nobody(code.format(pid=child.pid), Path("/nowhere")) == "None\n"
    finally:
        child.wait()


NCCL = """
out = io.StringIO()
with contextlib.redirect_stdout(out):
    main(["healthcheck", "--only", "nccl_env", "--format", "json"])
report = json.loads(out.getvalue())
(probe,) = report["probes"]
print(json.dumps({**report["facts"].get("nccl_env", {}), "verdict": probe["verdict"], "reason": probe["reason"]}))
"""


def refused(facts: dict[str, Any]) -> int:
    """How many processes' environments were not to be read."""
    found = re.search(r"of (\d+) process", facts.get("not_permitted", ""))
    return int(found[1]) if found else 0


@contextlib.contextmanager
def rank_of_another_user(environment: dict[str, str], before: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a rank file open. `before`: what root does first, in mounts of its own."""
    ranks = Path("/dev/shm/laggard")
    made = not ranks.exists()
    ranks.mkdir(exist_ok=True)
    held, rank_file = ranks / f"test-{os.getpid()}", ranks / str(OTHER) / "rank"
    held.touch(0o666)
    held.chmod(0o666)
    switch = f"exec setpriv --reuid={OTHER} --regid={OTHER} --clear-groups"
    script = f"{before}\nexec 9<{held}; {switch} sh -c 'echo ready; exec sleep 600'"
    words = ["unshare", "--mount", "sh", "-ec", script]
    rank = subprocess.Popen(words, env={"PATH": "/bin:/usr/bin", **environment}, stdout=subprocess.PIPE)
    try:
        assert rank.stdout is not None and rank.stdout.readline() == b"ready\n"
        rank_file.parent.mkdir(exist_ok=True)
        rank_file = rank_file.with_name(f"{rank.pid}-0123456789abcdef.rank")
        rank_file.touch()
        yield rank
    finally:
        rank.kill()
        rank.communicate()
        held.unlink()
        rank_file.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            rank_file.parent.rmdir()
        if made:
            ranks.rmdir()


def test_a_reader_that_may_not_read_an_environment_either_is_named(
    serve: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that lacks CAP_SYS_PTRACE."""
    refused = RankProcesses((), 1, unread=(7,))
    monkeypatch.setattr(running_ranks, "read_own_rank_processes", lambda host: refused)
    monkeypatch.setenv(ENV_READER, str(serve(lambda question: msgspec.json.encode(refused))))
    assert running_ranks.read_rank_processes(Host()) == refused._replace(
        no_reader="laggard's reader may not read it either"
    )


def told_of(rank: subprocess.Popen[bytes], path: Path) -> list[Any]:
    """What the reader at `path` says of this process."""
    (found,) = [each for each in json.loads(ask("rank_processes", environ(path)))[0] if each[0] == rank.pid]
    return list(found)


@pytest.mark.slow
@as_root
def test_of_another_users_process_ncclss_variables_come_and_nothing_else(start_reader: Callable[..., Path]) -> None:
    path = start_reader("--allow-user", str(NOBODY))
    environment = {"NCCL_DEBUG": "WARN", "NCCL_SECRET_TOKEN": "hidden", "AWS_SECRET_ACCESS_KEY": "hidden"}
    with rank_of_another_user(environment) as rank:
        told = ask("rank_processes", environ(path)).decode()
        assert "hidden" not in told and "AWS" not in told and "PATH" not in told
        assert told_of(rank, path)[1] == {"NCCL_DEBUG": "WARN", "NCCL_SECRET_TOKEN": ""}
        without, with_reader = (json.loads(as_nobody(NCCL, place)) for place in (Path("/nowhere"), path))
        assert "not for this user to read; laggard's reader, which may, does not run" in without["not_permitted"]
        assert without["ranks"] < with_reader["ranks"]
        assert refused(with_reader) < refused(without)
        assert without["verdict"] == "unknown" and f"a process that trains ({rank.pid}) is not" in without["reason"]
        assert with_reader["verdict"] == "ok", with_reader


@pytest.mark.slow
@as_root
@pytest.mark.parametrize(("mode", "taken"), [(0o644, {"NCCL_ALGO": "Tree"}), (0o600, {})])
def test_a_settings_file_that_a_job_names_is_read_with_nobodys_rights(
    mode: int, taken: dict[str, str], start_reader: Callable[..., Path], tmp_path: Path
) -> None:
    """Else a user could have another's file read, by its name in NCCL_CONF_FILE."""
    named = tmp_path / "named.conf"
    named.write_text("NCCL_ALGO=Tree\nMY_NCCL_TOKEN=hidden\n")
    os.chown(named, NOBODY, NOBODY)
    named.chmod(mode)
    path = start_reader("--allow-user", str(NOBODY))
    with rank_of_another_user({"NCCL_CONF_FILE": str(named)}) as rank:
        assert "hidden" not in ask("rank_processes", environ(path)).decode()
        assert told_of(rank, path)[1] == {"NCCL_CONF_FILE": str(named), **taken}


@pytest.mark.slow
@as_root
def test_a_container_has_settings_files_of_its_own(start_reader: Callable[..., Path], tmp_path: Path) -> None:
    inside = tmp_path / "etc"
    inside.mkdir()
    (inside / "nccl.conf").write_text("NCCL_ALGO=Tree\nNCCL_DEBUG=INFO\n")
    (inside / "own.conf").write_text("NCCL_DEBUG=WARN\n")
    path = start_reader("--allow-user", str(NOBODY))
    with rank_of_another_user({"NCCL_CONF_FILE": "/etc/own.conf"}, f"mount --bind {inside} /etc") as rank:
        settings = {"NCCL_CONF_FILE": "/etc/own.conf", "NCCL_ALGO": "Tree", "NCCL_DEBUG": "WARN"}
        assert told_of(rank, path)[1] == settings and told_of(rank, path)[-1] is True


SOCKETS = """
from laggard.agent.traffic.sockets import VARIABLES
from laggard.agent.traffic.sockets import SocketsUnknown, read_variables, socket_inodes
try:
    print(sorted(socket_inodes({pid})), read_variables([{pid}], VARIABLES))
except SocketsUnknown as error:
    print(error)
"""


@pytest.mark.slow
@as_root
def test_whose_a_connection_is_and_who_the_jobs_nodes_are_comes_through_the_reader(
    start_reader: Callable[..., Path],
) -> None:
    path = start_reader("--allow-user", str(NOBODY))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        variables = {"MASTER_ADDR": "n7", "SECRET": "hidden"}
        rank = subprocess.Popen(["/bin/sleep", "600"], env=variables, user=OTHER, pass_fds=(number,))
        try:
            inode = os.fstat(number).st_ino
            with_reader = as_nobody(SOCKETS.format(pid=rank.pid), path)
            assert with_reader == f"[{inode}] {{'MASTER_ADDR': 'n7'}}\n"
            without = as_nobody(SOCKETS.format(pid=rank.pid), Path("/nowhere"))
            assert without.startswith("the ranks' connections may not be seen: Permission denied; laggard's reader")
        finally:
            rank.kill()
            rank.communicate()


KERNEL = """
from laggard.agent.ranks.stack_files import KernelReader
side = KernelReader().side({owner}, {pid})
print(side.state, side.call >= 0, side.functions[:1])
"""


@pytest.mark.slow
@as_root
def test_where_a_process_stands_in_the_kernel_comes_through_the_reader(start_reader: Callable[..., Path]) -> None:
    path = start_reader("--allow-user", str(NOBODY))
    child = subprocess.Popen(["sleep", "600"], user=OTHER)
    try:
        code = KERNEL.format(owner=OTHER, pid=child.pid)
        wait_for(lambda: "sleep" in as_nobody(code, path), lambda: as_nobody(code, path))
        told = as_nobody(code, path)
        assert told.startswith("S True ('") and "nanosleep" in told, told
        assert as_nobody(code, Path("/nowhere")) == "S False ()\n", "the state alone is everybody's to know"
        with pytest.raises(OSError, match="no process of that number is that user's"):
            ask(f"kernel_side {NOBODY} {child.pid}", environ(path))
        for question in ("kernel_side", f"kernel_side {OTHER}", f"kernel_side {OTHER} ../1", "kernel_side x 1"):
            with pytest.raises(OSError, match="that is no"):
                ask(question, environ(path))
    finally:
        child.kill()
        child.wait()
