"""`attach(engine)` and `attach(model, optimizer)` record this rank from now on. Nothing here may ever stop or change
the training."""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from contextlib import ContextDecorator
from threading import get_ident
from typing import Any, Final

from laggard.kit.constants import PHASES
from laggard.kit.environment import ENV_OFF
from laggard.trainer_hooks.engines.known_calls import hook_known_calls
from laggard.trainer_hooks.output.run_environment import WATCH
from laggard.trainer_hooks.output.witness import WITNESS
from laggard.trainer_hooks.pytorch.training import hooked_optimizer
from laggard.trainer_hooks.session import Session
from laggard.trainer_hooks.wrapping import after_import, call_after, suppress_errors

log = logging.getLogger("laggard")

_active: Session | None = None
_expected = False  # whether this process is to be recorded once it trains: it was started so


def is_disabled() -> bool:
    """Whether LAGGARD_OFF disables laggard in this process."""
    return os.environ.get(ENV_OFF, "") not in ("", "0")


def attach(*trained: Any) -> None:
    """Records the training of `trained`: a DeepSpeed engine, or a module (DDP, FSDP, any other) and the optimizer whose
    updates end the steps. Without an argument: of whatever torch trains in this process. Does nothing where LAGGARD_OFF
    is set. Never raises."""
    if is_disabled():
        return
    expect_training()
    try:
        have_end_told()
        current = session(bool(trained) or _has_torch())
        current.steps.claim_training_thread()
        for each in trained:
            _watch(current, each)
        current.open()
    except Exception as error:  # whatever it is, the training goes on without laggard
        log.warning("laggard: not attached, the training goes on without it: %s: %s", type(error).__name__, error)


def expect_training() -> None:
    """Has this process recorded as soon as it trains, also where that is a loop of its own."""
    global _expected
    _expected = True


def current_session() -> Session | None:
    """The session of this process, None where there is none by now. Imports nothing."""
    return _active


def loop_session() -> Session | None:
    """The session for a loop that says itself where its steps end. It needs no torch, and imports none. None where this
    process is not to be recorded."""
    if _active is not None or not _expected or is_disabled():
        return _active
    return session("torch" in sys.modules)


def _has_torch() -> bool:
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None


def session(with_torch: bool = True) -> Session:
    """The session of this process. The first call creates it, and the first one with torch hooks that."""
    if with_torch:
        import torch  # noqa: F401 - must come first: with the import hooks, this import creates the session

    global _active
    if _active is None or (with_torch and not _active.is_hooked):
        created = _active or Session()
        try:
            if with_torch:
                created.hook()
                hook_known_calls(created)
        except Exception as error:
            created.abandon()
            _watch_without_hooks(error)
            raise
        _active = created
    return _active


@functools.cache
def have_end_told() -> None:
    """Makes the process say at its end where it was not seen. What is registered before the outputs' end comes after
    it."""
    atexit.register(_witness_end)


def _witness_end() -> None:
    """The process ends: where it trained and was not seen, it says so in one line."""
    if _active is not None:
        _active.witness_end()
    elif not is_disabled():
        suppress_errors(_witness_end_without_hooks)
        suppress_errors(_witness_end_of_jax)


_failure = ""  # why there are no hooks
_updated = False  # whether an optimizer of torch has stepped, where there are none


def _watch_without_hooks(error: Exception) -> None:
    """The hooks did not get into torch, or not all of them. That the process trains is noticed nevertheless."""
    global _failure
    if not _failure:
        _failure = f"the hooks did not get into torch: {type(error).__name__}: {error}"
        suppress_errors(_hook_updates_alone)


def _hook_updates_alone() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_note_update)


def _note_update(*_: Any) -> None:
    global _updated
    if not _updated:
        _updated = True
        WITNESS.unseen(_failure)


def _witness_end_without_hooks() -> None:
    torch: Any = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    initialized = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if _updated or initialized or (torch is not None and not _failure and _has_optimizer(torch)):
        why = _failure or "torch was imported in a way that the hooks did not notice"
        did = "trained" if _updated or not initialized else "initialized torch.distributed"
        WITNESS.end(why, "call laggard.trainer_hooks.attach(model, optimizer), and report this as a defect", did)


def _witness_end_of_jax() -> None:
    """JAX waits for other processes within its compiled steps: only the loop can say where these end."""
    state: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if (getattr(state, "num_processes", None) or 0) > 1:
        what = "put laggard.trainer_hooks.step() around each step of the loop"
        WITNESS.end("no hook sees into JAX", what, "initialized jax.distributed")


