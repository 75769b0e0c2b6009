"""`laggard agent --kubernetes-job`: runs one command as a Job of Kubernetes, by a user's template, as `srun` runs one
as a job of SLURM.

The Job is removed whatever happens; where this process is killed, Kubernetes ends it at its deadline and removes it
after that. kubectl is asked: it knows the user's cluster, and logs in with the user's rights.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final, NamedTuple, TextIO

from laggard.kit.config import read_tree
from laggard.kit.errors import UsageError
from laggard.kit.flags import duration
from laggard.kit.words import printable_line

ASK_SECONDS: Final = 30.0
MAX_LOG_BYTES: Final = 4 << 20
"""The most bytes of a pod's log: as many as a tuner keeps of a trial's output."""


class KubectlError(Exception):
    """It cannot be run, does not answer, or was refused: the text has its own words."""


class Kubectl:
    def __init__(self, namespace: str, context: str) -> None:
        """Both empty: as kubectl's own configuration has it."""
        self._words = ["kubectl", f"--request-timeout={ASK_SECONDS:.0f}s"]
        self._words += [f"--namespace={namespace}"] if namespace else []
        self._words += [f"--context={context}"] if context else []

    def create(self, job: Mapping[str, Any]) -> None:
        """Raises KubectlError."""
        self._run(["create", "-f", "-"], json.dumps(job, default=str))

    def job(self, name: str) -> dict[str, Any]:
        """Raises KubectlError."""
        return _tree(self._run(["get", "job", name, "-o", "json"]))

    def pods(self, name: str) -> list[dict[str, Any]]:
        """The Job's pods. Raises KubectlError."""
        found = _tree(self._run(["get", "pods", "-l", f"job-name={name}", "-o", "json"]))
        return list(found.get("items") or ())

    def log(self, pod: str, container: str) -> str:
        """Raises KubectlError."""
        return self._run(["logs", pod, "-c", container, f"--limit-bytes={MAX_LOG_BYTES}"])

    def delete(self, name: str) -> None:
        """Removes the Job with its pods, and does not wait for that. Raises KubectlError."""
        self._run(["delete", "job", name, "--ignore-not-found", "--wait=false", "--cascade=background"])

    def _run(self, words: Sequence[str], text: str | None = None) -> str:
        command = [*self._words, *words]
        try:
            done = subprocess.run(command, input=(text or "").encode(), capture_output=True, timeout=ASK_SECONDS + 5.0)
        except FileNotFoundError:
            raise KubectlError("kubectl is not here: install it, and log in to the cluster") from None
        except subprocess.TimeoutExpired:
            raise KubectlError(f"kubectl {words[0]} has not ended within {ASK_SECONDS:.0f} s") from None
        if done.returncode:
            said = printable_line(done.stderr.decode("utf-8", "replace").strip(), 500)
            raise KubectlError(f"kubectl {words[0]}: {said or f'exit status {done.returncode}'}")
        return done.stdout.decode("utf-8", "replace")


