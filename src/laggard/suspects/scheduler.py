"""The nodes that a scheduler knows: SLURM's by sinfo, Kubernetes' by kubectl or, in a pod, by the API server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Final

from laggard.bounded_program import ProgramFailed, output_of
from laggard.errors import UsageError
from laggard.suspects.names import KnownNames
from laggard.text.words import printable_line

SECONDS: Final = 10.0
"""SLURM's own limit on a message."""
_MARK: Final = "node="
_POD_NODE: Final = "node/"
_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


class SchedulerAway(Exception):
    """The scheduler cannot be asked. The text is one line that says why."""


def program(name: str, given: str | None = None) -> str | None:
    """The path of a program, given or found; None where it is not here."""
    return given or shutil.which(name)


def run(command: tuple[str, ...], without: str) -> str:
    """What a program prints. Variables that begin with `without` are kept from it: they change what it lists. Raises
    SchedulerAway."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    try:
        output, status = output_of(command, SECONDS, environ)
    except ProgramFailed as error:
        raise SchedulerAway(f"{error}") from None
    text = output.decode(errors="replace")
    if status:
        raise SchedulerAway(f"{command[0]}: {printable_line(' '.join(text.split()), 200) or f'exit status {status}'}")
    return text


def slurm_names(sinfo: str) -> KnownNames:
    """Raises SchedulerAway."""
    text = run((sinfo, "--noheader", "--Node", "--all", f"--format={_MARK}%N"), "SINFO_")
    return KnownNames(_marked(text, _MARK))


def kubernetes_names(kubectl: str | None, environ: Mapping[str, str] = os.environ) -> KnownNames:
    """Raises SchedulerAway."""
    if kubectl is None:
        return _names_in_pod(environ)
    text = run((kubectl, "get", "nodes", "--output=name", f"--request-timeout={SECONDS:.0f}s"), "KUBECTL_")
    return KnownNames(_marked(text, _POD_NODE))


def _names_in_pod(environ: Mapping[str, str]) -> KnownNames:
    import ssl

    from laggard.kubernetes.api_server import ApiError, ApiServer
    from laggard.kubernetes.exchange import Exchange

    try:
        exchange = Exchange(SECONDS, ssl.create_default_context(cafile=f"{_SERVICE_ACCOUNT}/ca.crt"))
        nodes = ApiServer(exchange, "", f"{_SERVICE_ACCOUNT}/token", environ).nodes()
    except (ApiError, OSError, UsageError) as error:
        raise SchedulerAway(f"no kubectl is here, and this is no pod that may list nodes: {error}") from None
    return KnownNames(node.name for node in nodes)


def _marked(text: str, mark: str) -> Iterator[str]:
    """The names of the lines that begin with `mark`: warnings do not."""
    return (line[len(mark) :].strip() for line in text.splitlines() if line.startswith(mark))
