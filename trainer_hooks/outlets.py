"""The places that a rank writes to: its rank file, a recording, an endpoint of its own. One that cannot be had is named
once, and the others go on."""

from __future__ import annotations

import logging
import os

from laggard.errors import UsageError
from laggard.names import ENV_EXPORT, ENV_RECORD_DIR, rank_dir
from laggard.rankfile import RankFileWriter
from laggard.trainer_hooks.facts import FACTS
from laggard.trainer_hooks.heartbeat import Heartbeat
from laggard.trainer_hooks.identity import Identity, header
from laggard.trainer_hooks.recorder import Recorder
from laggard.trainer_hooks.scribe import BEAT_SECONDS, Scribe
from laggard.trainer_hooks.sinks import RankFileSink, RecordingSink
from laggard.trainer_hooks.transport_watch import WATCH

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
    scribe.around_forks()


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
    from laggard.trainer_hooks.export import export  # an HTTP server: for those who ask for one

    try:
        log.info("laggard: metrics on %s/metrics", export(address, identity, recorder))
    except (UsageError, RuntimeError) as error:
        log.warning("laggard: no metrics are served from rank %d: %s", identity.rank, error)
