"""The agent's settings: from flags, else from a YAML file, else from the environment. Durations in seconds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping

from msgspec import structs

from laggard.agent.gate.server import why_not
from laggard.agent.ras.asker import MIN_INTERVAL_SECONDS
from laggard.kit.config import Settings, load, replaced
from laggard.kit.constants import AGENT_PORT
from laggard.kit.environment import node_name, rank_dir
from laggard.kit.errors import UsageError
from laggard.kit.http_message import split_address
from laggard.kit.limits import Duration, DurationOrZero
from laggard.probes.profiles import AGENT_SECONDS, PROFILES

LISTEN_ADDRESS = f":{AGENT_PORT}"
PROFILE = "periodic"
GATE_SOCKET = "/run/laggard/agent/gate.sock"


class AgentSettings(Settings, frozen=True):
    listen_address: str = LISTEN_ADDRESS
    """The address at which the agent serves, as HOST:PORT; `:PORT` is every interface, port 0 any free one."""
    web_config_file: str = ""
    """A file that asks for TLS, and for clients' certificates, in the format of Prometheus' exporters (docs/tls.md);
    empty: plain HTTP."""
    rank_dir: str = ""
    """The directory of the rank files. Empty: LAGGARD_RANK_DIR, else /run/laggard/ranks if that exists, else
    /dev/shm/laggard."""
    node: str = ""
    """The name to report this machine under. Where empty: LAGGARD_NODE, else the host name. `laggard healthcheck` asks
    the collector under the same name before a drain, from LAGGARD_NODE or the host name."""
    profile: str = PROFILE
    """The profile, which says which probes run, and how strictly they judge: a name or a file, as for `laggard
    healthcheck --profile`."""
    probe_interval_seconds: Duration = 60.0
    """The time from the start of one run of the probes to the next."""
    rank_interval_seconds: Duration = 5.0
    """The largest age of the rank files' contents in a response to a scrape. The API reads the files for every
    request."""
    gate_socket: str = GATE_SOCKET
    """The Unix socket at which SLURM's prologs ask, which then start no laggard; empty: none. Its folder must be
    there, and only the agent or root may write in it: systemd makes it. docs/development/contracts.md has the
    protocol."""
    ras_interval_seconds: DurationOrZero = MIN_INTERVAL_SECONDS
    """The time between two questions to NCCL RAS about jobs that run without hooks, at least 10; 0: never asked.
    docs/ras.md."""
    ras_address: str = ""
    """The address at which NCCL RAS listens on this machine, as HOST:PORT. Empty: NCCL_RAS_ADDR, else
    localhost:28028."""
    stacks: bool = True
    """False: the agent neither reads the stacks that ranks take of themselves, nor asks for any (docs/stacks.md)."""
    stacks_token_file: str = ""
    """A file with the secret by which a collector proves who it is when it reads stacks or asks for them; empty: nobody
    can. No other user may be able to read it."""


RAS_ADDRESS = "localhost:28028"
"""The default of NCCL (NCCL_RAS_CLIENT_PORT in src/ras/ras_internal.h)."""

MAX_NODE_CHARACTERS = 256
"""The longest name of a node that a collector takes."""


def resolve_settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> AgentSettings:
    """Returns the settings with every empty one filled in. Raises UsageError."""
    settings = load(arguments.config, AgentSettings) if arguments.config else AgentSettings()
    flags = ("listen_address", "web_config_file", "rank_dir", "node", "profile")
    settings = replaced(settings, **{name: getattr(arguments, name) for name in flags})
    if 0 < settings.ras_interval_seconds < MIN_INTERVAL_SECONDS:
        raise UsageError(
            f"ras_interval_seconds is {settings.ras_interval_seconds}: give {MIN_INTERVAL_SECONDS:g} or more, or 0 not "
            "to ask at all"
        )
    if not _is_node_name(settings.node):
        raise UsageError(f"node is {settings.node!r}: a name has no blanks, slashes or control characters")
    socket = settings.gate_socket
    folder = os.path.dirname(socket) if socket != GATE_SOCKET else ""
    if os.path.isdir(folder) and (why := why_not(folder)):
        raise UsageError(f"gate_socket is {socket}, where no prolog would ask: {why}")
    directory = settings.rank_dir or rank_dir(environ)
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise UsageError(f"{directory} is no directory; choose one with --rank-dir")
    return structs.replace(
        settings,
        rank_dir=directory,
        node=settings.node or node_name(environ),
        profile=_absolute_profile(settings.profile),
        ras_address=_ras_address(settings.ras_address, environ),
    )


def unwise(settings: AgentSettings, round_seconds: float) -> Iterator[str]:
    """A line for each thing that may be as it is meant, and more likely is not. `round_seconds`: the longest that all
    probes take."""
    if not os.path.isdir(settings.rank_dir) and settings.rank_dir != rank_dir(os.environ):
        yield f"rank_dir: there is no {settings.rank_dir}, so no rank is seen until there is"
    if settings.probe_interval_seconds + round_seconds > AGENT_SECONDS:
        yield (
            f"probe_interval_seconds is {settings.probe_interval_seconds:g}: prologs take no report older than "
            f"{AGENT_SECONDS:g} s, so most of them run the probes themselves"
        )


def _is_node_name(text: str) -> bool:
    return text.isprintable() and not set(text) & set(" /\\,;[]") and len(text) <= MAX_NODE_CHARACTERS


def _ras_address(given: str, environ: Mapping[str, str]) -> str:
    """Raises UsageError where the one that is given is no HOST:PORT. A wrong one in the environment is NCCL's matter:
    NCCL does not listen there, and its default is looked at."""
    if given:
        split_address(given)
        return given
    try:
        split_address(environ.get("NCCL_RAS_ADDR", ""))
    except UsageError:
        return RAS_ADDRESS
    return environ["NCCL_RAS_ADDR"]


def _absolute_profile(name: str) -> str:
    """Makes the path of a profile file absolute, because the prober runs in another directory. Names stay."""
    return os.path.abspath(name) if name not in PROFILES and os.path.exists(name) else name
