"""The reader: what it tells, whom, and how little of what it may read; and an agent's processes without it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.agents import let_others_enter
from support.paths import REPOSITORY

from laggard.agent.reader.answers import Refused, answer
from laggard.agent.reader.server import MAX_CONNECTIONS, ReaderServer
from laggard.cli import main
from laggard.environment import ENV_READER
from laggard.probes.host import reader as client
from laggard.probes.host.host import Host
from laggard.probes.host.reader import MAX_QUESTION_BYTES, NoReader, ask
from laggard.probes.nccl.model import running_ranks
from laggard.probes.nccl.model.running_ranks import RankProcesses

NOBODY = 65534
OTHER = 65533

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


def environ(path: Path) -> dict[str, str]:
    return {ENV_READER: str(path)}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A reader in this process, whose answers may be the test's own."""
    with contextlib.ExitStack() as stack:

        def start(reply: Callable[[str], bytes], users: frozenset[int] = frozenset({os.geteuid()})) -> Path:
            path = tmp_path / "reader.sock"
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(str(path))
            listener.listen(64)
            path.chmod(0o666)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            threading.Thread(target=ReaderServer(listener, users, reply).serve, daemon=True).start()
            return path

        yield start


@pytest.fixture
def mute(tmp_path: Path) -> Iterator[Callable[[bytes], Path]]:
    """What poses as a reader: it sends these bytes, and waits."""
    with contextlib.ExitStack() as stack:

        def start(data: bytes, then_close: bool = False) -> Path:
            path = tmp_path / "mute.sock"
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(str(path))
            listener.listen(8)
            held: list[socket.socket] = []

            def serve_one() -> None:
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    held.append(connection)
                    connection.sendall(data)
                    if then_close:
                        connection.shutdown(socket.SHUT_WR)

            threading.Thread(target=serve_one, daemon=True).start()
            stack.callback(lambda: [connection.close() for connection in held])
            return path

        yield start


def with_the_units_capabilities() -> list[str]:
    """The words before a command that leave root those capabilities that the reader's unit has."""
    if os.geteuid() != 0:
        return []
    unit = (REPOSITORY / "deploy/systemd/system/laggard-reader.service").read_text()
    (listed,) = re.findall(r"^CapabilityBoundingSet=(.+)$", unit, re.M)
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in listed.split())
    return ["setpriv", "--inh-caps=-all", f"--bounding-set=-all,{kept}"]


class Reader:
    """`laggard reader` as a process of its own, and no mightier than its unit has it."""

    def __init__(self, path: Path, *flags: str) -> None:
        own = [sys.executable, "-m", "laggard", "reader", "--socket", str(path), *flags]
        words = [*with_the_units_capabilities(), *own]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.first_line = self.process.stderr.readline()
        assert "listening on" in self.first_line, self.first_line + self.process.stderr.read()

    def stop(self) -> int:
        self.process.terminate()
        self.process.communicate(timeout=300)
        return self.process.returncode


