"""The places that a rank writes to: its rank file, a recording, an endpoint of its own. One that cannot be had is named
once, and the others go on."""

from __future__ import annotations

import logging
import os

from laggard.environment import ENV_EXPORT, ENV_RECORD_DIR, rank_dir
from laggard.errors import UsageError
from laggard.rankfile import RankFileWriter
from laggard.trainer_hooks.output.heartbeat import Heartbeat
from laggard.trainer_hooks.output.identity import Identity, header
from laggard.trainer_hooks.output.rank_file import RankFileSink
from laggard.trainer_hooks.output.recording import RecordingSink
from laggard.trainer_hooks.output.transport_watch import WATCH
from laggard.trainer_hooks.output.writer_thread import BEAT_SECONDS, Scribe
from laggard.trainer_hooks.record.facts import FACTS
from laggard.trainer_hooks.record.recorder import Recorder

log = logging.getLogger("laggard")


def open_all(recorder: Recorder, identity: Identity) -> None:
    """From here on the recorder writes there, from a thread of its own."""
    scribe = Scribe(recorder)
    _rank_file(recorder, identity, scribe)
    record = os.environ.get(ENV_RECORD_DIR)
    if record:
        try:
            recorder.add_sinks([RecordingSink(record, identity)])
        except OSError as error:
            log.warning("laggard: no recording in %s: %s", record, error)
    address = os.environ.get(ENV_EXPORT)
    if address:
        _export(address, identity, recorder)
    try:
        scribe.start()
    except RuntimeError as error:
        log.warning("laggard: no heartbeat, a hang of this rank is seen later: %s", error)
    scribe.pause_around_forks()


def _rank_file(recorder: Recorder, identity: Identity, scribe: Scribe) -> None:
    directory = rank_dir(os.environ)
    try:
        writer = RankFileWriter(directory, header(identity))
    except (OSError, ValueError) as error:
        log.warning("laggard: no rank file in %s, this rank stays unseen: %s", directory, error)
        return
    recorder.add_sinks([RankFileSink(writer)], writer.words)
    scribe.beats.append(Heartbeat(writer, recorder.progress, FACTS, BEAT_SECONDS, WATCH.beat).beat)


def _export(address: str, identity: Identity, recorder: Recorder) -> None:
    from laggard.trainer_hooks.output.http_export import export  # an HTTP server: for those who ask for one

    try:
        log.info("laggard: metrics on %s/metrics", export(address, identity, recorder))
    except (UsageError, RuntimeError) as error:
        log.warning("laggard: no metrics are served from rank %d: %s", identity.rank, error)
