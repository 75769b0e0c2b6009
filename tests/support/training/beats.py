"""Waits for the thread beside training, which writes about once a second where the rank stands, and its facts."""

import threading

from laggard.trainer_hooks.record.ending import Facts


def after_a_beat(seconds: float = 240.0) -> None:
    """Returns once a beat has been written whose facts were asked for after this call: the next one has come to its
    own."""
    whole, asked = Facts.changed_json, threading.Semaphore(0)

    def changed_json(self: Facts) -> bytes | None:
        asked.release()
        return whole(self)

    Facts.changed_json = changed_json  # type: ignore[method-assign]
    try:
        for _ in range(2):
            assert asked.acquire(timeout=seconds), "no heartbeat came"
    finally:
        Facts.changed_json = whole  # type: ignore[method-assign]