@pytest.fixture
def start_reader(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    let_others_enter(tmp_path)
    started: list[Reader] = []

    def start(*flags: str) -> Path:
        path = tmp_path / "live.sock"
        started.append(Reader(path, *flags))
        return path

    yield start
    for each in started:
        assert each.stop() == 0


def as_nobody(code: str, path: Path) -> str:
    """What `code` prints as a user without privileges. All is imported before: another user may not read our Python."""
    imports = (
        "import difflib, os, json\n"
        "import laggard.agent.gate.command, laggard.probes.registry, laggard.probes.host.reader\n"
        "import laggard.probes.host.adjtimex, laggard.agent.ranks.exit_status\n"
        "import laggard.agent.traffic.peers, laggard.agent.traffic.sockets\nfrom laggard.cli import main\n"
        "from laggard.probes.host.kernel_log import read_kmsg\nimport contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    main(['healthcheck', '--only', 'nccl_env', '--format', 'json'])\n"
    )
    switch = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    words = [sys.executable, "-c", imports + switch + code]
    done = subprocess.run(words, env={**os.environ, **environ(path)}, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


def test_it_knows_a_few_questions_and_none_with_a_path(serve: Callable[..., Path]) -> None:
    host = Host()
    path = serve(lambda question: answer(question, host))
    for question in (
        "",
        "read /etc/shadow",
        "environ 1",
        "pci_config /etc/shadow",
        "pci_config ../../../../etc/shadow",
        "pci_config 0000:00:00.0/../x",
        "pci_config",
        "kernel_log /etc/shadow",
        "rank_processes 1",
        "exit_status 1/../2",
        "exit_status -1",
        "exit_status 1",  # it lives
        "clock now",
        "sockets self",
        "job_variables 1/environ",
    ):
        with pytest.raises(NoReader, match="laggard's reader says: "):
            ask(question, environ(path))
    with pytest.raises(NoReader, match="there are pci_config, kernel_log, rank_processes, exit_status, clock, sockets"):
        ask("help", environ(path))


def test_it_reads_the_registers_of_a_device_by_its_address(serve: Callable[..., Path]) -> None:
    asked: list[str] = []

    class Machine(Host):
        def read_parts(self, path: str, parse: Any) -> Any:
            asked.append(path)
            return parse(lambda offset, size: bytes(64)[offset : offset + size])

    path = serve(lambda question: answer(question, Machine()))
    assert ask("pci_config 0000:3b:00.0", environ(path)) == bytes(64)
    assert asked == ["/sys/bus/pci/devices/0000:3b:00.0/config"]


def test_what_is_longer_than_a_question_is_none(serve: Callable[..., Path]) -> None:
    path = serve(lambda question: question.encode())
    assert ask("x" * (MAX_QUESTION_BYTES - 1), environ(path)) == b"x" * (MAX_QUESTION_BYTES - 1)
    assert ask("x" * (MAX_QUESTION_BYTES + 1), environ(path)) == b""


def test_a_moment_without_descriptors_does_not_end_it(tmp_path: Path) -> None:
    class Scarce(socket.socket):
        refusals = 2

        def accept(self) -> Any:
            if Scarce.refusals:
                Scarce.refusals -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    path = tmp_path / "reader.sock"
    with Scarce(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(8)
        server = ReaderServer(listener, frozenset({os.geteuid()}), lambda question: b"fine")
        threading.Thread(target=server.serve, daemon=True).start()
        assert ask("hello", environ(path)) == b"fine" and not Scarce.refusals
        listener.shutdown(socket.SHUT_RDWR)


QUESTIONS = ("pci_config", "kernel_log", "rank_processes", "clock", "exit_status", "sockets", "job_variables")
question = st.tuples(
    st.sampled_from(QUESTIONS),
    st.sampled_from([" ", "  ", "\t", "\0", ""]),
    st.one_of(st.text(max_size=40), st.integers().map(str), st.sampled_from(["0000:00:00.0", "../../etc", "1"])),
    st.sampled_from(["\n", "\r\n", "\n\n", ""]),
).map("".join)


def test_any_bytes_get_an_answer_or_a_reason(serve: Callable[..., Path]) -> None:
    host = Host()
    path = serve(lambda question: answer(question, host))

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(st.one_of(st.binary(max_size=2 * MAX_QUESTION_BYTES), question.map(str.encode)))
    def check(data: bytes) -> None:
        with socket.socket(socket.AF_UNIX) as asker:
            asker.settimeout(60)
            asker.connect(str(path))
            asker.sendall(data)
            asker.shutdown(socket.SHUT_WR)
            reply = b"".join(iter(lambda: asker.recv(65_536), b""))
        kind, _, rest = reply.partition(b" ")
        line, _, body = rest.partition(b"\n")
        assert kind in (b"ok", b"no") and line.isascii(), reply[:200]
        assert int(line) == len(body) if kind == b"ok" else line and not body, reply[:200]

    check()


@pytest.mark.slow
def test_who_asks_nothing_keeps_nobody_from_asking(serve: Callable[..., Path]) -> None:
    path = serve(lambda question: question.encode())
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            silent.connect(str(path))
        deadline = time.monotonic() + 300
        while True:
            with contextlib.suppress(NoReader):
                assert ask("hello", environ(path)) == b"hello"
                break
            assert time.monotonic() < deadline


def test_a_defect_in_one_answer_leaves_the_others(serve: Callable[..., Path]) -> None:
    def reply(question: str) -> bytes:
        if question == "bad":
            raise RuntimeError("a defect")
        if question == "no":
            raise Refused("not so\nok 5")
        return b"fine"

    path = serve(reply)
    with pytest.raises(NoReader, match="broke off"):
        ask("bad", environ(path))
    with pytest.raises(NoReader, match="says: not so"):
        ask("no", environ(path))
    assert ask("good", environ(path)) == b"fine"


HOLD = """
import os, socket, sys
os.setgid({nobody}); os.setuid({nobody})
held = []
while True:
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    try:
        connection.connect(sys.argv[1])
    except OSError:
        pass
    held.append(connection)
    if len(held) == 100:
        print("held", flush=True)
    if len(held) > 200:
        held.pop(0).close()
"""


@pytest.mark.slow
@as_root
def test_who_may_not_ask_keeps_nobody_from_asking(start_reader: Callable[..., Path]) -> None:
    """However many connections another user opens, again and again, and asks nothing on them."""
    path = start_reader("--allow-user", "0")
    words = [sys.executable, "-c", HOLD.format(nobody=NOBODY), str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as flood:
        try:
            assert flood.stdout is not None and flood.stdout.readline() == b"held\n"
            answered = 0
            for _ in range(10):
                with contextlib.suppress(NoReader):
                    answered += bool(ask("clock", environ(path)))
        finally:
            flood.kill()
    assert answered >= 8  # 1 of 10 where the flood takes the places of those who may ask


@pytest.mark.slow
@as_root
def test_another_user_may_not_ask(serve: Callable[..., Path], tmp_path: Path) -> None:
    let_others_enter(tmp_path)
    path = serve(lambda question: b"secret", users=frozenset({0}))
    said = as_nobody("from laggard.probes.host.reader import ask\nprint(ask('kernel_log'))", path)
    assert "laggard's reader says: this user may not ask" in said and "secret" not in said


def test_without_a_reader_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoReader) as raised:
        ask("kernel_log", environ(tmp_path / "none.sock"))
    assert raised.value.strerror == f"laggard's reader, which may, does not run ({tmp_path}/none.sock)"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"x" * 10_000, "answers something else"),
        (b"ok 99999999\n", "answers something else"),
        (b"ok -1\n", "answers something else"),
        (b"ok 5\nabc", "does not answer within"),
        (b"", "does not answer within"),
    ],
)
def test_whoever_poses_as_the_reader_costs_two_seconds_at_most(
    data: bytes, words: str, mute: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.1)
    with pytest.raises(NoReader, match=words):
        ask("clock", environ(mute(data)))


