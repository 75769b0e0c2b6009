"""The controller: reads the collector's view of the nodes, and writes it to them as condition and, if asked, taint."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from laggard.kubernetes.api_server import ApiError, ApiServer
from laggard.kubernetes.conditions import Conditions
from laggard.kubernetes.events import Events
from laggard.kubernetes.exchange import Exchange
from laggard.kubernetes.judge import FALSE, judge, misnamed, misnamed_line, summary
from laggard.kubernetes.settings import ControllerSettings
from laggard.kubernetes.streaks import Streaks
from laggard.kubernetes.taints import Taints
from laggard.kubernetes.view import CollectorError, read_view

log = logging.getLogger("laggard.kubernetes")


class Round(NamedTuple):
    """The outcome of a round. `completed_at`: when one was last completed, Unix time; 0: none was. `misnamed`: agents
    whose node's name no node has. `failure`: why this one was not completed; empty: it was. `seconds`: how long the
    last completed one took; None: none was."""

    completed_at: float = 0.0
    unhealthy: int = 0
    tainted: int = 0
    held_back: str = ""
    misnamed: int = 0
    failure: str = ""
    seconds: float | None = None


class Controller:
    """`last` is replaced as a whole after each round."""

    def __init__(self, api: ApiServer, exchange: Exchange, settings: ControllerSettings) -> None:
        self.last = Round()
        self._api = api
        self._exchange = exchange
        self._settings = settings
        self._streaks = Streaks()
        self._events = Events(api, settings.events)
        self._conditions = Conditions(api, self._events, self._streaks, settings.unknown_seconds)
        self._taints = Taints(api, self._events, self._streaks, settings)
        self._said = ("", "")

    def round(self, now: float) -> None:
        """One round, at `now` in monotonic seconds. Never raises for what API server or collector do."""
        try:
            began = time.monotonic()
            nodes = self._api.nodes()
            view = read_view(self._exchange, self._settings.collector)
        except (ApiError, CollectorError) as error:
            # What is on the nodes stays: that nothing is known now says nothing about them.
            log.error("%s", error)
            self.last = self.last._replace(failure=str(error))
            return
        watched = {node.name: node for node in nodes if not node.opted_out}
        left_alone = [node for node in nodes if node.opted_out]
        health = judge(watched.values(), view)
        strangers = misnamed(nodes, view)
        self._tell(summary(health), misnamed_line(strangers) if strangers else "")
        self._streaks.update({name: found.status for name, found in health.items()}, now)
        # Taints first: they hold for the version of the node that was read, and a condition makes a new one.
        failures = [*self._taints.remove(left_alone), *self._taints.write(watched, health, now)]
        failures += [*self._conditions.remove(left_alone), *self._conditions.write(watched.values(), health, now)]
        self._events.send(now)
        self.last = Round(
            completed_at=self.last.completed_at if failures else time.time(),
            unhealthy=sum(found.status == FALSE for found in health.values()),
            tainted=sum(node.taint is not None for node in nodes),
            held_back=self._taints.held_back,
            misnamed=len(strangers),
            failure=failures[0] if failures else "",
            seconds=self.last.seconds if failures else time.monotonic() - began,
        )

    def _tell(self, nodes: str, strangers: str) -> None:
        """Logs how the nodes are, and which agents have a wrong name: at the first round, and when it is news."""
        before, self._said = self._said, (nodes, strangers)
        if nodes != before[0]:
            log.info("%s", nodes)
        if strangers and strangers != before[1]:
            log.warning("%s", strangers)
