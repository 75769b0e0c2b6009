"""The reader: whom it answers, which questions, and what no client can do to it."""

import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.agents import let_others_enter
from support.readers import NOBODY, Reader, as_nobody, as_root, environ
from support.waiting import wait_for

from laggard.agent.reader import answers
from laggard.agent.reader.answers import Refused, answer
from laggard.agent.reader.server import MAX_CONNECTIONS, ReaderServer
from laggard.cli import main
from laggard.probes.errors import NotFound, Unknown
from laggard.probes.host import reader as client
from laggard.probes.host.host import Host
from laggard.probes.host.reader import MAX_QUESTION_BYTES, NoReader, ask
from laggard.probes.host.virtualization import installed_memory


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
        "installed_memory 17-0",
        "sockets self",
        "job_variables 1/environ",
    ):
        with pytest.raises(NoReader, match="laggard's reader says: "):
            ask(question, environ(path))
    with pytest.raises(NoReader, match="there are pci_config, kernel_log, rank_processes, exit_status, clock, "):
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


def test_it_adds_up_the_memory_modules_and_tells_no_serial_number(
    serve: Callable[..., Path], copy_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Host(str(copy_of("plain")))
    path = serve(lambda question: answer(question, machine))
    assert ask("installed_memory", environ(path)) == b"%d" % (128 << 30)
    monkeypatch.setenv("LAGGARD_READER", str(path))
    live = Host()

    def refused(*words: Any) -> None:
        raise Unknown("cannot list: Permission denied")

    monkeypatch.setattr(live, "entries", refused)
    assert installed_memory(live) == 128 << 30
    monkeypatch.setenv("LAGGARD_READER", "/nonexistent")
    with pytest.raises(NotFound):
        installed_memory(live)


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
            asker.settimeout(300)
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

        def answer() -> bytes:
            with contextlib.suppress(NoReader):
                return ask("hello", environ(path))
            return b""

        assert wait_for(answer) == b"hello"


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


@pytest.mark.slow
def test_systemd_may_pass_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "passed.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(8)
        number = listener.fileno()
        shell = f'exec 3<&{number}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
        words = ["bash", "-c", shell, "bash", sys.executable, "-m", "laggard", "agent", "--reader", "--allow-user", "0"]
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
        assert main(["agent", "--reader", "--socket", str(path), "--allow-user", "0"]) == 64
    finally:
        assert reader.stop() == 0


def test_a_log_that_is_too_long_is_cut_between_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The middle of a line may be a user's text, and would stand at the beginning like a message."""
    lines = [f"6,{number},1,-;x NVRM: Xid (PCI:0000:19:00): 79 {'y' * 4000}\n" for number in range(20_000)]
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 100_000)
    monkeypatch.setattr(answers, "read_own_kmsg", lambda: "".join(lines))
    log = answers.answer("kernel_log", Host()).decode()
    assert log.startswith("6,") and log.endswith(lines[-1]) and 90_000 < len(log) <= 100_000
    monkeypatch.setattr(answers, "read_own_kmsg", lambda: lines[0])
    assert answers.answer("kernel_log", Host()).decode() == lines[0]