def test_an_answer_that_breaks_off_is_none(mute: Callable[..., Path]) -> None:
    with pytest.raises(NoReader, match="broke off"):
        ask("clock", environ(mute(b"ok 5\nabc", then_close=True)))


def test_a_user_who_does_not_exist_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reader", "--socket", str(tmp_path / "s"), "--allow-user", "no-such-user"]) == 64
    assert "no user no-such-user" in capsys.readouterr().err
    assert main(["reader", "--socket", "/proc/nowhere/s", "--allow-user", "0"]) == 64


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
        "from laggard.agent.ranks.exit_status import read_exit_status\n"
        "print(read_exit_status(os.open('/dev/null', os.O_RDONLY), {pid}))"
    )
    child = subprocess.Popen(["sh", "-c", "exit 3"], user=OTHER)
    deadline = time.monotonic() + 300
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
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
from laggard.agent.traffic.peers import VARIABLES
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


@pytest.mark.slow
def test_systemd_may_pass_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "passed.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(8)
        number = listener.fileno()
        shell = f'exec 3<&{number}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
        words = ["bash", "-c", shell, "bash", sys.executable, "-m", "laggard", "reader", "--allow-user", "0"]
        with subprocess.Popen(words, pass_fds=(number,), stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None and str(path) in process.stderr.readline()
                with pytest.raises(NoReader, match="says: no such question"):
                    ask("hello", environ(path))
            finally:
                process.terminate()
                process.communicate()


@pytest.mark.slow
def test_an_abandoned_socket_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
    reader = Reader(path, "--allow-user", "0")
    try:
        assert main(["reader", "--socket", str(path), "--allow-user", "0"]) == 64
    finally:
        assert reader.stop() == 0
