"""The collector's answer about this job, told to the tool that the training reports to: W&B, MLflow, TensorBoard.

A thread asks the collector, which LAGGARD_COLLECTOR names, now and then, and tells the tools what is new. The training
itself waits for neither. What is asked for is public to whoever may see the job, and nothing is sent but its name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from laggard.kit.address import as_url
from laggard.kit.constants import COLLECTOR_PORT
from laggard.kit.environment import ENV_COLLECTOR, job_id
from laggard.kit.errors import UsageError
from laggard.trainer_hooks.attach import current_session, is_disabled
from laggard.trainer_hooks.record.event_log import PeriodicThread, uneven

log = logging.getLogger("laggard")

ASK_SECONDS: Final = 30.0
"""The time between two questions, half as much or half as much again; a collector asks its agents every few seconds."""

ANSWER_SECONDS: Final = 5.0
MAX_TEXT: Final = 400
KEY: Final = "laggard/culprit"
TAG: Final = "laggard.culprit"
"""MLflow's names of tags have no slash in some stores, and a dot in all."""

NO_LONGER: Final = "Nobody makes the others wait any more."

Tell = Callable[[str, int], None]
"""Gets the line, and the step that the training is in."""


def tell_culprit(*tools: Any) -> bool:
    """Has the line about the job's culprit told to the tools, once there is one and whenever it changes: a run of W&B
    (its summary), a SummaryWriter of TensorBoard (a text), a run of MLflow (a tag). One rank of the job is enough.
    Returns whether it will be; False where LAGGARD_COLLECTOR is not set, or none is such a tool. Never raises."""
    try:
        told = [tell for tool in tools if (tell := _tell_of(tool)) is not None]
        url = os.environ.get(ENV_COLLECTOR, "")
        if not told or not url or is_disabled():
            return False
        watch = CulpritWatch(as_url(url, COLLECTOR_PORT), job_id(os.environ), told)
        watch.pause_around_forks()
        watch.start()
    except UsageError as error:
        log.warning("laggard: the culprit is told to no tool: %s: %s", ENV_COLLECTOR, error)
        return False
    except Exception as error:  # whatever it is, the training goes on
        log.warning("laggard: the culprit is told to no tool: %s", type(error).__name__)
        return False
    return True


def running_tools() -> list[Any]:
    """The runs that W&B and MLflow have in this thread, where the script has imported them. Imports nothing."""
    found = []
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    with contextlib.suppress(Exception):  # theirs, of whatever version
        if wandb is not None and wandb.run is not None:
            found.append(wandb.run)
    with contextlib.suppress(Exception):
        if mlflow is not None and (run := mlflow.active_run()) is not None:
            found.append(run)
    return found


class CulpritWatch(PeriodicThread):
    """Asks the collector at `url` about the job of that name, and tells `told`."""

    def __init__(self, url: str, job: str, told: list[Tell]) -> None:
        from urllib.parse import quote  # here and below: most trainings ask nobody

        super().__init__(self._look)
        self._addresses = [
            f"{url.rstrip('/')}/api/v1/summary?limit=0&job={quote(name, safe='')}"
            for name in (f"{os.geteuid()}:{job}", job)  # in a container this user may have another number
        ]
        self._told = told
        self._last = ""

    def _look(self) -> None:
        with contextlib.suppress(Exception):  # no answer now: again later
            line = self._line()
            if line is None or line == self._last or (not line and not self._last):
                return
            self._last = line
            session = current_session()
            for tell in self._told:
                with contextlib.suppress(Exception):  # a tool's own fault hides nothing from the others
                    tell(line or NO_LONGER, session.recorder.step if session else 0)

    def _line(self) -> str | None:
        from laggard.kit.http_client import NoResponse, get

        for address in self._addresses:
            with contextlib.suppress(NoResponse):
                return line_of(json.loads(get(address, ANSWER_SECONDS).body))
        return None

    def _act_last(self) -> None:
        """Nothing: stop() comes before a fork, too."""

    def _interval_seconds(self) -> float:
        """Never in step with other jobs."""
        return ASK_SECONDS * uneven()


def line_of(summary: Mapping[str, Any]) -> str:
    """The answer of a `laggard.summary/1` that has a culprit, with its place in the code; empty: nobody is one."""
    culprits = summary["location"]["culprits"]
    if not culprits:
        return ""
    stack = culprits[0].get("stack") or {}
    where = f" In the code: {stack['text']}." if stack.get("text") else ""
    text = f"{summary['sentence']}{where}"
    return "".join(each if each.isprintable() else "?" for each in text)[:MAX_TEXT]


def _tell_of(tool: Any) -> Tell | None:
    """How that tool is told; None where it is none that is known."""
    if callable(getattr(tool, "add_text", None)):  # torch's SummaryWriter, tensorboardX's
        # Indented by four: the text is shown as it is, not as Markdown.
        return lambda line, step: tool.add_text(KEY, f"    {line}", step)
    if hasattr(tool, "summary") and callable(getattr(tool, "log", None)):  # wandb.run; to log would count a step
        return lambda line, _: tool.summary.update({KEY: line})
    run_id = getattr(getattr(tool, "info", None), "run_id", None)
    if isinstance(run_id, str):  # mlflow.active_run()
        return lambda line, _: _set_tag(run_id, line)
    return None


def _set_tag(run_id: str, line: str) -> None:
    """By MLflow's client: what mlflow.set_tag() takes for the active run is another one in each thread."""
    from mlflow import MlflowClient

    MlflowClient().set_tag(run_id, TAG, line)
