"""The verdict by Prometheus' counters."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from laggard.collector.job_words import job_text
from laggard.collector.locate_command.page import page_of_counters
from laggard.collector.prometheus.client import Login, Prometheus
from laggard.collector.prometheus.verdict import locate_by_counters
from laggard.collector.web.page_html import KeptPage
from laggard.kit.parts import Line
from laggard.kit.users import by_uid
from laggard.kit.words import moment_of
from laggard.model import Location
from laggard.wire.job_words import ended_job_prefix

if TYPE_CHECKING:
    from laggard.recommend.advice.values import Item


class PrometheusSource:
    """A Source: the Prometheus at `url`, which knows no steps and no configuration."""

    recommend_words: Sequence[str] | None = None

    def __init__(self, url: str, asked: str | None, location: Location) -> None:
        self._url = url
        self._asked = asked
        self.location = location

    def name_before(self) -> str:
        return "" if self._asked else ended_job_prefix(self.location)

    def changes(self) -> Sequence[Item]:
        return ()

    def job_lines(self) -> Iterator[Line]:
        if self.location.owner is not None:
            yield Line(f"  Job {job_text(self.location.job_id, self.location.owner, None)}", "aside")

    def page(self) -> KeptPage:
        return page_of_counters(self.location, self._url)


class Asked(NamedTuple):
    """What the flags that go with --prometheus say. `at`: None: now. `cluster`: None: any."""

    at: str | None
    bearer_token_file: str | None
    basic_auth_file: str | None
    headers_file: str | None
    cluster: str | None


def ask(url: str, job: str | None, asked: Asked) -> PrometheusSource:
    """Judges `job` at that moment; None: the job that progressed last. Raises UsageError."""
    moment = None
    if asked.at is not None:
        is_unix = asked.at.replace(".", "", 1).isdecimal()
        moment = float(asked.at) if is_unix else moment_of(asked.at, time.time(), "--at")
    login = Login(asked.bearer_token_file, asked.basic_auth_file, asked.headers_file, "--headers-file")
    prometheus = Prometheus(url, login, asked.cluster or "")
    try:
        return PrometheusSource(url, job, locate_by_counters(prometheus, by_uid(job), moment))
    finally:
        prometheus.close()
