"""The stacks of one process: counts of equal stacks of its training thread, of its other threads and of its
children, as a JSON document of bounded size. Standard library only: the training process writes it.

A reader trusts it as little as a rank file: every text is bounded and printable, every number within a range.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

# Frames and stacks of Python threads, and what they say about where a thread stands: in the user's own code or in a
# library's, in a collective or not. Standard library only: the training process imports this.

MAX_NAME: Final = 200
"""The most characters of a function's name and of a file's path that are kept."""

GENERATOR, COROUTINE, COMPILED = "generator", "coroutine", "compiled"
"""The kinds of frames that are no plain function: what is resumed at each next(), what an event loop runs, and code
that torch.compile or torch.fx made."""

_LIBRARY = re.compile(
    r"(?:^|/)(?:site|dist)-packages/|/lib(?:64)?/python3|(?:^|/)laggard/trainer_hooks/"
    r"|^(?:torch|multiprocessing|concurrent|threading|importlib|asyncio"
    r"|accelerate|deepspeed|lightning|pytorch_lightning|transformers|megatron|tqdm|numpy|ray|laggard)/"
    r"|^(?:threading|socket|selectors|subprocess|queue|runpy|ssl|os|contextlib|_bootstrap|tempfile|shutil)\.py$|^<"
)
_COMPILED = re.compile(r"^<eval_with_key>|/torchinductor_[^/]*/|^<torch_package|_dynamo/resume_in_")
_STANDARD = re.compile(r"/lib(?:64)?/python3[^/]*/(?!(?:site|dist)-packages/)")
_COLLECTIVE = re.compile(
    r"_?(?:all_?reduce|all_?gather|reduce_?scatter|broadcast|barrier|monitored_barrier|all_?to_?all|gather|scatter"
    r"|reduce|i?recv|i?send|batch_isend_irecv|coalesce|wait|synchronize)(?:_\w+)?"
)
_DISTRIBUTED = re.compile(
    r"distributed_c10d|functional_collectives|torch/distributed/nn/|deepspeed/comm/|/mpi4py/|horovod"
)
_BACKWARD = re.compile(r"torch/autograd/(?:graph|__init__|function)\.py$")
_NATIVE = re.compile(r"\b(?:gloo::|nccl[A-Z]|c10d::|MPI_|hccl|rccl)")
_CUDA_WAIT = re.compile(r"torch/cuda/(?:__init__|streams)\.py$")


class Frame(NamedTuple):
    """A frame: the function's name, the path of its file, and the line that it is at; None: not told. `kind` is one of
    the kinds above, empty for a plain function."""

    function: str
    file: str
    line: int | None
    kind: str = ""


NO_FRAME: Final = Frame("no Python frame", "<C++, or another interpreter>", None)
"""What stands for the stack of a thread that runs no Python code: a C++ program that embeds Python and goes on by
itself, or the thread of an interpreter that this one does not see. Where in there it is, Python does not know."""


class Located(Protocol):
    """The interface of what is a frame of any dump."""

    @property
    def function(self) -> str: ...

    @property
    def file(self) -> str: ...


AnyFrame = TypeVar("AnyFrame", bound=Located)
Frames = Sequence[Frame]
"""The frames of one thread, the innermost first. Never empty where a thread was seen."""


def kind_of(file: str, is_generator: bool = False, is_coroutine: bool = False) -> str:
    """The kind of a frame, by the path of its file and the flags of its code."""
    if _COMPILED.search(file):
        return COMPILED
    return COROUTINE if is_coroutine else GENERATOR if is_generator else ""


def is_library(frame: Located) -> bool:
    """Whether the frame is no code of the script's own: torch's, an installed package's, Python's."""
    return _LIBRARY.search(frame.file) is not None


def is_standard_library(frame: Frame) -> bool:
    """Whether the frame is of Python's own library."""
    return _STANDARD.search(frame.file) is not None


def own_frame(frames: Sequence[AnyFrame]) -> AnyFrame:
    """The innermost frame that is no library's; the innermost where all are."""
    return next((frame for frame in frames if not is_library(frame)), frames[0])


