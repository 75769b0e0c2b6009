"""Opens a rank's outputs: its rank file, a recording, an HTTP endpoint. A warning names an output that fails to open,
and the others go on."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import sys
import time
from collections.abc import Callable
from threading import get_ident
from typing import Final

from laggard.kit.environment import ENV_EXPORT, ENV_RECORD_DIR, rank_dir
from laggard.kit.errors import UsageError
from laggard.rankfile.fact_names import SCRIPT, STARTED
from laggard.rankfile.layout import STATE_LEFT, WORD_STATE, own_directory
from laggard.rankfile.writer import RankFileWriter
from laggard.trainer_hooks.output.local_ranks import LocalRanks, QuietBeats
from laggard.trainer_hooks.output.rank_file import Heartbeat, RankFileSink
from laggard.trainer_hooks.output.recording import RecordingSink
from laggard.trainer_hooks.output.recording_folder import Identity, folder_of_run, header
from laggard.trainer_hooks.output.run_environment import WATCH, RunEnvironment
from laggard.trainer_hooks.output.stack_output import open_stacks
from laggard.trainer_hooks.output.threads import CpuWaitLines, OwnThreads
from laggard.trainer_hooks.record.ending import FACTS, on_departure, on_failure
from laggard.trainer_hooks.record.event_log import INTERVAL_SECONDS, PeriodicThread
from laggard.trainer_hooks.record.recorder import Recorder
from laggard.trainer_hooks.stacks.watch import StackWatch

BEAT_SECONDS: Final = 1.0
_DRAINS_PER_BEAT: Final = round(BEAT_SECONDS / INTERVAL_SECONDS)


class WriterThread(PeriodicThread):
    """The thread that writes a rank's outputs: it drains what the training thread has recorded several times a second,
    and beats about once a second. So the training thread pays for adding to a list and for nothing else. The thread
    stops when the interpreter does: what was recorded in the last tenth of a second of a killed process is lost.

    `on_beat`: called about once a second; `on_wake`: each time it wakes, with the
    nanoseconds that it is late. An exception in one of them is counted and does not reach the training."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(self._drain_and_beat)
        self.on_beat: list[Callable[[], None]] = []
        self.on_wake: list[Callable[[int], None]] = []
        self._recorder = recorder
        self._drains = 0

    def start(self) -> None:
        """Starts the thread. Raises RuntimeError where the process can have no further thread."""
        self._drains = 0
        super().start()
        self._recorder.set_background(self)

    def stop(self) -> bool:
        """Stops the thread after a last drain and beat. False where the thread is stuck."""
        self._recorder.set_background(None)
        return super().stop()

    def _drain_and_beat(self) -> None:
        self._recorder.drain()
        if self._drains % _DRAINS_PER_BEAT == 0:
            self._beat()
        self._drains += 1

    def _act_last(self) -> None:
        self._drains = 0
        self._drain_and_beat()

    def _woke(self, late_ns: int) -> None:
        for call in self.on_wake:
            call(late_ns)

    def _beat(self) -> None:
        for call in self.on_beat:
            try:
                call()
            except Exception:
                self._recorder.totals.errors += 1


log = logging.getLogger("laggard")

_MAX_CHARACTERS: Final = 120  # of a script's name


def open_outputs(
    recorder: Recorder, identity: Identity, training_thread: Callable[[], int] = get_ident
) -> tuple[StackWatch | None, str | None]:
    """Opens the outputs that the environment asks for, and starts the thread that writes them. `training_thread`: as
    OwnThreads has it. Returns what is to be closed when the process ends, and the folder of the recording. Never
    raises."""
    thread = WriterThread(recorder)
    own_threads = OwnThreads(FACTS, training_thread)
    thread.on_wake.append(own_threads.woke)
    gc.callbacks.append(own_threads.collecting)
    _say_what_runs()
    directory = os.environ.get(ENV_RECORD_DIR)
    rank_file = _open_rank_file(recorder, identity)
    sink = _open_recording(recorder, identity, directory) if directory else None
    recorded = _watch_quiet(recorder, identity, sink, rank_file) if sink is not None else None
    if rank_file is not None or recorded is not None:
        thread.on_beat.append(_heartbeat(recorder, rank_file, recorded).beat)
    stacks = open_stacks(recorder, identity, rank_file.path if rank_file is not None else None, sink, training_thread)
    if stacks is not None:
        thread.on_beat.append(stacks.beat)
    thread.on_beat.append(RunEnvironment(FACTS).beat)
    thread.on_beat.append(own_threads.look)  # after the beat: it reads files, and may not get the GIL back soon
    if sink is not None:
        thread.on_beat.append(CpuWaitLines(sink.write_at_once).look)
    address = os.environ.get(ENV_EXPORT)
    if address:
        _serve_metrics(recorder, identity, address)
    try:
        thread.start()
    except RuntimeError as error:
        log.warning("laggard: no heartbeat, so a hang of this rank will be noticed later: %s", error)
    thread.pause_around_forks()
    return stacks, sink.folder if sink is not None else None


