"""The agents to scrape, as people write them: `n1`, `n1:19400`, `http://n1:19400`. And the labels of a node's place
in its site, by which alerts find a team, and how a file of YAML or JSON is read, within bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import yaml

from laggard.kit.address import without_login
from laggard.kit.constants import AGENT_PORT
from laggard.kit.errors import UsageError

LOCAL_AGENT = f"127.0.0.1:{AGENT_PORT}"
"""The default target: the agent of the collector's own machine."""


class Target(NamedTuple):
    scheme: str  # http, https
    address: str  # host:port

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"


def parse_targets(texts: Iterable[str]) -> tuple[Target, ...]:
    """The targets in the order given, each once. Raises UsageError that names the one that cannot be read."""
    return tuple(dict.fromkeys(parse_target(text) for text in texts))


def parse_target(text: str) -> Target:
    """Raises UsageError where `text` is not a target."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port if parts.port is not None else AGENT_PORT
    except ValueError:
        raise _invalid(text) from None
    if parts.scheme not in ("http", "https") or not host or port == 0 or not _is_host(host):
        raise _invalid(text)
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise _invalid(text)
    return Target(parts.scheme, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _is_host(text: str) -> bool:
    return text.isascii() and text.isprintable() and not set(text) & set(" \"'<>\\^`{|}%,;")


def _is_bare_ipv6(text: str) -> bool:
    """Whether it is most likely an IPv6 address without brackets."""
    return "[" not in text and text.rpartition("://")[2].count(":") > 1


def _invalid(text: str) -> UsageError:
    login = ", without a user and a password" if "@" in text else ""
    brackets = ", an IPv6 address in brackets: [fd00::1]:19400" if _is_bare_ipv6(text) else ""
    return UsageError(
        f"cannot read target {without_login(text)!r}: write HOST:PORT or http://HOST:PORT{login}{brackets}"
    )


LAGGARD: Final = "laggard"
SLURM: Final = "slurm"
ADMINISTRATOR: Final = "administrator"


class NodeOut(NamedTuple):
    """A node to which its scheduler gives no job: by whom (LAGGARD, SLURM or ADMINISTRATOR), since when in Unix time
    (0: it does not say), and why in its own words."""

    by: str
    since: float
    reason: str


class JobUsers(NamedTuple):
    """The uids of users whose jobs failed at once on a node lately, and of those whose jobs ran there."""

    failed: frozenset[int] = frozenset()
    ran: frozenset[int] = frozenset()


MAX_LABEL_CHARACTERS: Final = 128


class NodeLabels(NamedTuple):
    """Empty: not known. Three and no more, since each is a label of a series of every node."""

    partition: str = ""
    rack: str = ""
    team: str = ""

    def over(self, other: NodeLabels) -> NodeLabels:
        """These labels, and those of `other` where these have none."""
        return NodeLabels(*(mine or theirs for mine, theirs in zip(self, other, strict=True)))


def labels_in(labels: Mapping[str, str]) -> NodeLabels:
    """The three among the labels of a target. One that is too long or cannot be printed counts as none."""
    return NodeLabels(*(_usable(labels.get(name, "")) for name in NodeLabels._fields))


def partitions_label(names: Iterable[str]) -> str:
    """The partitions of a node as one label: in order, with commas between them; of many those that fit."""
    text = ""
    for name in sorted(set(names)):
        longer = f"{text},{name}" if text else name
        if name and name.isprintable() and len(longer) <= MAX_LABEL_CHARACTERS:
            text = longer
    return text


def _usable(text: str) -> str:
    return text if len(text) <= MAX_LABEL_CHARACTERS and text.isprintable() else ""


MAX_FILE_BYTES: Final = 4 << 20


class Unusable(Exception):
    """The file does not say what it should."""


def tree_of(path: str, body: bytes) -> Any:
    """The values in `body`: JSON where the path ends so, else YAML. Raises ValueError, RecursionError, or Unusable
    where it is too long, or empty: so is a file for a moment that is written anew in its place, and who means that
    there is nothing writes []."""
    if len(body) > MAX_FILE_BYTES:
        raise Unusable(f"it is longer than {MAX_FILE_BYTES} bytes")
    if not body:
        raise Unusable("it is empty: write [] where there is nothing")
    if path.endswith(".json"):
        return msgspec.json.decode(body)
    try:
        return yaml.safe_load(body)  # not libyaml's loader: nested deeply enough, it ends the process
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ValueError(f"it is not YAML{where}: {getattr(error, 'problem', None) or 'unreadable'}") from None
