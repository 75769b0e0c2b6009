"""What `laggard diagnose` reads of a file: any size, packed or not, in bounded memory and time."""

import gzip
import io
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.cli import main
from laggard.diagnose import input_file
from laggard.diagnose.file_format import FileContent
from laggard.diagnose.input_file import InputFile

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENV = "SHELL=/bin/bash\nNCCL_IB_DISABLE=1\nNCCL_DEBUG=INFO\nPATH=/usr/bin:/bin\nHOME=/home/ada\n"
XID = "[12345.678901] NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
PACKINGS = {"plain": lambda data: data, "gzip": gzip.compress, "zstd": zstd.compress}


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_file, "BEGINNING_BYTES", 4096)
    monkeypatch.setattr(input_file, "END_BYTES", 8192)
    monkeypatch.setattr(input_file, "_PIECE_BYTES", 1024)


def write(path: Path, data: bytes) -> FileContent:
    path.write_bytes(data)
    return InputFile(str(path)).read()


@pytest.mark.parametrize("pack", PACKINGS.values(), ids=PACKINGS)
def test_a_packed_file_is_read_as_a_plain_one(pack: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "env").write_bytes(pack(ENV.encode()))
    assert main(["diagnose", str(tmp_path / "env")]) == 0
    assert "NCCL_ENV_HARMFUL" in capsys.readouterr().out


@pytest.mark.parametrize("pack", PACKINGS.values(), ids=PACKINGS)
def test_of_a_large_file_the_beginning_and_the_end_are_read(pack: Any, tmp_path: Path, small_bounds: None) -> None:
    lines = [f"line {number} of the log\n" for number in range(4000)]
    content = write(tmp_path / "log", pack("".join(lines).encode()))
    read = "".join(content.pieces()).splitlines(True)
    assert read[0] == lines[0] and read[-1] == lines[-1]
    assert set(read) <= set(lines), "no line is cut"
    assert 11_000 < sum(map(len, read)) < 4096 + 8192 + 1024
    assert content.problem.startswith("only its first 4 KiB and last ") and content.problem.endswith(" KiB were read")
    assert content.text.startswith("line 0 ") and len(content.text) == 4096


@pytest.mark.parametrize("pack", PACKINGS.values(), ids=PACKINGS)
def test_what_fits_is_read_whole(pack: Any, tmp_path: Path, small_bounds: None) -> None:
    text = "".join(f"line {number}\n" for number in range(1000))
    content = write(tmp_path / "log", pack(text.encode()))
    assert ("".join(content.pieces()), content.problem) == (text, "")
    assert content.problem_of_the_beginning == "only its first 4 KiB were read"