def collective_of(frames: Sequence[Located]) -> str:
    """The collective that a thread waits in; `backward` where only that is told, since DDP's are within it. Empty: it
    waits in none."""
    for frame in frames:
        if _NATIVE.search(frame.function):
            return frame.function.split("(")[0].strip()
        name = frame.function.rpartition(".")[2].strip()
        if _COLLECTIVE.fullmatch(name) and _DISTRIBUTED.search(frame.file):
            return name
    if any(_BACKWARD.search(frame.file) for frame in frames):
        return "backward"
    waits = any(_CUDA_WAIT.search(frame.file) and "synchronize" in frame.function for frame in frames)
    return "synchronize" if waits else ""


def waits_for_children(frames: Frames) -> bool:
    """Whether a thread waits for the worker processes of a DataLoader or of a pool."""
    of_loader = any(frame.file.endswith("torch/utils/data/dataloader.py") for frame in frames)
    functions = {frame.function.rpartition(".")[2] for frame in frames}
    return (of_loader and bool(functions & {"_try_get_data", "_get_data"})) or any(
        frame.file.endswith("multiprocessing/pool.py") for frame in frames
    )


def frame_text(frame: Frame) -> str:
    """The frame as people write it: `tokenize (data.py:88)`, with the whole path."""
    return f"{frame.function} ({frame.file}{f':{frame.line}' if frame.line else ''})"


def short_text(frame: Frame) -> str:
    """The frame with its file's name alone, and what it is where it is no plain function."""
    name = frame.file.rpartition("/")[2] or frame.file
    kind = f", {frame.kind}" if frame.kind else ""
    return f"{frame.function} ({name}{f':{frame.line}' if frame.line else ''}{kind})"


def place_text(frames: Frames) -> str:
    """Returns where a thread stands, in a few words: the library's function that the script called last, and the
    script's own line, such as `torch.save, called in save (ckpt.py:41)`; the own line alone where nothing was called
    from it."""
    own = own_frame(frames)
    position = next(index for index, frame in enumerate(frames) if frame is own)
    own_text = short_text(own)
    waits = collective_of(frames[:position])
    if waits:
        return f"{waits}, called in {own_text}"
    if position == 0:
        return own_text
    called = frames[position - 1]
    return f"{short_text(called)}, called in {own_text}"


def inner_place_text(frames: Frames) -> str:
    """Returns the innermost place that is not of Python's own library, and the script's own line: what tells apart
    those that came through one line of the script, and wait at different places."""
    inner = next((frame for frame in frames if not is_standard_library(frame)), frames[0])
    own = own_frame(frames)
    return short_text(inner) if inner is own else f"{short_text(inner)}, called in {short_text(own)}"


SUFFIX: Final = ".stacks"
KEY: Final = "laggard_stacks"
FAULTS_KEY: Final = "laggard_faults"
"""The key of the first line of a file of faulthandler's dumps."""

MAX_BYTES: Final = 256 * 1024
MAX_STACKS: Final = 64
"""The most different stacks of one thread; those seen most often are kept."""

MAX_THREADS: Final = 64
"""The most threads and children that are told of, the training thread first."""

MAX_DEPTH: Final = 64
"""The most frames of one stack: the innermost ones and the outermost _OUTER."""

STILL_SHARE: Final = 0.99
"""The share of samples in one line from which on a rank counts as one that stands there, and does not go on."""

_OUTER: Final = 16
_MAX_COUNT: Final = 1_000_000

ASKED, STALLED, FAILED, TERMINATED = "asked", "stalled", "failed", "terminated"
HELD, CRASHED = "held", "crashed"
"""The reasons why stacks were taken: somebody asked; the training made no progress; an exception ends it; SIGTERM asked
it to end; nothing but C code ran for a while, since something holds Python's lock (the GIL); a fatal signal ended
it."""

REASONS: Final = (ASKED, STALLED, FAILED, TERMINATED, HELD, CRASHED)
_KINDS: Final = ("", GENERATOR, COROUTINE, COMPILED)


class SampledError(Exception):
    """The file or text is no document of stacks. The text says why, in one line."""


