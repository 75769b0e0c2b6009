"""Profiles of the gate: which probes run, for how long, and how strictly they are judged. choose.py takes a profile's
probes; what needs the profile alone does not load them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from laggard.kit.config import Settings, load
from laggard.kit.errors import UsageError

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Profile(Settings, frozen=True):
    """The content of the FILE of `--profile`. An empty file is the profile `full`."""

    deadline_seconds: Seconds = 30.0
    """The time for all probes together. Each probe also has a shorter deadline of its own."""

    only: tuple[str, ...] = ()
    """The probes to run; all where none is named."""

    skip: tuple[str, ...] = ()
    """Probes that are not run."""

    warnings_fail: bool = False
    """True: a warning fails the gate, as a critical finding does."""

    unknown: Literal["unknown", "fail"] = "unknown"
    """The meaning of the verdict `unknown`: exit status 2, or 1 with `fail`. It can never become 0."""

    thresholds: dict[str, dict[str, Any]] = {}
    """The thresholds to change, by probe."""

    nodes: dict[str, dict[str, dict[str, Any]]] = {}
    """The same for the nodes that are named as in a site's checks, such as `gpu[001-064]` or `gpu*`; what is later goes
    over what is earlier, and all of it over `thresholds`."""

    active: bool = False
    """Also run the probes that load the GPUs, as `--active` does. A daemon never does, whatever its profile says."""

    active_deadline_seconds: Seconds = 240.0
    """The time for all active probes together."""

    agent_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """The gate takes a report of this node's agent up to this age instead of running the probes; 0 means never."""


class Expectations(Settings, frozen=True):
    """The content of the FILE of `--expect`: thresholds by probe with the values of this cluster. They override the
    profile's."""

    thresholds: dict[str, dict[str, Any]] = {}
    """The thresholds to change, by probe."""

    nodes: dict[str, dict[str, dict[str, Any]]] = {}
    """The same for the nodes that are named as in a site's checks, such as `gpu[001-064]` or `gpu*`."""


AGENT_SECONDS: Final = 90.0
"""The largest age of an agent's report that is used. The agent runs its probes each minute, for at most ten seconds. An
older report has missed a round."""

DEFAULT: Final = "full"

# Each profile states what the verdict `unknown` becomes. By itself it is exit status 2. SLURM, which drains on any
# status but 0, never gets it (--gate): a check that cannot run must not empty a cluster. It is reported and logged, and
# exported by the agent.
PROFILES: Final[Mapping[str, Profile]] = {
    # A job waits for it: SLURM's PrologTimeout is the limit, and how long people are willing to wait.
    "prolog": Profile(
        deadline_seconds=5.0,
        unknown="unknown",
        agent_seconds=AGENT_SECONDS,
        thresholds={"gpu_busy": {"idle_expected": True}},
    ),
    # The agent may not have seen yet what the job just broke: the gate runs the probes itself.
    "epilog": Profile(deadline_seconds=5.0, unknown="unknown"),
    # Started by a timer or a daemon, whose own limits (ulimit) are not those of a job.
    "periodic": Profile(
        deadline_seconds=10.0,
        unknown="unknown",
        agent_seconds=AGENT_SECONDS,
        thresholds={"limits": {"memlock_own_severity": "warning"}},
    ),
    "full": Profile(unknown="unknown"),
}


def find_profile(name: str) -> Profile:
    """The profile called `name`, or the one in the file `name`. Raises UsageError."""
    if name in PROFILES:
        return PROFILES[name]
    if not os.path.exists(name):
        raise UsageError(f"no profile {name!r}: name one of {', '.join(PROFILES)}, or the path of a YAML file")
    return load(name, Profile, "--profile")


def with_expectations(profile: Profile, path: str) -> Profile:
    """`profile` with the thresholds of the file at `path`, which override its own. Raises UsageError."""
    expected = load(path, Expectations, "--expect")
    thresholds = _over(profile.thresholds, expected.thresholds)
    return msgspec.structs.replace(profile, thresholds=thresholds, nodes={**profile.nodes, **expected.nodes})


def for_node(profile: Profile, node: str) -> dict[str, dict[str, Any]]:
    """The thresholds by probe that count on `node`. Raises UsageError."""
    try:
        return _over(profile.thresholds, *(it for nodes, it in profile.nodes.items() if covers(nodes, node)))
    except (ValueError, re.error) as error:
        raise UsageError(f"the profile's `nodes` name none: {error}") from None


def _over(thresholds: dict[str, dict[str, Any]], *changes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    for change in changes:
        merged = {name: {**thresholds.get(name, {}), **values} for name, values in change.items()}
        thresholds = {**thresholds, **merged}
    return thresholds


_MAX_NODES: Final = 1 << 16  # of one range


def covers(nodes: str, node: str) -> bool:
    """Whether `nodes` names `node`, whole or without its domain. Raises re.error, and ValueError."""
    wanted = nodes.removeprefix("!")
    if wanted.startswith("/") and wanted.endswith("/"):
        found = re.search(wanted[1:-1], node) is not None
    else:
        parts = re.split(r",(?![^\[]*\])", wanted)
        found = any(_is_named(part.strip(), name) for part in parts for name in (node, node.partition(".")[0]))
    return found != nodes.startswith("!")


def _is_named(pattern: str, name: str) -> bool:
    texts = re.split(r"\[([\d,-]+)\]", pattern)
    texts[::2] = [re.escape(text).replace(r"\*", ".*").replace(r"\?", ".") for text in texts[::2]]
    texts[1::2] = map(_numbers, texts[1::2])
    return re.fullmatch("".join(texts), name) is not None


def _numbers(ranges: str) -> str:
    """A pattern of SLURM's ranges: the first number's zeros say how many digits there are. Raises ValueError."""
    found: list[str] = []
    for first, _, last in (each.partition("-") for each in ranges.split(",")):
        width = len(first) if first.startswith("0") else 0
        found += [f"{number:0{width}}" for number in range(int(first), int(last or first) + 1)[:_MAX_NODES]]
    return f"(?:{'|'.join(found)})"


SCHEMA: Final = "gate/1"
PROFILE: Final = "prolog"


def gate_profile() -> Profile:
    return PROFILES[PROFILE]
