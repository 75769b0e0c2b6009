"""The Job that runs one command, made of a template that the user wrote. Pure but for reading the file."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from laggard.config import read_tree
from laggard.errors import UsageError

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