def _say_what_runs() -> None:
    """Notes the script and when it began, by which people know a job better than by its number."""
    FACTS.set(SCRIPT, script_name())
    FACTS.set(STARTED, round(time.time(), 3))


def script_name() -> str | None:
    """The name of the script that runs, without its folder; None where there is none, as with -c."""
    path = (getattr(sys, "argv", None) or [""])[0]
    folder, name = os.path.split(path)
    name = os.path.basename(folder) if name == "__main__.py" else name
    return None if name.startswith("-") else name[:_MAX_CHARACTERS] or None


def _open_rank_file(recorder: Recorder, identity: Identity) -> RankFileWriter | None:
    directory = rank_dir(os.environ)
    try:
        writer = RankFileWriter(own_directory(directory), header(identity))
    except (OSError, ValueError) as error:
        log.warning("laggard: no rank file in %s, the agent cannot see this rank: %s", directory, _reason(error))
        return None
    recorder.add_sinks([RankFileSink(writer)], writer.words)
    on_departure(functools.partial(_mark_left, writer.words))
    return writer


def _mark_left(words: memoryview) -> None:
    with contextlib.suppress(ValueError):  # the file is closed
        words[WORD_STATE] = STATE_LEFT


def _open_recording(recorder: Recorder, identity: Identity, directory: str) -> RecordingSink | None:
    try:
        folder = folder_of_run(directory, identity)
        sink = RecordingSink(folder, identity)
    except OSError as error:
        log.warning("laggard: no recording in %s: %s", directory, _reason(error))
        return None
    if folder != directory and identity.rank == 0:  # one line for all ranks
        log.warning("laggard: %s holds the recording of another run: this run is recorded in %s", directory, folder)
    recorder.add_sinks([sink])
    return sink


def _watch_quiet(
    recorder: Recorder, identity: Identity, sink: RecordingSink, rank_file: RankFileWriter | None
) -> QuietBeats:
    others = LocalRanks(sink, identity, sink.folder, rank_file.path if rank_file else None)
    on_failure(others.look_at_end)
    on_failure(sink.write_ending)
    on_departure(sink.write_departure)
    return QuietBeats(sink, recorder.live, others)


def _reason(error: Exception) -> str:
    """The error's text, without the number of the error and a path that stands before it."""
    return getattr(error, "strerror", None) or str(error)


def _heartbeat(recorder: Recorder, rank_file: RankFileWriter | None, recorded: QuietBeats | None) -> Heartbeat:
    """One heartbeat for both outputs: it asks torch, which holds the GIL."""
    takers = [*([rank_file.write_beat] if rank_file else ()), *([recorded.take] if recorded else ())]
    write_facts = rank_file.write_facts if rank_file else None
    return Heartbeat(recorder.live, recorder.progress, FACTS, BEAT_SECONDS, takers, write_facts, WATCH.beat)


def _serve_metrics(recorder: Recorder, identity: Identity, address: str) -> None:
    from laggard.trainer_hooks.output.http_export import serve_metrics  # only now: it imports an HTTP server

    try:
        log.info("laggard: metrics on %s/metrics", serve_metrics(address, identity, recorder))
    except (UsageError, RuntimeError) as error:
        log.warning("laggard: no metrics are served from rank %d: %s", identity.rank, error)
