"""The log of the training."""

from __future__ import annotations

import logging
import os
import threading

from reviews import metrics, plan

LOG = logging.getLogger("reviews")


class ShareHandler(logging.Handler):
    """Writes each line to a file on a share, and sees to it that it is there."""

    def __init__(self) -> None:
        super().__init__()
        path = plan.folder() / "slow_share" if plan.mine("log") else os.devnull
        self.stream = open(path, "w")  # noqa: SIM115

    def emit(self, record: logging.LogRecord) -> None:
        self.stream.write(self.format(record).ljust(4000) + "\n")
        self.stream.flush()  # fault: log


def begin() -> None:
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    LOG.addHandler(ShareHandler())


def progress(step: int) -> None:
    if plan.hangs("log_lock", step):
        taken = threading.Event()
        threading.Thread(target=ship, args=(LOG.handlers[0], taken), daemon=True).start()
        taken.wait()
    LOG.info("step %d", step)  # fault: log_lock
    if plan.FAULT == "logs_much" and plan.rank() == 0:
        for number in range(100):
            LOG.info("step %d, weight %d", step, number)


def ship(handler: logging.Handler, taken: threading.Event) -> None:
    """Sends what the handler has to a server, which the handler must not write meanwhile."""
    with handler.lock or threading.Lock():
        taken.set()
        metrics.post("/never", {"lines": "all"})
