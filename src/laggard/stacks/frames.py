"""Frames and stacks of Python threads, and what they say about where a thread stands: in the user's own code or in a
library's, in a collective or not. Standard library only: the training process imports this."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

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
