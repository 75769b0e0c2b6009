"""`attach(engine)`: from here on the rank is recorded. Nothing in here may ever stop or change the training."""

from __future__ import annotations

import atexit
import logging
import os
from typing import Any

from laggard.errors import UsageError
from laggard.names import ENV_EXPORT, ENV_OFF, ENV_RECORD_DIR, rank_dir
from laggard.rankfile import RankFileWriter
from laggard.trainer_hooks.facts import FACTS
from laggard.trainer_hooks.groups import Groups
from laggard.trainer_hooks.identity import Identity, header, identify
from laggard.trainer_hooks.recorder import Recorder
from laggard.trainer_hooks.records import Sink
from laggard.trainer_hooks.sinks import RankFileSink, RecordingSink

log = logging.getLogger("laggard")

_active: tuple[Recorder, Groups] | None = None


def attach(engine: Any) -> None:
    """Records a DeepSpeed engine's steps and collectives. Does nothing where LAGGARD_OFF is set; never raises."""
    if os.environ.get(ENV_OFF, "") not in ("", "0"):
        return
    try:
        from laggard.trainer_hooks import deepspeed_engine, input_pipeline

        recorder, groups = _start()
        deepspeed_engine.hook(engine, recorder, groups)
        input_pipeline.hook(recorder)
    except Exception as error:  # whatever it is, the training goes on without us
        log.warning("laggard: not attached, the training goes on without it: %s: %s", type(error).__name__, error)


def _start() -> tuple[Recorder, Groups]:
    """This process's one recorder; the first call makes it."""
    global _active
    if _active is None:
        identity = identify(os.environ)
        sinks, words = _sinks(identity)
        recorder = Recorder(sinks, words)
        _beat(sinks, recorder)
        if os.environ.get(ENV_EXPORT):
            _export(os.environ[ENV_EXPORT], identity, recorder)
        atexit.register(recorder.close)
        os.register_at_fork(after_in_child=recorder.silence)
        _active = recorder, Groups()
    return _active


def _beat(sinks: list[Sink], recorder: Recorder) -> None:
    for sink in sinks:
        if isinstance(sink, RankFileSink):
            try:
                sink.beat(recorder.progress, FACTS)
            except RuntimeError as error:
                log.warning("laggard: no heartbeat, a hang of this rank is seen later: %s", error)


def _export(address: str, identity: Identity, recorder: Recorder) -> None:
    from laggard.trainer_hooks.export import export  # an HTTP server: for those who ask for one

    try:
        log.info("laggard: metrics on %s/metrics", export(address, identity, recorder))
    except (UsageError, RuntimeError) as error:
        log.warning("laggard: no metrics are served from rank %d: %s", identity.rank, error)


def _sinks(identity: Identity) -> tuple[list[Sink], memoryview | None]:
    """The places to write to that can be had. One that cannot is named once, and the others go on."""
    sinks: list[Sink] = []
    words = None
    directory = rank_dir(os.environ)
    try:
        writer = RankFileWriter(directory, header(identity))
        words = writer.words
        sinks.append(RankFileSink(writer))
    except (OSError, ValueError) as error:
        log.warning("laggard: no rank file in %s, this rank stays unseen: %s", directory, error)
    record = os.environ.get(ENV_RECORD_DIR)
    if record:
        try:
            sinks.append(RecordingSink(record, identity))
        except OSError as error:
            log.warning("laggard: no recording in %s: %s", record, error)
    return sinks, words