def _has_optimizer(torch: Any) -> bool:
    """Whether there is an optimizer, or was one that is not gone yet."""
    kind = getattr(getattr(torch, "optim", None), "Optimizer", None)
    return isinstance(kind, type) and any(issubclass(type(each), kind) for each in gc.get_objects())


def _watch(current: Session, each: Any) -> None:
    import torch

    if "deepspeed" in sys.modules and hasattr(each, "global_steps") and hasattr(each, "backward"):
        from laggard.trainer_hooks.engines import deepspeed as deepspeed_engine

        deepspeed_engine.hook(each, current)
    elif isinstance(each, torch.nn.parallel.DistributedDataParallel):
        current.watch_ddp(each)
    elif isinstance(each, torch.nn.Module):
        current.watch_module(each)
    elif hasattr(each, "step"):
        current.steps.boundary.set_leader(current.steps.optimizer_key(hooked_optimizer(each)))


_installed = False


def hook_process() -> None:
    """Hooks this process, which may become a rank: whatever it imports, and its NCCL's log. A second call
    changes nothing, and neither does one where LAGGARD_OFF is set."""
    if not is_disabled() and not WATCH.is_prepared:
        expect_training()
        install_import_hooks()
        have_end_told()
        WATCH.prepare()
        atexit.register(WATCH.close)


def install_import_hooks() -> None:
    """Hooks torch, FSDP and DeepSpeed as soon as the script imports them. A second call changes nothing, and neither
    does one where LAGGARD_OFF is set."""
    global _installed
    if not is_disabled() and not _installed:
        _installed = True
        after_import("torch", _hook_torch)
        after_import("torch.distributed.fsdp", _hook_fsdp)
        after_import("deepspeed", _hook_deepspeed)
        after_import("mpi4py.MPI", _hook_mpi)


def _hook_torch(torch: Any) -> None:
    session().witness_start()


def _hook_fsdp(fsdp: Any) -> None:
    """Watches the modules that fully_shard(module) and the older class FullyShardedDataParallel shard."""
    call_after(fsdp, "fully_shard", lambda _, module, *__, **___: session().watch_module(module))
    wrapper = "FullyShardedDataParallel.__init__"
    call_after(fsdp, wrapper, lambda _, self, /, *__, **___: session().watch_module(self))


def _hook_deepspeed(deepspeed: Any) -> None:
    """Attaches to the engine that deepspeed.initialize() returns."""
    call_after(deepspeed, "initialize", lambda result, *_, **__: attach(result[0]))


# `step` and `phase`: what a loop of one's own says of itself, as context managers and as decorators.
#
#     for batch in batches:
#         with step():
#             with phase("input"):
#                 ...
#             train(batch)
#         with phase("evaluation"):
#             ...
#
# They may stay in the code: where laggard does nothing, as in a process that was started without it, each costs a
# microsecond. Neither raises, and neither keeps an exception of the script's from getting out.

ALIASES: Final = {
    "data": "input",
    "load": "input",
    "eval": "evaluation",
    "evaluate": "evaluation",
    "validate": "evaluation",
    "validation": "evaluation",
    "test": "evaluation",
    "save": "checkpoint",
    "ckpt": "checkpoint",
    "log": "logging",
    "metrics": "logging",
}
"""Other words for phases, as scripts use them."""

_PLACES: Final = {
    **{name: place for place, name in enumerate(PHASES)},
    **{alias: PHASES.index(name) for alias, name in ALIASES.items()},
}
_told: set[str] = set()  # names that are no phase, each told of once


class phase(ContextDecorator):
    """Records what runs in it as the phase `name`: input, forward, backward, optimizer, evaluation, checkpoint, logging
    or between_steps, or a word of ALIASES. Of phases within each other the outer one counts. Any other name counts as
    between_steps, and one line says so."""

    def __init__(self, name: str) -> None:
        self._place = _place_of(name)
        self._entered: list[Session | None] = []  # a decorated function may call itself

    def __enter__(self) -> phase:
        session = _session_of_this_thread(current_session())
        self._entered.append(session)
        if session is not None:
            session.loop.enter(self._place)
        return self

    def __exit__(self, *_: object) -> None:
        session = self._entered.pop()
        if session is not None:
            session.loop.leave()


