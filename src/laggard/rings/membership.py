"""The membership of this process, as a node of a ring: by its flags, else by the environment of torchrun or SLURM.
Pure.

An order hands a ring to a process of its own (rings/child.py), which answers how it ended: whoever orders one loads no
ring.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from laggard.kit.address import expand_hosts, first_host
from laggard.kit.errors import UsageError
from laggard.model import Finding
from laggard.wire.nodes import RingPairs

_PORTS: Final = range(20000, 30000)
"""The range from which SLURM's job gets its port: below the ephemeral ones (32768 and above)."""


class Membership(NamedTuple):
    """This process as a node of a ring. A launcher that starts a process for each GPU makes each a node of its own,
    with one rank."""

    number: int
    nodes: int
    host: str
    port: int
    """The port at which the coordinator, which is in node 0, listens; 0: any free port, which torchrun's store then
    tells."""
    ranks: int | None = None
    """The number of ranks of this process; None: one for each GPU."""
    device_index: int | None = None
    """The GPU of the only rank, where the launcher chose it."""
    store: tuple[str, int] | None = None
    """torchrun's store, which holds MASTER_PORT itself."""
    is_one_machine: bool = False
    """True: all processes run on this machine, and meet at an address that no other reaches."""
    chosen: bool = True
    """True: the user gave the address; False: a launcher's environment did."""
    names: tuple[str, ...] = ()
    """The nodes' names by number, where the launcher tells them: who never comes cannot say its own."""
    second: tuple[str, int] | None = None
    """The address at which node 1 listens when a gang's node 0 does not come; None: nobody knows an address of it."""

    @property
    def own_name(self) -> str:
        """Empty where the launcher tells none."""
        return self.names[self.number] if self.names else ""


def second_leads(place: Membership) -> Membership:
    """Returns the same place in a ring which node 1 leads, since node 0 did not come."""
    assert place.second is not None
    host, port = place.second
    return place._replace(host=host, port=port, second=None)


def alone() -> Membership:
    return Membership(0, 1, "127.0.0.1", 0)


def from_flags(rendezvous: str, nodes: int | None, node_rank: int | None) -> Membership:
    """Raises UsageError."""
    if nodes is None or node_rank is None:
        raise UsageError("--rendezvous needs --nodes N and --node-rank I (0 to N-1)")
    if nodes < 1 or not 0 <= node_rank < nodes:
        raise UsageError(f"--node-rank {node_rank} of --nodes {nodes}: ranks of nodes go from 0 to N-1")
    first, *others = rendezvous.split(",")
    if len(others) > 1:
        raise UsageError(f"--rendezvous {rendezvous!r}: addresses of node 0 and node 1, and no more")
    host, port = _address(first)
    return Membership(node_rank, nodes, host, port, second=_address(others[0]) if others and nodes > 1 else None)


