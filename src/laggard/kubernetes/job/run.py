"""One command, run as a Job from its beginning to its end: what it printed, and its exit status. The Job is removed
whatever happens; where this process is killed, Kubernetes ends it at its deadline and removes it after that."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol, TextIO

from laggard.kubernetes.job.kubectl import KubectlError
from laggard.kubernetes.job.state import State, failed_pod, in_order, state_of

POLL_SECONDS: Final = 1.0

AWAY_SECONDS: Final = 60.0
"""The time for which the API server may be away while a Job runs."""

FAILED: Final = 1
_LAST_LINES: Final = 30


class Cluster(Protocol):
    """Kubectl, as far as it is needed here."""

    def create(self, job: Mapping[str, Any]) -> None: ...
    def job(self, name: str) -> dict[str, Any]: ...
    def pods(self, name: str) -> list[dict[str, Any]]: ...
    def log(self, pod: str, container: str) -> str: ...
    def delete(self, name: str) -> None: ...


class Ended(NamedTuple):
    state: State
    pods: list[dict[str, Any]]


def run_job(cluster: Cluster, job: Mapping[str, Any], start_seconds: float, out: TextIO, errors: TextIO) -> int:
    """Returns the command's exit status. `start_seconds`: the longest time until all pods run."""
    container = str(job["spec"]["template"]["spec"]["containers"][0]["name"])
    name = str(job["metadata"]["name"])
    try:
        cluster.create(job)
        ended = _ended(cluster, name, start_seconds)
        return _told(cluster, ended, container, out, errors)
    except KubectlError as error:
        print(f"laggard: job {name}: {error}", file=errors)
        return FAILED
    finally:
        _remove(cluster, name, errors)


def _ended(cluster: Cluster, name: str, start_seconds: float) -> Ended:
    """Waits until it has ended, or does not begin. Raises KubectlError."""
    began = answered = time.monotonic()
    while True:
        try:
            job, pods = cluster.job(name), cluster.pods(name)
            answered = time.monotonic()
        except KubectlError:
            if time.monotonic() - answered > AWAY_SECONDS:
                raise
            time.sleep(POLL_SECONDS)
            continue
        state = state_of(job, pods)
        if state.status is not None:
            return Ended(state, pods)
        if not state.runs and answered - began > start_seconds:
            why = f"not all of its pods run after {start_seconds:.0f} s: {state.why or 'no reason is given'}"
            return Ended(state._replace(status=FAILED, why=why), [])
        time.sleep(POLL_SECONDS)


def _told(cluster: Cluster, ended: Ended, container: str, out: TextIO, errors: TextIO) -> int:
    """Prints what the first pod printed; where one failed, the reason and its last lines. Returns the exit status.
    Raises KubectlError where there is no log of a command that ended well."""
    assert ended.state.status is not None
    if ended.state.status == 0:
        out.write(cluster.log(in_order(ended.pods)[0]["metadata"]["name"], container))
        return 0
    failed = failed_pod(ended.pods)
    if failed is not None:
        try:
            said = cluster.log(failed["metadata"]["name"], container)
        except KubectlError as error:
            said = f"laggard: {error}"
        print("\n".join(said.splitlines()[-_LAST_LINES:]), file=errors)
    print(f"laggard: {ended.state.why}", file=errors)
    return ended.state.status


def _remove(cluster: Cluster, name: str, errors: TextIO) -> None:
    try:
        cluster.delete(name)
    except KubectlError as error:
        print(f"laggard: job {name} is left: {error}", file=errors)