def test_the_last_words_of_a_long_kernel_log_are_judged(
    tmp_path: Path, small_bounds: None, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = "".join(f"[{second}.000000] usb 1-1: new device\n" for second in range(2000))
    (tmp_path / "dmesg").write_text(usual + XID)
    assert main(["diagnose", str(tmp_path / "dmesg")]) == 1
    out = capsys.readouterr().out
    assert "GPU_XID" in out and "only its first 4 KiB and last 8 KiB were read" in " ".join(out.split())
    (tmp_path / "dmesg").write_text(usual)
    assert main(["diagnose", str(tmp_path / "dmesg")]) == 2, "a part of the log is not judged: that is not ok"


@pytest.mark.parametrize(("text", "mark"), [("äß: Ω 🙂\n" * 4000, ""), ("Zeile\n" * 6000, "\ufeff")])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_characters_are_never_cut(text: str, mark: str, encoding: str, tmp_path: Path, small_bounds: None) -> None:
    if encoding != "utf-8":
        mark = "\ufeff"
    content = write(tmp_path / "log", (mark + text).encode(encoding))
    assert set("".join(content.pieces()).removeprefix("\ufeff").splitlines()) == set(text.splitlines())


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_a_packed_file_that_is_cut_off_is_judged_as_far_as_it_goes(name: str, tmp_path: Path) -> None:
    packed = PACKINGS[name](ENV.encode() + os.urandom(500_000).hex().encode())
    content = write(tmp_path / "env", packed[: len(packed) // 2])
    assert f"the {name} data is damaged after" in content.problem
    assert content.text.startswith(ENV)


@pytest.mark.parametrize("begin", [b"\x1f\x8b", b"\x28\xb5\x2f\xfd"])
@given(data=st.binary(max_size=400))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_content_or_a_problem(begin: bytes, data: bytes, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    content = write(path, begin + data)
    assert "".join(content.pieces()) or content.problem


@pytest.mark.slow
@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
def test_a_bomb_ends_at_the_limit(pack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_file, "MAX_UNPACKED_BYTES", 64 << 20)
    content = write(tmp_path / "bomb", pack(b"\n" * (80 << 20)))
    assert "it is longer than" in content.problem and "what follows them was not read" in content.problem
    assert content.held_bytes <= input_file.BEGINNING_BYTES + input_file.END_BYTES + (1 << 20)


def test_packed_data_that_holds_nothing_does_not_take_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a million packed nothings unpacks to no byte that could be counted."""
    monkeypatch.setattr(input_file, "MAX_READ_SECONDS", 0.0)
    content = write(tmp_path / "nothings.gz", gzip.compress(b"") * 10_000)
    assert content.problem == "it was not read to its end within 0 s"


def test_pieces_of_a_byte_take_no_memory_of_their_own(tmp_path: Path) -> None:
    content = write(tmp_path / "bytes.gz", gzip.compress(b"x") * 20_000)
    assert content.document == "x" * 20_000 and len(list(content.pieces())) == 1


@pytest.mark.slow
def test_memory_is_bounded_for_any_size(tmp_path: Path) -> None:
    """A log of 300 MiB, half of whose lines have characters that take four bytes each in memory, and a bomb."""
    block = b"step 17 loss 2.31 lr 1e-4\n" * 2000 + "🙂 ▇▇▇▇▇▇▇▇ 99%\n".encode() * 2000
    with open(tmp_path / "log", "wb") as log:
        for _ in range((300 << 20) // len(block)):
            log.write(block)
    with gzip.open(tmp_path / "bomb.gz", "wb", compresslevel=1) as bomb:
        for _ in range(400):
            bomb.write(bytes(1 << 20))
    for name in ("log", "bomb.gz"):
        code = (
            "import sys; from laggard.cli import main; main(['diagnose', sys.argv[1]]);"
            "sys.stderr.write(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, check=True)
        assert int(done.stderr) < 100 << 10, f"{name}: {int(done.stderr) >> 10} MiB"


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "link to a device"])
def test_what_is_no_regular_file_is_refused_in_one_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "thing"
    held = None
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        held = socket.socket(socket.AF_UNIX)
        held.bind(str(path))
    else:
        path = Path("/dev/zero") if kind == "device" else path
        if kind != "device":
            path.symlink_to("/dev/zero")
    result: list[int] = []
    thread = threading.Thread(target=lambda: result.append(main(["diagnose", str(path)])), daemon=True)
    thread.start()
    thread.join(20)
    assert result == [64], "it is refused, and nothing waits for it"
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(path) in error and kind.split()[-1] in error
    if held is not None:
        held.close()


def test_a_file_of_proc_is_read_though_its_size_is_zero() -> None:
    content = InputFile("/proc/self/status").read()
    assert "Pid:" in content.text and content.problem == ""


def test_standard_input_is_read_as_a_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for pack in PACKINGS.values():
        data = io.BytesIO(pack(ENV.encode()))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(data)))
        assert main(["diagnose", "-"]) == 0
        assert "NCCL_ENV_HARMFUL" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "known"),
    [
        (b"", "is empty"),
        (b"\xfd7zXZ\x00" + bytes(99), "xz -dc FILE | laggard diagnose -"),
        (b"BZh91AY&SY" + bytes(99), "bzip2 -dc FILE | laggard diagnose -"),
        (b"PK\x03\x04" + bytes(99), "is a zip archive"),
        (b"\x80\x02}q\x00" + bytes(99), "Flight Recorder"),
        (bytes(257) + b"ustar" + bytes(99), "is a tar archive"),
        (b"\x7fELF" + bytes(99), "is a program or a core dump"),
        (bytes(range(32)) * 9, "holds binary data"),
        (b"Dear diary, the ring was slow today.\n", "ended; is of no known format (`laggard diagnose --help` lists"),
    ],
)
def test_of_an_unknown_file_what_is_known_is_said(
    data: bytes, known: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thing").write_bytes(data)
    assert main(["diagnose", str(tmp_path / "thing")]) == 2
    assert known in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("columns", [60, 100])
def test_the_text_is_as_wide_as_the_terminal(
    columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    (tmp_path / "dmesg").write_text(XID * 3)
    main(["diagnose", str(tmp_path / "dmesg")])
    lines = capsys.readouterr().out.splitlines()
    words = [line for line in lines if " " in line.strip() and not line.startswith("      ")]
    assert max(map(len, words)) <= columns and any("What to do:" in line for line in lines)


def test_a_file_of_zeros_is_not_unpacked_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_file, "MAX_ZERO_BYTES", 4 << 20)
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(b"a line\n" + bytes(64 << 20)))
    content = input_file.InputFile(str(path)).read()
    assert "MiB of zeros in a row, and what follows them was not read" in content.problem
    path.write_bytes(gzip.compress(bytes(2 << 20) + b"a line\n" + bytes(3 << 20)))
    assert not input_file.InputFile(str(path)).read().problem


def nested_xml() -> bytes:
    return b'<?xml version="1.0"?><nvidia_smi_log>' + b"<a>" * 3_000_000


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"\n" * 2_000_000, b" \n" * 1_000_000, b" " * 2_000_000, nested_xml()])
def test_a_file_of_nothing_costs_no_more_than_its_length(content: bytes, tmp_path: Path) -> None:
    """In CPU time, and in memory, also where it is packed into some kB."""
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(content, 1))
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, (100, 100));"
    run = "from laggard.cli import main; status = main(['diagnose', sys.argv[1]]);"
    told = "print(status, *(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    done = subprocess.run([sys.executable, "-c", limited + run + told, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or f"ended by {done.returncode}: more than 100 s of CPU"
    status, kibibytes = done.stdout.split()[-2:]
    assert int(status) == 2 and int(kibibytes) < 200 << 10