class Counted(NamedTuple):
    """Equal stacks of one thread. `frames`: the innermost first. `phase`: in which phase of the step, empty: in none;
    `waits`: in which collective, empty: in none. `left_out`: frames between the inner and the outer ones that are not
    kept."""

    times: int
    frames: tuple[Frame, ...]
    phase: str = ""
    waits: str = ""
    left_out: int = 0


class Thread(NamedTuple):
    """A thread, or a child process, and its stacks, those seen most often first. `pid`: of a child, else 0."""

    name: str
    stacks: tuple[Counted, ...]
    pid: int = 0

    @property
    def samples(self) -> int:
        return sum(each.times for each in self.stacks)


class Sampled(NamedTuple):
    """The stacks of one process. The first of `threads` is the one that trains. `at`: Unix time of the first sample;
    `seconds`: from the first to the last one; `stalled_seconds`: for how long the training had made no progress then,
    0: it did. `ask`: what was asked, where somebody did. `kernel`: where the training thread stood in the kernel
    meanwhile, in words; empty: not known, or it went on."""

    job_id: str
    rank: int
    node: str
    pid: int
    why: str
    at: float
    seconds: float
    threads: tuple[Thread, ...]
    stalled_seconds: float = 0.0
    ask: str = ""
    threads_left_out: int = 0
    kernel: str = ""

    @property
    def training(self) -> Thread:
        return self.threads[0]

    @property
    def is_still(self) -> bool:
        """Whether the training stood still: it was looked at since it did, or all but a few samples are of one line of
        the script."""
        if self.why != ASKED:
            return True
        lines: Counter[Frame] = Counter()
        for stack in self.training.stacks:
            lines[own_frame(stack.frames)] += stack.times
        return max(lines.values(), default=0) >= STILL_SHARE * self.training.samples


def shortened(frames: Sequence[Frame]) -> tuple[tuple[Frame, ...], int]:
    """Returns at most MAX_DEPTH of the frames, and how many were left out."""
    if len(frames) <= MAX_DEPTH:
        return tuple(frames), 0
    inner = MAX_DEPTH - _OUTER
    return (*frames[:inner], *frames[-_OUTER:]), len(frames) - MAX_DEPTH


