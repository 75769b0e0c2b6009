"""What the command needs of the place that a verdict comes from: a recording, a collector or Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from laggard.model import Location
from laggard.terminal.parts import Line

if TYPE_CHECKING:
    from laggard.collector.web.kept_page import KeptPage
    from laggard.recommend.advice.values import Item


class Source(Protocol):
    """A verdict, and what else its place tells of the job."""

    @property
    def location(self) -> Location: ...

    @property
    def recommend_words(self) -> Sequence[str] | None:
        """The words after `laggard recommend` that ask the same place what to change; None: it can't be asked."""

    def name_before(self) -> str:
        """The job's name, to be put before the answer where a reader could take it for another job's; else empty."""

    def changes(self) -> Sequence[Item]:
        """The items of the recommendation, the first to be done first."""

    def job_lines(self) -> Iterator[Line]:
        """Lines that say which job that is, and which others there are."""

    def page(self) -> KeptPage:
        """The answer as one page that loads nothing. Raises UsageError."""