def _tree(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise KubectlError("kubectl printed something else than JSON") from None
    if not isinstance(found, dict):
        raise KubectlError("kubectl printed no object")
    return found


INDEX: Final = "batch.kubernetes.io/job-completion-index"

_STUCK: Final = (
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
    "RunContainerError",
)  # fmt: skip
"""The reasons of a container that will not start by waiting, as the kubelet gives them."""


class State(NamedTuple):
    """`status`: the exit status of the command, None while it is not known to have ended. `runs`: whether all pods have
    begun. `why`: why it failed, or why it has not begun."""

    status: int | None
    runs: bool
    why: str = ""


def state_of(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> State:
    conditions = {it["type"]: it for it in job.get("status", {}).get("conditions") or () if it.get("status") == "True"}
    if "Complete" in conditions:
        return State(0, True)
    if failed := conditions.get("Failed"):
        status, why = next(_failures(pods), (1, ""))
        told = f"{failed.get('reason', '')}: {failed.get('message', '')}"
        return State(status, True, why or told)
    expected = int(job["spec"].get("parallelism", 1))
    begun = sum(pod.get("status", {}).get("phase") in ("Running", "Succeeded", "Failed") for pod in pods)
    return State(None, begun >= expected, next(_waits(pods), "it has no pod yet" if not pods else ""))


def in_order(pods: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The pods by their index; of those without one the oldest first."""

    def place(pod: Mapping[str, Any]) -> tuple[int, str, str]:
        metadata = pod["metadata"]
        index = str((metadata.get("annotations") or {}).get(INDEX, ""))
        number = int(index) if index.isdecimal() and len(index) < 9 else 0
        return number, str(metadata.get("creationTimestamp") or ""), str(metadata["name"])

    return sorted(pods, key=place)


def failed_pod(pods: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((it for it in in_order(pods) if it.get("status", {}).get("phase") == "Failed"), None)


def _containers(pods: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The state of each container, with its pod's and its own name."""
    for pod in in_order(pods):
        status = pod.get("status", {})
        for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            yield f"{pod['metadata']['name']}/{each['name']}", each.get("state") or {}


def _failures(pods: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    for name, state in _containers(pods):
        ended = state.get("terminated") or {}
        if status := int(ended.get("exitCode", 0)):
            is_killed = ended.get("reason") == "OOMKilled"
            yield status, f"{name} ended with status {status}" + (", killed: out of memory" if is_killed else "")


def _waits(pods: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The reasons why pods do not begin, those that will not change first."""
    found = [(name, state.get("waiting") or {}) for name, state in _containers(pods)]
    for name, waiting in sorted(found, key=lambda it: it[1].get("reason") not in _STUCK):
        if reason := waiting.get("reason"):
            yield f"{name}: {reason} {waiting.get('message', '')}".rstrip()
    for pod in in_order(pods):
        for each in pod.get("status", {}).get("conditions") or ():
            if each.get("type") == "PodScheduled" and each.get("status") == "False":
                yield f"{pod['metadata']['name']}: {each.get('reason', '')} {each.get('message', '')}".rstrip()


POLL_SECONDS: Final = 1.0

AWAY_SECONDS: Final = 60.0
"""The time for which the API server may be away while a Job runs."""

FAILED: Final = 1
_LAST_LINES: Final = 30


class Ended(NamedTuple):
    state: State
    pods: list[dict[str, Any]]


def run_job(cluster: Kubectl, job: Mapping[str, Any], start_seconds: float, out: TextIO, errors: TextIO) -> int:
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


def _ended(cluster: Kubectl, name: str, start_seconds: float) -> Ended:
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


def _told(cluster: Kubectl, ended: Ended, container: str, out: TextIO, errors: TextIO) -> int:
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


def _remove(cluster: Kubectl, name: str, errors: TextIO) -> None:
    try:
        cluster.delete(name)
    except KubectlError as error:
        print(f"laggard: job {name} is left: {error}", file=errors)


FORGET_SECONDS: Final = 600
"""The time after which Kubernetes removes a Job that has ended and that nobody removed: who asked for it was killed."""

GRACE_SECONDS: Final = 3
"""The time that a pod gets to end by itself: the next trial waits for its GPUs."""

LABEL: Final = "laggard/trial"

_VARIABLE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


class Asked(NamedTuple):
    """The variables and the command that the words say, as those of `env` do."""

    variables: Mapping[str, str]
    command: tuple[str, ...]


def asked(words: Sequence[str]) -> Asked:
    variables: dict[str, str] = {}
    for place, word in enumerate(words):
        found = _VARIABLE.fullmatch(word)
        if found is None:
            return Asked(variables, tuple(words[place:]))
        variables[found[1]] = found[2]
    return Asked(variables, ())


def read_template(path: str) -> dict[str, Any]:
    """Raises UsageError where the file holds no Job with a container."""
    tree = read_tree(path, "--template")
    if not isinstance(tree, dict) or (tree.get("apiVersion"), tree.get("kind")) != ("batch/v1", "Job"):
        raise UsageError(f"{path} holds no Job: write one object of apiVersion batch/v1 and kind Job")
    try:
        container = tree["spec"]["template"]["spec"]["containers"][0]
        is_one = isinstance(container["name"], str)
    except (KeyError, IndexError, TypeError):
        is_one = False
    if not is_one or not isinstance(tree.get("metadata", {}), dict):
        raise UsageError(f"{path} has no container: spec.template.spec.containers has to name one")
    return tree


def job_of(template: Mapping[str, Any], what: Asked, seconds: int, mark: str) -> dict[str, Any]:
    """The Job, whose first container runs the command with these variables: once, `seconds` at most. `mark`: ends its
    name, so that no other has it."""
    job = copy.deepcopy(dict(template))
    metadata = job.setdefault("metadata", {})
    metadata["name"] = f"{str(metadata.get('name') or 'laggard-trial')[:40]}-{mark}"
    metadata["labels"] = {**(metadata.get("labels") or {}), LABEL: "true"}
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    spec |= {"backoffLimit": 0, "activeDeadlineSeconds": seconds, "ttlSecondsAfterFinished": FORGET_SECONDS}
    pod |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": GRACE_SECONDS}
    container = pod["containers"][0]
    if what.command:
        container["command"] = list(what.command)
        container.pop("args", None)
    kept = [it for it in container.get("env") or () if it.get("name") not in what.variables]
    container["env"] = [*kept, *({"name": name, "value": value} for name, value in what.variables.items())]
    return job


_SECONDS: Final = 3600
_START_SECONDS: Final = 300.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--template", required=True, metavar="FILE", help="a Job, whose first container is to run the command"
    )
    parser.add_argument("--namespace", default="", help="default: that of kubectl's configuration")
    parser.add_argument("--context", default="", help="kubectl's context; default: the current one")
    parser.add_argument(
        "--seconds", type=duration(1, 365 * 86400), default=_SECONDS, metavar="TIME", help="end it then (default: 1h)"
    )
    parser.add_argument(
        "--start-seconds",
        type=duration(0.001, 86400),
        default=_START_SECONDS,
        metavar="TIME",
        help="the longest time until all of its pods run (default: 5m)",
    )
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="-- [NAME=VALUE...] COMMAND",
        help="the command, behind variables for its environment; without one that of the template",
    )


def main(arguments: argparse.Namespace) -> int:
    """Returns the command's exit status; 1 where it could not be run. Raises UsageError."""
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    job = job_of(read_template(arguments.template), asked(words), int(arguments.seconds), secrets.token_hex(4))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    return run_job(
        Kubectl(arguments.namespace, arguments.context), job, arguments.start_seconds, sys.stdout, sys.stderr
    )


def _end(number: int, frame: FrameType | None) -> None:
    """Ends this process after the Job was removed. Whatever signal follows is left out: it would keep the Job."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
