"""Asks kubectl about one Job: it knows the user's cluster, and logs in with the user's rights."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

from laggard.text.words import printable_line

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
