"""Notifications of incidents, sent to a real HTTP server in a process of its own: signed, in order, tried again,
bounded, and neither lost nor made twice by a restart."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import hmac
import http.server
import json
import os
import re
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.certificates import Files
from support.paths import REPOSITORY
from support.ports import free_port
from support.webhook_receiver import receiver

from laggard.collector.incidents import outbox as outboxes
from laggard.collector.incidents.history import HistorySettings, IncidentHistory
from laggard.collector.incidents.notice import CHANGE_SECONDS, NoticeMaker
from laggard.collector.incidents.tracker import Moment
from laggard.collector.jobs.job import JobKey
from laggard.collector.jobs.snapshot import JobSnapshot, unknown_location
from laggard.collector.settings import CollectorSettings
from laggard.collector.webhook import sender as sending
from laggard.collector.webhook.body import Notification, without_markup
from laggard.collector.webhook.receiver import receiver_of
from laggard.collector.webhook.sender import MAX_AGE_SECONDS, WebhookSender, asked_seconds
from laggard.collector.webhook.signature import key_of
from laggard.errors import UsageError
from laggard.http.client import NoResponse, deliver
from laggard.http.tls import outside_context
from laggard.locate.job_timings import build_timings
from laggard.model import Culprit, Verdict
from laggard.wire import decode

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


def job(*ranks: int, name: str = "train", owner: int = 1000, running: bool = True, **changes: Any) -> JobSnapshot:
    """A job in which these ranks are slow."""
    culprits = tuple(
        Culprit("slow_compute", (rank,), **{"node": "n1", "phase": "forward", "advice": "look there", **changes})
        for rank in ranks
    )
    verdict = Verdict.FAIL if ranks else Verdict.OK
    location = structs.replace(unknown_location("", "", name), verdict=verdict, culprits=culprits, notes=())
    timings = build_timings(name, 4, {}, {}, {})
    return JobSnapshot(JobKey(owner, name), running, timings, location, progressed_at=time.time(), script="train.py")


@dataclasses.dataclass
class Clock:
    at: float = 0.0
    began: float = dataclasses.field(default_factory=time.time)

    def __call__(self) -> Moment:
        return Moment(self.began + self.at, 50.0 + self.at)


@dataclasses.dataclass
class Collector:
    """The parts of a collector that tell of incidents. `clock` goes on when it is told to."""

    folder: Path
    url: str
    clock: Clock = dataclasses.field(default_factory=Clock)
    form: str = "json"
    database: str = "incidents.sqlite"
    pause: float = 0.02
    tries: Counter[str] = dataclasses.field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name, text in (("url", self.url), ("secret", SECRET)):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o600)
        path = str(self.folder / self.database) if self.database else ""
        self.history = IncidentHistory(HistorySettings(path, 1 << 22, 1e6, 300.0, notify=True), self.clock)
        self.settings = CollectorSettings(
            webhook_url_file=str(self.folder / "url"),
            webhook_secret_file=str(self.folder / "secret"),
            webhook_format=self.form,
        )
        self.sender = WebhookSender(self.settings, self.history.outbox, self.tries, self.pause)

    def start(self) -> Collector:
        self.history.start()
        self.sender.start()
        return self

    def observe(self, *jobs: JobSnapshot, rounds: int = 2, seconds: float = 5.0) -> None:
        for _ in range(rounds):
            self.clock.at += seconds
            self.history.observe(jobs)

    def stop(self) -> None:
        self.sender.stop()
        self.history.close()

    def kill(self) -> None:
        """Ends it as a collector that was killed ends: nothing more is sent or written."""
        self.sender.stop()
        database = self.history._database
        if database is not None:
            os.close(database.engine.lock)  # the kernel's part
            database.engine.lock = os.open(os.devnull, os.O_RDONLY)


@contextlib.contextmanager
def collector(folder: Path, url: str, **changes: Any) -> Iterator[Collector]:
    made = Collector(folder, url, **changes).start()
    try:
        yield made
    finally:
        made.stop()


def checked(request: dict[str, Any]) -> Notification:
    """The notification of a request, of which the signature is right."""
    headers, body = request["headers"], request["body"]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body}".encode()
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert abs(time.time() - int(headers["webhook-timestamp"])) < 600
    found = decode(body.encode(), Notification)
    assert found.id == headers["webhook-id"] and request["path"] == "/hooks/a-secret"
    return found


def until(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def waiting_in(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM notices").fetchone()[0])


def test_what_opens_changes_and_closes_is_told_signed(tmp_path: Path) -> None:
    with receiver("204") as server, collector(tmp_path, server.url) as made:
        made.observe(job(2))
        made.observe(job(2, phase="backward"))  # the same culprit, in another phase
        until(lambda: made.history.flush(1.0))  # to the clock that jumps now, a disk that writes would seem stuck
        made.observe(job(2), rounds=1, seconds=CHANGE_SECONDS)
        hung = structs.replace(job(2).location.culprits[0], stopped=True)
        other = dataclasses.replace(job(2), location=structs.replace(job(2).location, culprits=(hung,)))
        made.observe(other, seconds=1.0)
        made.observe(job(2, running=False))
        opened, changed, closed = map(checked, server.wait_for(3))
        until(lambda: made.history.flush(1.0) and len(made.history.outbox) == 0)
    assert [it.event for it in (opened, changed, closed)] == ["opened", "changed", "closed"]
    assert len({it.id for it in (opened, changed, closed)}) == 3
    assert opened.verdict is not None and opened.verdict.culprits[0].ranks == (2,)
    assert opened.job.script == "train.py" and opened.job.key == "1000:train"
    assert opened.text.startswith("Incident opened: ") and "What to do: Look there" in opened.text
    assert changed.incident.culprit.stopped and not opened.incident.culprit.stopped
    assert closed.incident.closed_because == "job_ended" and "closed, the job ended" in closed.text
    assert made.tries == {"sent": 3, "failed": 0, "refused": 0}
    assert waiting_in(tmp_path / "incidents.sqlite") == 0


@pytest.mark.parametrize("what", ["hang", "500", "close", "noise", "later", "404", "redirect", "400"])
def test_it_is_sent_until_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(sending, "TIMEOUT_SECONDS", 0.5)
    with receiver(what, what, "202") as server, collector(tmp_path, server.url) as made:
        began = time.monotonic()
        made.observe(job(2))
        assert time.monotonic() - began < 30, "no round waits for the receiver"
        requests = server.wait_for(3)
        until(lambda: made.tries["sent"] == 1)
    assert [it["what"] for it in requests] == [what, what, "202"]
    assert len({checked(it).id for it in requests}) == 1, "the receiver knows it again"
    assert {it["method"] for it in requests} == {"POST"}, "a redirect is not followed"
    refused = what in ("404", "redirect", "400")
    assert made.tries["refused" if refused else "failed"] == 2
    if what == "later":
        assert time.monotonic() - began >= 2.0, "it asked for a second, twice"


@pytest.mark.parametrize("what", ["slow", "open"])
def test_an_answer_counts_as_soon_as_its_head_is_there(tmp_path: Path, what: str) -> None:
    with receiver(what) as server, collector(tmp_path, server.url) as made:
        made.observe(job(2))
        until(lambda: made.tries["sent"] == 1, 30.0)
        assert len(server.wait_for(1)) == 1


def test_one_that_is_refused_does_not_hold_up_others_but_those_of_its_incident(tmp_path: Path) -> None:
    with receiver("400", "204") as server, collector(tmp_path, server.url, pause=2.0) as made:
        made.observe(job(2))
        server.wait_for(1)
        made.observe(job(2, running=False), job(1, name="other"))
        requests = server.wait_for(4)
    told = [(checked(it).job.job_id, checked(it).event) for it in requests]
    assert told[1] == ("other", "opened")
    assert told[0] == ("train", "opened") and told[2:] == [("train", "opened"), ("train", "closed")]


def test_a_collector_that_is_killed_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """The receiver is away at first. The second collector tells what the first left, and what ended unwatched."""
    port = free_port()
    first = Collector(tmp_path, f"http://127.0.0.1:{port}/hooks/a-secret").start()
    first.observe(job(2), job(1, name="other"))
    until(lambda: first.tries["failed"] > 0 and first.history.flush(1.0))
    first.kill()
    assert waiting_in(tmp_path / "incidents.sqlite") == 2
    with receiver("204", port=port) as server:
        second = Collector(tmp_path, server.url, clock=first.clock).start()
        second.observe(job(2))
        opened = [checked(it) for it in server.wait_for(2)]
        until(lambda: second.history.flush(1.0) and waiting_in(tmp_path / "incidents.sqlite") == 0)
        second.kill()
        assert {it.job.job_id for it in opened} == {"train", "other"}
        assert {it.event for it in opened} == {"opened"}
        with collector(tmp_path, server.url, clock=first.clock) as third:
            third.observe(job(2), rounds=3)
            third.observe(job(2), rounds=61)  # nobody reports the other job any more
            closed = checked(server.wait_for(3)[-1])
            third.observe(job(2, running=False))
            last = checked(server.wait_for(4)[-1])
    assert (closed.job.job_id, closed.event, closed.incident.closed_because) == ("other", "closed", "ended_while_down")
    assert (last.job.job_id, last.event) == ("train", "closed"), "it was told once, by the first of three collectors"


def test_one_whose_answer_was_not_written_down_is_sent_again_with_its_id(tmp_path: Path) -> None:
    with receiver("204") as server:
        first = Collector(tmp_path, server.url).start()
        kept = first.history.outbox.sent
        first.history.outbox.sent = lambda notice: None  # type: ignore[method-assign]  # killed at that moment
        first.observe(job(2))
        once = checked(server.wait_for(1)[0])
        assert first.history.flush(10.0) and kept is not None
        first.kill()
        with collector(tmp_path, server.url, clock=first.clock) as second:
            second.observe(job(2))
            again = [checked(it) for it in server.wait_for(2)][-1]
            until(lambda: second.tries["sent"] == 1)
    assert again.id == once.id and again.event == "opened"


def test_without_a_database_it_is_sent_all_the_same(tmp_path: Path) -> None:
    with receiver("204") as server, collector(tmp_path, server.url, database="") as made:
        made.observe(job(2))
        made.observe(job(2, running=False))
        events = [checked(it).event for it in server.wait_for(2)]
        until(lambda: len(made.history.outbox) == 0)
        assert events == ["opened", "closed"] and made.history.outbox.done() == ()


def test_a_database_that_fails_does_not_keep_it(tmp_path: Path) -> None:
    (tmp_path / "incidents.sqlite").write_text("it is not a database " * 1000)
    with receiver("204") as server, collector(tmp_path, server.url) as made:
        made.observe(job(2))
        assert checked(server.wait_for(1)[0]).event == "opened"
        assert made.history.state.state == "failed"


def test_too_many_are_lost_of_the_user_who_has_the_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outboxes, "MAX_WAITING", 4)
    made = Collector(tmp_path, f"http://127.0.0.1:{free_port()}/", pause=600.0).start()
    try:
        made.observe(job(1, name="quiet", owner=7))
        made.observe(*(job(1, name=f"flood-{number}") for number in range(9)), job(1, name="quiet", owner=7))
        until(lambda: made.history.flush(1.0) and made.history.outbox.lost["full"] == 6)
        left = [it.notice.incident.owner for it in made.history.outbox._waiting.values()]
        assert left.count(7) == 1 and len(left) == 4
        assert "are lost" in caplog.text
        until(lambda: waiting_in(tmp_path / "incidents.sqlite") == 4)
    finally:
        made.stop()


def test_what_nobody_takes_for_a_day_is_lost_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Collector(tmp_path, f"http://127.0.0.1:{free_port()}/", database="")
    made.history.start()
    made.observe(job(2))
    assert made.sender.step(100.0, time.time()) not in (None, 0.0)
    assert made.sender.step(200.0, time.time() + MAX_AGE_SECONDS + 60) == 0.0
    assert made.history.outbox.lost == {"full": 0, "too_old": 1} and "is lost" in caplog.text
    assert made.sender.step(300.0, time.time()) is None
    made.history.close()


def test_a_culprit_that_changes_in_every_round_is_told_once_a_minute() -> None:
    numbers = iter(range(1000))
    maker = NoticeMaker(lambda: f"msg_{next(numbers)}")
    history = IncidentHistory(HistorySettings("", 1 << 20, 1.0, 300.0))
    history.start()
    told: list[tuple[float, str]] = []
    for number in range(60):
        kind = ("slow_compute", "slow_input")[number % 2]
        history.observe([job(2, phase=None)] if number < 2 else [_of_kind(kind)])
        wall = 1.79e9 + 5.0 * number
        told += [(wall, it.event) for it in maker.observe(history.open, (), (), wall).made]
    assert told[0][1] == "opened" and 2 <= len(told) <= 6
    assert all(after - before >= CHANGE_SECONDS for (before, _), (after, _) in zip(told, told[1:], strict=False))


def _of_kind(kind: str) -> JobSnapshot:
    found = job(2)
    culprits = (structs.replace(found.location.culprits[0], kind=kind),)
    return dataclasses.replace(found, location=structs.replace(found.location, culprits=culprits))


def test_the_text_mentions_nobody_and_links_to_nothing(tmp_path: Path) -> None:
    name = "<!channel> @all [x](http://evil.example) &"
    with receiver("200") as server, collector(tmp_path, server.url, form="text") as made:
        made.observe(job(2, name=name))
        (request,) = server.wait_for(1)
    body = json.loads(request["body"])
    assert list(body) == ["text"] and body["text"].startswith("Incident opened: rank 2 on n1")
    assert "&lt;!channel&gt;" in body["text"] and "&amp;" in body["text"]
    for markup in ("<", ">", "@all", "](", "://"):
        assert markup not in body["text"]
    assert without_markup("n1 is slow; job 3") == "n1 is slow; job 3"


def test_a_certificate_of_nobody_is_not_accepted(tmp_path: Path) -> None:
    files = Files.make(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.folder / "server.pem", files.folder / "server.key")

    class Taker(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *words: Any) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Taker)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        url = f"https://127.0.0.1:{server.server_address[1]}/"
        with pytest.raises(NoResponse, match="certificate is not accepted"):
            deliver(url, b"{}", {}, 10.0, outside_context({}))
        trusting = outside_context({"LAGGARD_TLS_CA_FILE": str(files.folder / "ca.pem")})
        assert deliver(url, b"{}", {}, 10.0, trusting).status == 204
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_receiver_of_the_docs_checks_the_signature(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "notifications.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(list(filter(None, program.splitlines()))) <= 13
    port = free_port()
    (tmp_path / "webhook-secret").write_text(SECRET + "\n")
    (maker,) = re.findall(r"    python3 -c '(.*)'\n", page)
    assert len(key_of(subprocess.check_output([sys.executable, "-c", maker], text=True).strip())) == 32
    words = [sys.executable, "-c", program.replace("8080", str(port))]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        with collector(tmp_path, f"http://127.0.0.1:{port}/") as made:
            made.observe(job(2))
            line = process.stdout.readline()
            until(lambda: made.tries["sent"] == 1)
        assert line.startswith("msg_") and "Incident opened: rank 2 on n1" in line
        headers = {"webhook-id": "msg_1", "webhook-timestamp": str(int(time.time())), "webhook-signature": "v1,AAAA"}
        answer = deliver(f"http://127.0.0.1:{port}/", b'{"text": "x"}', headers, 10.0, outside_context({}))
        assert answer.status == 401
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"webhook_secret_file": ""}, "webhook_format json is signed"),
        ({"webhook_format": "xml"}, "webhook_format is 'xml': write json or text"),
        ({"webhook_url_file": ""}, "goes with webhook_url_file"),
        ({"webhook_url_file": "/nonexistent/url"}, "cannot be read: No such file"),
    ],
)
def test_wrong_settings_are_told(tmp_path: Path, changes: dict[str, str], text: str) -> None:
    settings = Collector(tmp_path, "http://h/").settings
    with pytest.raises(UsageError, match=re.escape(text)):
        receiver_of(structs.replace(settings, **changes))


@pytest.mark.parametrize("url", ["ftp://h/", "http:///x", "http://a:b@h/", "http://h/ x", "http://h:99999/", "nothing"])
def test_a_url_that_is_none_is_told_without_the_url(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="holds no URL") as raised:
        receiver_of(Collector(tmp_path, url).settings)
    assert url not in str(raised.value)


@pytest.mark.parametrize("secret", ["", "hunter2", "whsec_AAAA", "whsec_!!!!"])
def test_a_secret_that_is_none_is_told_without_the_secret(tmp_path: Path, secret: str) -> None:
    settings = Collector(tmp_path, "https://hooks.example/T0/B0/xyz").settings
    (tmp_path / "secret").write_text(secret)
    with pytest.raises(UsageError) as raised:
        receiver_of(settings)
    assert "webhook_secret_file" in str(raised.value) and (not secret or secret not in str(raised.value))
    (tmp_path / "secret").write_text(SECRET)
    found = receiver_of(settings)
    assert found is not None and found.place == "https://hooks.example"
    (tmp_path / "url").chmod(0o644)
    tmp_path.chmod(0o755)


@pytest.mark.parametrize(("text", "seconds"), [("7", 7.0), ("999999", 3600.0), ("", None), ("-1", None), ("Fri", None)])
def test_a_pause_that_is_asked_for_is_bounded(text: str, seconds: float | None) -> None:
    assert asked_seconds(text) == seconds