def _address(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"\[?([^\]\s,]+?)\]?:(\d{1,5})", text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise UsageError(f"--rendezvous {text!r}: write HOST:PORT, the address of node 0 and a free port there")
    return match[1], int(match[2])


def from_environment(environ: Mapping[str, str]) -> Membership | None:
    """Returns the place that torchrun or SLURM gave this process; None where neither started it. Raises UsageError
    where their variables make no sense."""
    if environ.get("RANK") and environ.get("WORLD_SIZE") and environ.get("MASTER_ADDR"):
        return _from_torchrun(environ)
    if environ.get("SLURM_PROCID") and environ.get("SLURM_STEP_NODELIST") and _number(environ, "SLURM_NTASKS") > 1:
        return _from_slurm(environ)
    return None


def _from_torchrun(environ: Mapping[str, str]) -> Membership:
    """RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them and other launchers imitate."""
    host, port = environ["MASTER_ADDR"], _number(environ, "MASTER_PORT")
    place = _placed(_number(environ, "RANK"), _number(environ, "WORLD_SIZE"), host, port)
    place = place._replace(ranks=1, device_index=_number(environ, "LOCAL_RANK", 0), chosen=False)
    if "TORCHELASTIC_RUN_ID" in environ:
        is_one_machine = environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"]
        return place._replace(port=0, store=(host, port), is_one_machine=is_one_machine)
    return place


def _from_slurm(environ: Mapping[str, str]) -> Membership:
    """srun's variables. With one task on each node a task has all GPUs of its node, else each has one."""
    host = environ.get("MASTER_ADDR") or first_host(environ["SLURM_STEP_NODELIST"])
    name = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    default = _PORTS[zlib.crc32(name.encode()) % len(_PORTS)]
    port = _number(environ, "MASTER_PORT", default)
    place = _placed(_number(environ, "SLURM_PROCID"), _number(environ, "SLURM_NTASKS"), host, port)
    place = place._replace(chosen=False)
    if _number(environ, "SLURM_NTASKS") == _number(environ, "SLURM_STEP_NUM_NODES", 0):
        names = expand_hosts(environ["SLURM_STEP_NODELIST"])
        return _named(place, names) if len(names) == place.nodes else place
    return place._replace(ranks=1, device_index=_number(environ, "SLURM_LOCALID", 0))


def from_prolog(environ: Mapping[str, str]) -> Membership | None:
    """Returns the place of this node among those of the job whose prolog runs here: SLURM starts it on each of them.
    None: this is no prolog of SLURM's. Raises UsageError where its variables make no sense."""
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")  # the second: SLURM 22.05
    own = environ.get("SLURMD_NODENAME", "")
    if environ.get("SLURM_SCRIPT_CONTEXT") != "prolog_slurmd" or not nodes:
        return None
    names = expand_hosts(nodes)
    if own not in names:
        raise UsageError(f"SLURMD_NODENAME is {own[:80]!r}, which is none of the job's nodes {nodes[:80]!r}")
    default = _PORTS[zlib.crc32(environ.get("SLURM_JOB_ID", "").encode()) % len(_PORTS)]
    host, port = environ.get("MASTER_ADDR") or names[0], _number(environ, "MASTER_PORT", default)
    return _named(_placed(names.index(own), len(names), host, port)._replace(chosen=False), names)


def _named(place: Membership, names: tuple[str, ...]) -> Membership:
    """The port is the job's own on each of its nodes."""
    return place._replace(names=names, second=(names[1], place.port) if len(names) > 1 else None)


def _placed(index: int, nodes: int, host: str, port: int) -> Membership:
    if not 0 <= index < nodes or not 0 < port < 65536:
        raise UsageError(f"the launcher's environment makes no sense: rank {index} of {nodes}, port {port}")
    return Membership(index, nodes, host, port)


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    if not re.fullmatch(r"\d{1,9}", text):
        raise UsageError(f"{name} is {text[:40]!r}, no number; use --rendezvous HOST:PORT --nodes N --node-rank I")
    return int(text)


MODULE = "laggard.rings.child"
MAX_BYTES = 1 << 20
"""The most of an order, and of an answer."""


class NodeShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of the results that one node of a gang learns. `findings`: those that accuse it; `others`: lines about
    who else is accused, or did not come; `unknown`: why this node could not be judged; `judged`: how many nodes were
    measured."""

    findings: tuple[Finding, ...]
    others: tuple[str, ...]
    unknown: str
    judged: int


class RingOrder(msgspec.Struct, frozen=True):
    """A ring in pairs in which this node has `place`. `tokens`: of which this node shows the first. `seconds`: for
    measuring; `deadline_seconds`: for all of it. `modest`: its processes take what no job wants. `node`: its name in
    the ring; empty: the machine's own."""

    place: Membership
    tokens: tuple[str, ...]
    device: str
    seconds: float
    join_seconds: float
    deadline_seconds: float
    modest: bool = False
    node: str = ""


class RingEnd(msgspec.Struct, frozen=True):
    """`status` as of `laggard ring`; `share`: what the ring found about this node; None: it came to no end here.
    `pairs`: what was measured in pairs, on the node that led."""

    status: int
    text: str
    share: NodeShare | None = None
    pairs: RingPairs | None = None
