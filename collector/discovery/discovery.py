"""The discovery of agents: those that the settings list, and those that files, names in DNS and SLURM tell of, asked
again and again."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from laggard.collector.discovery.label_file import LabelFile, LabelRules
from laggard.collector.discovery.source import Place, Source
from laggard.collector.node_labels import NodeLabels
from laggard.collector.scrape.targets import Target
from laggard.model import Note
from laggard.text.words import counted

log = logging.getLogger("laggard.collector")

_KIND: Final = "discovery"


class Found(NamedTuple):
    """The agents to scrape, each once, and notes on the places that could not tell, or told too much. `labels`: those
    that places give, and `rules` those of the file, which come first."""

    targets: tuple[Target, ...]
    notes: tuple[Note, ...] = ()
    labels: Mapping[Target, NodeLabels] = {}
    rules: LabelRules = LabelRules()

    def labels_of(self, target: Target, node: str) -> NodeLabels:
        """The labels of the node, which has this name, and that of its agent's address."""
        host = urlsplit(target.url).hostname or ""
        return self.rules.of((node, host)).over(self.labels.get(target, NodeLabels()))


class Discovery:
    """`found` is replaced as a whole by each look. A thread of its own looks: a resolver may take half a minute to say
    that it does not know, and neither a scrape nor the end of the process waits for it."""

    def __init__(
        self,
        listed: Sequence[Target],
        places: Sequence[Place] = (),
        max_targets: int = 1 << 14,
        keep_seconds: float = 900.0,
        label_file: LabelFile | None = None,
    ) -> None:
        self._listed = tuple(listed)
        self._sources = [Source(place, keep_seconds) for place in places]
        self._max_targets = max_targets
        self._label_file = label_file
        self._known: tuple[Found, dict[tuple[Target, str], NodeLabels]] | None = None
        self._looked = threading.Event()
        self.found = self._all()

    def start(self, interval_seconds: float) -> None:
        """Looks now and every `interval_seconds`, until the process ends; there is nothing to do without places
        and a file."""
        if self._sources or self._label_file:
            threading.Thread(
                target=self._look_for_ever, args=(interval_seconds,), name="discovery", daemon=True
            ).start()
        else:
            self._looked.set()

    def wait(self, seconds: float) -> None:
        """Returns when the first look is over, or after so many seconds."""
        self._looked.wait(seconds)

    def look(self, now: float) -> None:
        """Asks every place, at `now` in monotonic seconds. May take seconds."""
        before = self.found
        for source in self._sources:
            source.look(now)
        if self._label_file:
            self._label_file.look()
        self.found = self._all()
        _log_changes(before, self.found)

    def labels(self, nodes: Iterable[tuple[Target, str]]) -> dict[str, NodeLabels]:
        """The labels of these agents' nodes by the agents' URLs; `nodes` have their names. A name is compared with the
        file's patterns once for each look that changed something: 16,384 nodes and 256 patterns take 2.6 s of CPU."""
        found, held = self._held_labels()
        wanted = {key: held.get(key) or found.labels_of(*key) for key in nodes}
        self._known = found, wanted
        return {target.url: labels for (target, _), labels in wanted.items()}

    def _held_labels(self) -> tuple[Found, dict[tuple[Target, str], NodeLabels]]:
        found, known = self.found, self._known
        same = known is not None and known[0].rules is found.rules and known[0].labels == found.labels
        return found, known[1] if known is not None and same else {}

    def _look_for_ever(self, interval_seconds: float) -> None:
        pause = threading.Event()  # sleep() has been seen to fail while a clock was set, and would end all looks
        while True:
            try:
                self.look(time.monotonic())
            except Exception:  # one failed look must not be the last
                log.exception("a defect in laggard: this look for agents was lost")
            self._looked.set()
            pause.wait(interval_seconds)

    def _all(self) -> Found:
        answers = [source.answer for source in self._sources]
        targets = dict.fromkeys(itertools.chain(self._listed, *(answer.targets for answer in answers)))
        notes = [answer.note for answer in answers if answer.note]
        if len(targets) > self._max_targets:
            notes.append(f"{len(targets)} agents are known: only {self._max_targets} are scraped (max_targets)")
        kept = tuple(itertools.islice(targets, self._max_targets))
        told = [f"looking for agents: {note}" for note in notes]
        told += [f"node_labels_file: {self._label_file.note}"] if self._label_file and self._label_file.note else []
        labels: dict[Target, NodeLabels] = {}
        for target, given in itertools.chain.from_iterable(answer.labels.items() for answer in answers):
            labels[target] = labels.get(target, NodeLabels()).over(given)
        rules = self._label_file.rules if self._label_file else LabelRules()
        return Found(kept, tuple(Note(_KIND, text) for text in told), labels, rules)


def _log_changes(before: Found, after: Found) -> None:
    """One line where agents came or went, and one with what is wrong, which the log itself lets pass once a minute."""
    come, gone = set(after.targets) - set(before.targets), set(before.targets) - set(after.targets)
    if come or gone:
        log.info("%s to scrape: %d more, %d fewer", counted(len(after.targets), "agent"), len(come), len(gone))
    if after.notes:
        log.warning("%s", "; ".join(note.text for note in after.notes))
