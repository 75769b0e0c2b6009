"""A process's document of stacks: bounded when it is written, not trusted when it is read."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import rows

from laggard.stacks import sampled as module
from laggard.stacks.sampled import (
    ASKED,
    MAX_BYTES,
    MAX_DEPTH,
    STALLED,
    Counted,
    Frame,
    Sampled,
    SampledError,
    Thread,
    decode,
    encode,
    merged,
    read,
    shortened,
    write,
)

PRINTABLE = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=60)
LINES = st.none() | st.integers(1, 9999)
FRAMES = st.lists(st.builds(Frame, PRINTABLE, PRINTABLE, LINES, st.just("")), min_size=1, max_size=8)
STACKS = st.builds(Counted, st.integers(1, 999), FRAMES.map(tuple), PRINTABLE, PRINTABLE, st.integers(0, 9))
THREADS = st.lists(
    st.builds(Thread, PRINTABLE, st.lists(STACKS, max_size=4).map(tuple), st.integers(0, 9)), min_size=1, max_size=4
)


def document(threads: tuple[Thread, ...], why: str = ASKED, at: float = 100.0) -> Sampled:
    return Sampled("j", 3, "n1", 77, why, at, 10.0, threads)


def stack(*functions: str, times: int = 1) -> Counted:
    return Counted(times, tuple(Frame(name, "train.py", 10) for name in functions))


@given(THREADS)
def test_what_is_written_is_read(threads: list[Thread]) -> None:
    told = document(tuple(threads))
    assert decode(encode(told)) == told


def test_a_document_is_bounded_and_keeps_the_stacks_seen_most_often() -> None:
    stacks = tuple(stack(*(f"f{number}_{level}" for level in range(60)), times=500 - number) for number in range(400))
    told = document(tuple(Thread(f"t{number}", stacks) for number in range(200)))
    text = encode(told)
    assert len(text) <= MAX_BYTES
    kept = decode(text)
    assert kept.training.stacks[0] == stacks[0]
    assert kept.threads_left_out == 200 - len(kept.threads)


def test_of_a_deep_recursion_both_ends_are_kept() -> None:
    frames = [Frame(f"f{number}", "a.py", number) for number in range(1000)]
    kept, left_out = shortened(frames)
    assert (len(kept), left_out) == (MAX_DEPTH, 1000 - MAX_DEPTH)
    assert (kept[0], kept[-1]) == (frames[0], frames[-1])


@given(st.binary(max_size=400))
def test_any_bytes_are_a_document_or_refused(text: bytes) -> None:
    with pytest.raises(SampledError):
        decode(text)


@rows("stacks/impossible")
def test_a_document_with_an_impossible_value_is_refused(path: tuple[str | int, ...], value: object) -> None:
    whole = json.loads(encode(document((Thread("m", (stack("f"),)),))))
    at = whole
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(SampledError):
        decode(json.dumps(whole).encode())


def test_characters_that_steer_a_terminal_do_not_come_through() -> None:
    told = document((Thread("m", (Counted(1, (Frame("f\x1b[2J\nx", "p\u202e.py", 1),)),)),))
    frame = decode(encode(told)).training.stacks[0].frames[0]
    assert (frame.function, frame.file) == ("f?[2J?x", "p?.py")


def test_the_file_is_the_users_own_and_a_link_or_fifo_is_none(tmp_path: Path) -> None:
    path = tmp_path / "1-a.stacks"
    write(str(path), document((Thread("m", (stack("f"),)),)))
    assert path.stat().st_mode & 0o777 == 0o600
    assert read(str(path), os.geteuid()).rank == 3
    with pytest.raises(SampledError, match="another user"):
        read(str(path), os.geteuid() + 1)
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "fifo")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 30)
    for name in ("link", "fifo", "large", "none"):
        with pytest.raises(SampledError):
            read(str(tmp_path / name))
    assert sorted(os.listdir(tmp_path)) == ["1-a.stacks", "fifo", "large", "link"], "nothing hidden is left"


def test_documents_of_one_rank_are_added_up() -> None:
    first = document((Thread("m", (stack("f", times=3), stack("g", times=1))), Thread("w", (stack("h"),), pid=5)))
    second = document((Thread("m", (stack("g", times=4),)),), at=200.0)
    whole = merged([first, second])
    assert (whole.at, whole.seconds) == (200.0, 20.0)
    assert whole.training.stacks == (stack("g", times=5), stack("f", times=3))
    assert whole.threads[1] == first.threads[1]


def test_every_reason_is_known() -> None:
    assert STALLED in module.REASONS and len(set(module.REASONS)) == len(module.REASONS)
