"""The nodes that a scheduler knows, SLURM's or Kubernetes', and their names as it writes lists of them.

A list is made for a command line (`sbatch --exclude=$(laggard exclude)`), so that a name with any other character than
host names have is none: an agent may report whatever it likes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from laggard.kit.bounded_program import ProgramFailed, output_of
from laggard.kit.errors import UsageError
from laggard.kit.majority import grouped
from laggard.kit.words import natural, printable_line, runs

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,255}")
_NUMBERED: Final = re.compile(r"(.*?)([0-9]{1,15})")


def is_host_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


class KnownNames:
    """The nodes that a scheduler knows. One of an agent's is the same, or is it without the domain, where one alone
    is."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._short = {_short(name): name for name in self._names}
        self._count = Counter(map(_short, self._names))

    def find(self, name: str) -> str | None:
        """The scheduler's name of it; None: it has none."""
        if name in self._names:
            return name
        short = _short(name)
        return self._short.get(short) if self._count[short] == 1 else None

    def __len__(self) -> int:
        return len(self._names)


def _short(name: str) -> str:
    return name.partition(".")[0]


def hostlist(names: Collection[str]) -> str:
    """The names as SLURM writes them: `n[1-3,7],gpu-a`, in the order of their numbers."""
    plain = [name for name in names if not _NUMBERED.fullmatch(name)]
    numbered = filter(None, map(_NUMBERED.fullmatch, dict.fromkeys(names)))
    groups = grouped(numbered, lambda found: found[1])
    words = [*dict.fromkeys(plain)]
    words += [word for prefix, own in groups.items() for word in _words(prefix, [found[2] for found in own])]
    return ",".join(sorted(words, key=natural))


def _words(prefix: str, numbers: Collection[str]) -> Iterator[str]:
    """Of numbers with zeros before them, those of one width are one list: SLURM counts n[08-11] so."""
    padded = {len(number) for number in numbers if number[0] == "0" and len(number) > 1}
    widths = {number: len(number) if len(number) in padded else 0 for number in numbers}
    for width in sorted(set(widths.values())):
        own = sorted(int(number) for number in numbers if widths[number] == width)
        listed = ",".join(_run(first, last, width) for first, last in runs(own))
        yield f"{prefix}{own[0]:0{width}}" if len(own) == 1 else f"{prefix}[{listed}]"


def _run(first: int, last: int, width: int) -> str:
    return f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"


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

    from laggard.kubernetes.api_server import ApiError, ApiServer, Exchange

    try:
        exchange = Exchange(SECONDS, ssl.create_default_context(cafile=f"{_SERVICE_ACCOUNT}/ca.crt"))
        nodes = ApiServer(exchange, "", f"{_SERVICE_ACCOUNT}/token", environ).nodes()
    except (ApiError, OSError, UsageError) as error:
        raise SchedulerAway(f"no kubectl is here, and this is no pod that may list nodes: {error}") from None
    return KnownNames(node.name for node in nodes)


def _marked(text: str, mark: str) -> Iterator[str]:
    """The names of the lines that begin with `mark`: warnings do not."""
    return (line[len(mark) :].strip() for line in text.splitlines() if line.startswith(mark))
