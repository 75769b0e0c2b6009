"""A campaign's trials in SQLite, as an optuna study that its dashboard can read.

One tuner holds a study at a time, by a lock on FILE.lock, which the kernel gives back when the tuner dies. A trial is
in the database as running while it runs; where the tuner was killed it is marked as lost, and is measured again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from laggard.kit.errors import UsageError
from laggard.tune.board import distributions_of
from laggard.tune.plan import Configuration, Outcome, Proposal, Space, Status, Value, fingerprint, key

_SPACE: Final = "laggard:space"
_CAMPAIGN: Final = "laggard:campaign"
_OUTCOME: Final = "laggard:outcome"
_PHASE: Final = "laggard:phase"


class Kept(NamedTuple):
    """One trial that was measured."""

    number: int
    configuration: dict[str, Value]
    phase: str
    outcome: Outcome


class Study:
    """The trials of one campaign in one file. A context: outside of it the file belongs to nobody."""

    def __init__(self, path: Path, name: str, space: Space) -> None:
        """Opens the study or makes it. Raises UsageError where another tuner has it, where it is of another space, and
        for a file that is no study."""
        self.path, self._space = path, space
        self._lock = _lock(path)
        try:
            with _one_line(path):
                self._study = _open(path, name)
            self._check_space()
            self._unused = self._read()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Study:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):
            self._study._storage.remove_session()
        os.close(self._lock)

    @property
    def campaign(self) -> dict[str, Any]:
        """The settings that the campaign was started with."""
        found = self._study.user_attrs.get(_CAMPAIGN)
        return dict(found) if isinstance(found, dict) else {}

    def note_campaign(self, campaign: Mapping[str, Any]) -> None:
        with _one_line(self.path):
            self._study.set_user_attr(_CAMPAIGN, dict(campaign))

    def kept(self, configuration: Configuration) -> Outcome | None:
        """Returns the next outcome of a configuration that an earlier run of the campaign measured; None: no more."""
        queue = self._unused.get(key(configuration))
        return queue.popleft() if queue else None

    @contextlib.contextmanager
    def trial(self, proposal: Proposal) -> Iterator[_Running]:
        """A trial that is running from here on. Leaving without an outcome marks it as lost."""
        from optuna.trial import TrialState

        with _one_line(self.path):
            self._study.enqueue_trial(dict(proposal.configuration), user_attrs={_PHASE: proposal.phase})
            trial = self._study.ask(distributions_of(self._space))
        running = _Running(trial.number)
        try:
            yield running
        finally:
            outcome = running.outcome or Outcome(Status.LOST)
            with _one_line(self.path):
                trial.set_user_attr(_OUTCOME, _plain(outcome))
                if outcome.seconds is None:
                    self._study.tell(trial, state=TrialState.FAIL)
                else:
                    self._study.tell(trial, outcome.seconds)

    def trials(self) -> list[Kept]:
        """Returns all that was measured, in its order."""
        with _one_line(self.path):
            found = self._study.get_trials(deepcopy=False)
        return [
            Kept(each.number, dict(each.params), str(each.user_attrs.get(_PHASE, "")), _outcome(each.user_attrs))
            for each in found
            if _OUTCOME in each.user_attrs
        ]

    def _check_space(self) -> None:
        own = fingerprint(self._space)
        there = self._study.user_attrs.get(_SPACE)
        if there is None:
            with _one_line(self.path):
                self._study.set_user_attr(_SPACE, own)
        elif there != own:
            raise UsageError(f"{self.path} is a study of other parameters or values: give --study another file")

    def _read(self) -> dict[str, deque[Outcome]]:
        from optuna.trial import TrialState

        with _one_line(self.path):
            for each in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING)):
                self._study.tell(each.number, state=TrialState.FAIL) if each.state is TrialState.RUNNING else None
        queues: dict[str, deque[Outcome]] = defaultdict(deque)
        for kept in self.trials():
            if kept.outcome.status is not Status.LOST:
                queues[key(kept.configuration)].append(kept.outcome)
        return queues


def campaign_of(path: Path) -> dict[str, Any]:
    """Returns what the campaign in a file was started with, and its best configuration. Raises UsageError."""
    import optuna

    if not path.is_file():
        raise UsageError(f"{path} is not there: give --study the file of a campaign")
    with _one_line(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = optuna.storages.RDBStorage(f"sqlite:///{path.absolute()}")
        found = [each.user_attrs.get(_CAMPAIGN) for each in optuna.get_all_study_summaries(storage)]
        storage.remove_session()
    campaigns = [each for each in found if isinstance(each, dict)]
    if not campaigns:
        raise UsageError(f"{path} has no campaign of laggard: give --study the file of one")
    return campaigns[0]


class _Running:
    def __init__(self, number: int) -> None:
        self.number = number
        self.outcome: Outcome | None = None


def _open(path: Path, name: str) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = optuna.storages.RDBStorage(f"sqlite:///{path.absolute()}")
        return optuna.create_study(
            storage=storage,
            study_name=name,
            load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(0),
        )


def _lock(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(f"cannot make the study {path}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise UsageError(f"another tuner has {path}: wait until it ends, or give --study another file") from None
    return lock


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Turns what SQLite and optuna raise into one line that says what to do."""
    from optuna.exceptions import OptunaError, StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (OptunaError, StorageInternalError, SQLAlchemyError, OSError) as error:
        text = f"{error} {error.__cause__ or ''}"
        if "full" in text or "disk I/O error" in text:
            why = "the disk is full: make room and run the same command, which goes on where it stopped"
        elif "not a database" in text or "no such table" in text or "revision" in text:
            why = "it is no study: give --study another file"
        elif "readonly" in text or "unable to open" in text:
            why = "it cannot be written: give --study another file"
        else:
            why = " ".join(str(error).split())[:200]
        raise UsageError(f"cannot use the study {path}: {why}") from None


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {**outcome._asdict(), "status": outcome.status.value, "parts": dict(outcome.parts)}


def _outcome(attributes: Mapping[str, Any]) -> Outcome:
    found = json.loads(json.dumps(attributes[_OUTCOME]))
    return Outcome(**{**found, "status": Status(found["status"])})
