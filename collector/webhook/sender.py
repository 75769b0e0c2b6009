"""The thread that sends what an outbox holds, until it arrives or is too old. Nothing else waits for it.

Where the receiver is away, answers 5xx or 429, or does not answer, all wait for it, longer and longer. Where it refuses
one notification (any other status), that one is put off and the others go on, each incident's in its order.
"""

from __future__ import annotations

import contextlib
import logging
import pwd
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from laggard.collector.incidents.notice import Notice
from laggard.collector.incidents.outbox import Outbox
from laggard.collector.settings import CollectorSettings
from laggard.collector.webhook.body import JSON, json_body, text_body
from laggard.collector.webhook.receiver import Receiver, receiver_of
from laggard.collector.webhook.signature import signed
from laggard.errors import UsageError
from laggard.http.client import NoResponse, deliver
from laggard.http.tls import outside_context

log = logging.getLogger("laggard.collector")

TIMEOUT_SECONDS: Final = 10.0
"""The longest time for one try."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 300.0
"""The pause after a failed try, which doubles with each further one."""

MAX_AGE_SECONDS: Final = 86400.0
"""The age from which on a notification is given up."""

LONGEST_ASKED_SECONDS: Final = 3600.0
"""The longest pause that a receiver may ask for (Retry-After)."""

TELL_SECONDS: Final = 300.0
"""The least time between two lines in the log that say why nothing arrives."""

SENT: Final = "sent"
FAILED: Final = "failed"
REFUSED: Final = "refused"

_LATER: Final = frozenset((408, 425, 429))
"""Statuses below 500 that mean: not now."""


class Refused(Exception):
    """The receiver took a look at this notification, and does not want it."""


class NotNow(Exception):
    """It cannot take any now. `seconds`: how long it asks to be left alone; None where it does not say."""

    def __init__(self, text: str, seconds: float | None = None) -> None:
        super().__init__(text)
        self.seconds = seconds


class WebhookSender:
    """`tries` counts what became of each: `sent`, `failed` (the receiver was away, or said: not now) or `refused`."""

    def __init__(
        self, settings: CollectorSettings, outbox: Outbox, tries: Counter[str], first_pause: float = FIRST_PAUSE_SECONDS
    ) -> None:
        self._settings, self._outbox, self._tries = settings, outbox, tries
        self._first_pause = first_pause
        self._tries.update({SENT: 0, FAILED: 0, REFUSED: 0})
        self._failures = 0
        self._told_at = float("-inf")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends it soon; a try that is under way is left to its time limit. What was not sent stays in the file."""
        self._stopped.set()
        self._outbox.arrived.set()
        self._thread.join(0.5)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                pause = self.step(time.monotonic(), time.time())
            except Exception:  # one failed notification must not be the last
                log.exception("a defect in laggard: a notification was not sent")
                pause = LONGEST_PAUSE_SECONDS
            if pause is None:
                self._outbox.arrived.wait()
            elif pause > 0 and self._failures:
                self._stopped.wait(pause)
            elif pause > 0:
                self._outbox.arrived.wait(pause)

    def step(self, now: float, wall: float) -> float | None:
        """Sends one notification. Returns the seconds until the next may be; None: until there is one. `now`: monotonic
        seconds."""
        self._outbox.arrived.clear()
        found = self._outbox.next(now)
        if found is None:
            due = self._outbox.due_at()
            return None if due is None else max(0.0, due - now)
        notice, tries = found
        if wall - notice.at > MAX_AGE_SECONDS:
            log.error("notification %s of an incident is lost: it was not taken within a day", notice.id)
            self._outbox.give_up(notice)
            return 0.0
        try:
            self._send(notice, wall)
        except Refused as error:
            self._note(REFUSED, error)
            self._outbox.put_off(notice, time.monotonic() + self._pause(tries))
            self._failures = 0
            return 0.0
        except (NotNow, NoResponse, UsageError) as error:
            self._note(FAILED, error)
            pause = max(self._pause(self._failures), getattr(error, "seconds", None) or 0.0)
            self._failures += 1
            return pause
        self._tries[SENT] += 1
        self._failures, self._told_at = 0, float("-inf")
        self._outbox.sent(notice)
        return 0.0

    def _send(self, notice: Notice, wall: float) -> None:
        """Raises Refused, NotNow, NoResponse and UsageError."""
        receiver = receiver_of(self._settings)
        if receiver is None:
            raise NotNow("webhook_url_file is empty")
        body = body_of(receiver, notice)
        headers = {"Content-Type": "application/json", **signed(receiver.key, notice.id, int(wall), body)}
        answer = deliver(receiver.url, body, headers, TIMEOUT_SECONDS, outside_context())
        if 200 <= answer.status < 300:
            return
        if answer.status >= 500 or answer.status in _LATER:
            raise NotNow(f"HTTP {answer.status}", asked_seconds(answer.headers.get("retry-after", "")))
        more = ", and redirects are not followed" if 300 <= answer.status < 400 else ""
        raise Refused(f"HTTP {answer.status}{more}")

    def _pause(self, failures: int) -> float:
        """Twice as long each time, and by chance up to a fifth shorter, so that collectors do not come together."""
        pause = min(LONGEST_PAUSE_SECONDS, self._first_pause * 2.0 ** min(failures, 16))
        return pause * random.uniform(0.8, 1.0)

    def _note(self, outcome: str, error: Exception) -> None:
        """Counts a failure, and tells the first one and then one each while in the log."""
        self._tries[outcome] += 1
        now = time.monotonic()
        if now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            log.warning("a notification was not taken by the webhook, and is sent again: %s", error)


def body_of(receiver: Receiver, notice: Notice) -> bytes:
    user = _user(notice.incident.owner)
    return json_body(notice, user) if receiver.form == JSON else text_body(notice, user)


def asked_seconds(text: str) -> float | None:
    """Retry-After in seconds, bounded; None for a date or anything else."""
    return min(float(text), LONGEST_ASKED_SECONDS) if text.isascii() and text.isdecimal() and len(text) < 9 else None


def _user(owner: int) -> str:
    """The user's name by this machine's database, which may be slow: this thread alone waits for it."""
    try:
        return pwd.getpwuid(owner).pw_name
    except (KeyError, OverflowError):
        return ""


@contextlib.contextmanager
def notifying(settings: CollectorSettings, outbox: Outbox, tries: Counter[str]) -> Iterator[None]:
    """Sends what comes into `outbox` while it lasts; nothing where the settings name no receiver."""
    receiver = receiver_of(settings)
    if receiver is None:
        yield
        return
    log.info("incidents are told to %s", receiver.place)
    sender = WebhookSender(settings, outbox, tries)
    sender.start()
    try:
        yield
    finally:
        sender.stop()
