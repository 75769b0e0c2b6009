"""The verdict of a running collector, what it holds of the job, and the digests of runs that it keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.collector.job_words import OTHER_VERSION, ask_for, job_text, known_jobs, other_jobs, short_text
from laggard.collector.locate_command.page import page_of_collector, recommendation_of_collector
from laggard.collector.web.documents import JobLine
from laggard.collector.web.page_html import KeptPage
from laggard.kit.collector_client import answer
from laggard.kit.errors import UsageError
from laggard.kit.parts import Line
from laggard.kit.users import by_uid
from laggard.model import JobKey, Location
from laggard.wire.digest import Digest

if TYPE_CHECKING:
    from laggard.recommend.advice.values import Item


class CollectorSource:
    """A Source: the collector at `url`. `asked`: the job as the user named it; None: the collector chose one."""

    def __init__(self, url: str, asked: str | None, location: Location) -> None:
        self._url = url
        self._asked = asked
        self.location = location
        self._known: Mapping[JobKey, JobLine] | None = None

    @property
    def recommend_words(self) -> Sequence[str]:
        return ["--collector", self._url, *(["--job", self._asked] if self._asked else [])]

    @property
    def _job(self) -> str | None:
        """The job as the collector knows it, whoever chose it."""
        location = self.location
        chosen = location.job_id if location.owner is None else f"{location.owner}:{location.job_id}"
        return by_uid(self._asked) or chosen

    @property
    def _key(self) -> JobKey | None:
        owner = self.location.owner
        return None if owner is None else JobKey(owner, str(self.location.job_id))

    def _known_jobs(self) -> Mapping[JobKey, JobLine]:
        if self._known is None:
            self._known = {} if self._key is None else known_jobs(self._url)
        return self._known

    def name_before(self) -> str:
        """A reader could take the answer for another job's where the collector chose among several, and where the job
        has ended."""
        ended = any(note.kind == "ended" for note in self.location.notes)
        known = self._known_jobs()
        if self._asked or self._key is None or (len(known) < 2 and not ended):
            return ""
        name = short_text(self.location.job_id, self._key.owner, known.get(self._key))
        return f"Job {name}{', ended' if ended else ''}: "

    def changes(self) -> Sequence[Item]:
        try:
            return recommendation_of_collector(self._url, self._job).items
        except UsageError:  # it gave the verdict, and has no recommendations, or has gone meanwhile
            return ()

    def job_lines(self) -> Iterator[Line]:
        key, known = self._key, self._known_jobs()
        if key is None:
            return
        yield Line(f"  Job {job_text(self.location.job_id, key.owner, known.get(key))}", "aside")
        if not self._asked:
            yield from (Line(f"{'    ' if place else '  '}{text}") for place, text in enumerate(other_jobs(known, key)))

    def page(self) -> KeptPage:
        return page_of_collector(self._url, self.location, self._job)

    def record(self, directory: str) -> None:
        """Writes DIRECTORY/job.jsonl, which `locate --trace DIRECTORY` judges as the collector does. Nothing is
        overwritten: raises UsageError where the file is there already."""
        path = Path(directory) / "job.jsonl"
        with answer(self._url, "recording", _fresh(self._job)) as found:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "xb") as file:
                    for part in found.iter_bytes():
                        file.write(part)
            except FileExistsError:
                raise UsageError(f"{path} is there already: give --record another directory") from None
            except OSError as error:
                raise UsageError(f"cannot write {path}: {error.strerror}") from None


def ask(url: str, job: str | None) -> CollectorSource:
    """Asks for the verdict on `job`; None: on the one that loses most, else the latest. Raises UsageError where no
    collector answers at `url`."""
    return CollectorSource(url, job, ask_for(url, "location", _fresh(by_uid(job)), Location))


def _fresh(job: str | None) -> dict[str, str]:
    """The query for what is fresh, not up to 5 s old as of the last round."""
    return {"fresh": "1", **({"job": job} if job else {})}


def digest_now(url: str, job: str | None) -> tuple[Digest, Location]:
    """The digest of what the collector at `url` holds of a job, and its verdict. Raises UsageError."""
    source = ask(url, job)
    return _digest(url, job, "now"), source.location


def digest_kept(url: str, job: str | None, run: str) -> Digest:
    """`run`: last, first or incident:ID. Raises UsageError."""
    return _digest(url, job, run)


def _digest(url: str, job: str | None, run: str) -> Digest:
    asked, (kind, _, number) = by_uid(job), run.partition(":")
    query = {"run": kind, **({"incident": number} if number else {}), **({"job": asked} if asked else {})}
    return ask_for(url, "digest", query, Digest, OTHER_VERSION)