def encode(sampled: Sampled, most: int = MAX_BYTES) -> bytes:
    """The document. Stacks seen least often, and then threads, are left out until it has at most `most` bytes; one
    stack of one thread stays."""
    stacks, threads = MAX_STACKS, MAX_THREADS
    while True:
        kept = sampled.threads[:threads]
        told = sampled._replace(
            threads=tuple(thread._replace(stacks=thread.stacks[:stacks]) for thread in kept),
            threads_left_out=sampled.threads_left_out + len(sampled.threads) - len(kept),
        )
        text = json.dumps(_document(told), separators=(",", ":")).encode("ascii")
        if len(text) <= most or (stacks == 1 and threads == 1):
            return text
        stacks, threads = max(1, stacks // 2), max(1, threads // 2)


def _document(sampled: Sampled) -> dict[str, Any]:
    """The document as JSON knows it. Each frame stands in it once, and stacks name it by its place in that list."""
    frames: dict[Frame, int] = {}

    def index(frame: Frame) -> int:
        return frames.setdefault(frame, len(frames))

    threads = [
        {
            "name": thread.name,
            "pid": thread.pid,
            "stacks": [{**each._asdict(), "frames": [index(frame) for frame in each.frames]} for each in thread.stacks],
        }
        for thread in sampled.threads
    ]
    return {KEY: 1, **sampled._asdict(), "threads": threads, "frames": [list(frame) for frame in frames]}


def write(path: str, sampled: Sampled) -> None:
    """Writes the document at `path`: paths and names of functions are the user's. Raises OSError."""
    write_private(path, encode(sampled))


def write_private(path: str, text: bytes) -> None:
    """Writes a whole file at `path`, in the place of an earlier one, readable by this user alone. Raises OSError."""
    hidden = f"{path}.{os.urandom(4).hex()}.new"
    fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(text)
        os.rename(hidden, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(hidden)
        raise


def read(path: str, owner: int | None = None) -> Sampled:
    """The document at `path`. Raises SampledError, also where the file is not `owner`'s."""
    return decode(read_small_file(path, MAX_BYTES, owner))


def read_small_file(path: str, most: int, owner: int | None = None) -> bytes:
    """The bytes of a regular file of at most `most`. Raises SampledError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SampledError(error.strerror or "cannot be opened") from None
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            raise SampledError(f"no regular file of at most {most >> 10} KiB")
        if owner is not None and about.st_uid != owner:
            raise SampledError("it is another user's")
        return file.read(most)


def decode(text: bytes) -> Sampled:
    """The document in `text`. Raises SampledError."""
    if len(text) > MAX_BYTES:
        raise SampledError(f"longer than {MAX_BYTES >> 10} KiB")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return from_value(value)


def from_value(value: Any) -> Sampled:
    """The document that `value`, as JSON has it, is. Raises SampledError."""
    try:
        return _sampled(value)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError):
        raise SampledError("no document of stacks that this release reads") from None


def merged(documents: Sequence[Sampled]) -> Sampled:
    """One document of several of one rank, as of the newest: equal stacks of threads of one name are added up."""
    newest = max(documents, key=lambda each: each.at)
    threads: dict[tuple[str, int, bool], Counter[Counted]] = {}
    for document in documents:
        for place, thread in enumerate(document.threads):
            counts = threads.setdefault((thread.name, thread.pid, place == 0), Counter())
            for stack in thread.stacks:
                counts[stack._replace(times=0)] += stack.times
    told = sorted(threads.items(), key=lambda item: not item[0][2])
    kept = tuple(
        Thread(name, tuple(stack._replace(times=times) for stack, times in counts.most_common(MAX_STACKS)), pid)
        for (name, pid, _), counts in told
    )
    return newest._replace(threads=kept, seconds=sum(document.seconds for document in documents))


def _sampled(value: Mapping[str, Any]) -> Sampled:
    if value[KEY] != 1 or value["why"] not in REASONS:
        raise ValueError
    frames = [_frame(*each) for each in value["frames"]]
    threads = tuple(_threads(value["threads"][: MAX_THREADS + 1], frames))
    if not threads:
        raise ValueError
    return Sampled(
        job_id=text_of(value["job_id"]),
        rank=number_of(value["rank"]),
        node=text_of(value["node"]),
        pid=number_of(value["pid"]),
        why=value["why"],
        at=_seconds(value["at"]),
        seconds=_seconds(value["seconds"]),
        threads=threads,
        stalled_seconds=_seconds(value["stalled_seconds"]),
        ask=text_of(value["ask"]),
        threads_left_out=number_of(value["threads_left_out"]),
        kernel=text_of(value.get("kernel", "")),
    )


def _threads(values: Sequence[Mapping[str, Any]], frames: Sequence[Frame]) -> Iterator[Thread]:
    for value in values:
        stacks = tuple(_counted(each, frames) for each in value["stacks"][:MAX_STACKS])
        yield Thread(text_of(value["name"]), stacks, number_of(value["pid"]))


def _counted(value: Mapping[str, Any], frames: Sequence[Frame]) -> Counted:
    indices = [number_of(each) for each in value["frames"][:MAX_DEPTH]]
    if not indices:
        raise ValueError
    return Counted(
        times=min(number_of(value["times"]), _MAX_COUNT),
        frames=tuple(frames[index] for index in indices),
        phase=text_of(value["phase"]),
        waits=text_of(value["waits"]),
        left_out=number_of(value["left_out"]),
    )


def _frame(function: Any, file: Any, line: Any, kind: Any) -> Frame:
    if kind not in _KINDS:
        raise ValueError
    return Frame(text_of(function), text_of(file), None if line is None else number_of(line), kind)


def text_of(value: Any) -> str:
    """`value`, a text, bounded and printable: what is not is `?`. The end of a long path is kept. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError
    kept = value[-MAX_NAME:]
    return (
        kept if kept.isascii() and kept.isprintable() else "".join(each if each.isprintable() else "?" for each in kept)
    )


def number_of(value: Any, below: int = 1 << 31) -> int:
    """`value`, a number from 0 to below `below`. Raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < below:
        raise ValueError
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e12:
        raise ValueError
    return float(value)