class step(ContextDecorator):
    """Records what runs in it as one step of training; from the first on, no optimizer ends steps. For loops that have
    no optimizer of torch's, such as JAX's. What no phase() in it names counts as forward."""

    def __enter__(self) -> step:
        session = loop_session()
        if session is not None:
            session.begin_loop_step()
        return self

    def __exit__(self, *_: object) -> None:
        session = _session_of_this_thread(current_session())
        if session is not None:
            session.loop.end()


class waits(ContextDecorator):
    """Records what runs in it as a wait for other ranks, in collectives that no hook sees: of Horovod, or of one's own
    sockets. Calls of mpi4py's communicators are recorded so."""

    def __enter__(self) -> waits:
        if (session := _session_of_this_thread(current_session())) is not None:
            suppress_errors(session.waits.begin)
        return self

    def __exit__(self, *_: object) -> None:
        if (session := _session_of_this_thread(current_session())) is not None:
            suppress_errors(session.waits.end)


def _hook_mpi(mpi: Any) -> None:
    """Has the methods of MPI.COMM_WORLD, and of what is split off it, recorded as waits, but those that only tell or
    set something. They are C's, and cannot be replaced: a subclass takes the place of theirs."""
    original = mpi.Intracomm
    names = [name for name in dir(original) if not name.startswith(("_", "Get_", "Is_", "Set_"))]
    calls = [(name, found) for name in names if getattr(found := getattr(original, name), "__self__", None) is None]
    watched = type("Intracomm", (original,), {})
    for name, found in calls:
        if callable(found):
            setattr(watched, name, _of_mpi(found, mpi, watched))
    mpi.COMM_WORLD = watched(mpi.COMM_WORLD)


def _of_mpi(original: Callable[..., Any], mpi: Any, watched: type) -> Callable[..., Any]:
    """Whatever such a method does, it is no work of the script's: a wait, or a transfer. What waits later is a request,
    or a communicator of another kind, in which no hook sees it; nor does one on another thread."""

    @functools.wraps(original)
    def called(*args: Any, **named: Any) -> Any:
        with waits():
            result = original(*args, **named)
        result = watched(result) if type(result) is mpi.Intracomm else result
        session = current_session()
        is_late = isinstance(result, mpi.Request | mpi.Comm) and not isinstance(result, watched)
        if session is not None and (is_late or get_ident() != session.steps.thread):
            suppress_errors(session.waits.hide)
        return result

    return called


def _session_of_this_thread(session: Session | None) -> Session | None:
    """`session`, None on other threads than the training's: what these do beside it is no phase of the step."""
    return session if session is not None and get_ident() == session.steps.thread else None


def _place_of(name: Any) -> int:
    place = _PLACES.get(name) if isinstance(name, str) else None
    if place is not None:
        return place
    if repr(name) not in _told and len(_told) < len(PHASES):
        _told.add(repr(name))
        known = ", ".join(PHASES[:-1])
        print(f"laggard: phase({name!r:.60}) counts as between_steps; the phases are {known}", file=sys.stderr)
    return PHASES.index("between_steps")


_PREFIX: Final = "laggard/"
_DRAIN_SECONDS: Final = 0.2  # that is waited for the thread which counts

_before: dict[str, float] = {}


def metrics() -> dict[str, float]:
    """The measurements since the last call, in seconds a step: `laggard/step_seconds`, `laggard/waited_seconds`, each
    phase that took time (`laggard/forward_seconds`), and `laggard/steps`, how many there were. Empty before the first
    step, and where laggard does nothing. Never raises."""
    session = current_session()
    if session is None:
        return {}
    session.recorder.drain(_DRAIN_SECONDS)
    totals = session.recorder.totals
    now = {"steps": float(totals.steps), "step_seconds": totals.step_ns / 1e9, "waited_seconds": totals.waited_ns / 1e9}
    now |= {f"{name}_seconds": spent / 1e9 for name, spent in zip(PHASES, totals.phases_ns, strict=True)}
    made = {name: value - _before.get(name, 0.0) for name, value in now.items()}
    steps = made.pop("steps")
    if steps <= 0:
        return {}
    _before.update(now)
    means = {name: value / steps for name, value in made.items() if value > 0 or name == "waited_seconds"}
    return {f"{_PREFIX}steps": steps, **{f"{_PREFIX}{name}": value for name, value in means.items()}}
