"""The variables of NCCL that are worth trying on this cluster: filtered by version, transport and hardware, in groups.
Pure.

Of the table's categories only tuning and sockets are searched: never what decides whether results are right
(NCCL_CHUNK_SIZE is fast and wrong from 1 MiB on, NCCL_PROTO can enable LL128 where it corrupts), switches that turn
transports off, and facts of the site. Values are those that NVIDIA's user guide and providers' published tables use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.kit.errors import UsageError
from laggard.nccl.variable_table import TABLE_VERSION, Category, Variable, Version
from laggard.nccl.variables import check_value, parse_version, variables
from laggard.tune.plan import Configuration, Constraint, Parameter, Space, Value

SEARCHED: Final = frozenset({Category.TUNING, Category.SOCKETS})
_PER_FUNCTION: Final[Version] = (2, 24)
"""The version since which NCCL_ALGO is read by function, and a function whose algorithm is not there fails."""
_CTAS: Final[Version] = (2, 17)
_MORE_CTAS: Final[Version] = (2, 25)
_HOPPER: Final = 90
_MIB: Final = 1 << 20
TRANSPORTS: Final = ("ib", "roce", "socket", "other")


class Facts(NamedTuple):
    """The known facts of the cluster. None: not known, and what depends on it is left out."""

    version: Version = TABLE_VERSION
    transport: str = "other"
    nodes: int = 1
    local_ranks: int | None = None
    nics: int | None = None
    """The NICs of a node."""
    compute_capability: int | None = None
    """90: Hopper."""
    switch: bool = False
    """True where NVLink goes through a switch."""
    collectives: frozenset[str] = frozenset({"all_reduce"})

    @property
    def rdma(self) -> bool:
        return self.transport in ("ib", "roce")

    @property
    def hopper(self) -> bool:
        return (self.compute_capability or 0) >= _HOPPER


class _Candidate(NamedTuple):
    name: str
    group: str
    values: tuple[str, ...]
    applies: Callable[[Facts], bool]
    needs: tuple[tuple[str, tuple[Value, ...]], ...] = ()


def _always(facts: Facts) -> bool:
    return True


def _sends(facts: Facts) -> bool:
    return bool(facts.collectives & {"all_to_all", "send", "recv"})


def _sockets(facts: Facts) -> bool:
    return facts.transport == "socket" and facts.nodes > 1


_QUEUE_PAIRS: Final = ("2", "4", "8", "16")
_CANDIDATES: Final = (
    _Candidate("NCCL_MIN_CTAS", "channels", ("4", "8", "16", "32"), _always),
    _Candidate("NCCL_MAX_CTAS", "channels", ("4", "8", "16", "24", "32", "64"), _always),
    _Candidate("NCCL_BUFFSIZE", "channels", tuple(str(each * _MIB) for each in (1, 2, 8, 16)), _always),
    _Candidate("NCCL_NTHREADS", "channels", ("64", "128", "256", "512"), _always),
    _Candidate("NCCL_IB_QPS_PER_CONNECTION", "network", _QUEUE_PAIRS, lambda facts: facts.rdma and facts.nodes > 1),
    _Candidate(
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        "network",
        ("0", "1"),
        lambda facts: facts.rdma and facts.nodes > 1,
        (("NCCL_IB_QPS_PER_CONNECTION", _QUEUE_PAIRS),),
    ),
    _Candidate("NCCL_CROSS_NIC", "network", ("0", "1", "2"), lambda facts: (facts.nics or 1) > 1 and facts.nodes > 1),
    _Candidate("NCCL_SOCKET_NTHREADS", "network", ("1", "2", "4", "8"), _sockets),
    _Candidate("NCCL_NSOCKS_PERTHREAD", "network", ("1", "2", "4", "8"), _sockets),
    _Candidate("NCCL_NVLS_ENABLE", "NVLink switch", ("0",), lambda facts: facts.hopper and facts.switch),
    _Candidate("NCCL_NVLS_CHUNKSIZE", "NVLink switch", ("262144", "524288"), lambda f: f.hopper and f.switch),
    _Candidate(
        "NCCL_NVLSTREE_MAX_CHUNKSIZE",
        "NVLink switch",
        ("65536", "131072", "262144", "524288"),
        lambda facts: facts.hopper and facts.switch and facts.nodes > 1,
    ),
    _Candidate("NCCL_P2P_NET_CHUNKSIZE", "send and receive", ("262144", "524288"), lambda f: _sends(f) and f.nodes > 1),
    _Candidate("NCCL_P2P_NVL_CHUNKSIZE", "send and receive", ("1048576",), _sends),
    _Candidate("NCCL_P2P_LL_THRESHOLD", "send and receive", ("0", "65536"), _sends),
)
_OLD_NAMES: Final = {"NCCL_MIN_CTAS": "NCCL_MIN_NCHANNELS", "NCCL_MAX_CTAS": "NCCL_MAX_NCHANNELS"}


def nccl_space(
    facts: Facts, current: Mapping[str, str], added: Mapping[str, Sequence[str]], left_out: Sequence[str] = ()
) -> Space:
    """Returns the variables that can matter here. `current`: what the job sets, which is the default to beat. `added`:
    further variables with their values. Raises UsageError for one that may not be searched."""
    found = {each.name: each for each in _algorithm(facts, current)}
    for candidate in _CANDIDATES:
        name = candidate.name
        if facts.version < _CTAS:
            name = _OLD_NAMES.get(name, name)
        if candidate.applies(facts) and _is_read(name, facts.version) and name not in current.get("NCCL_ALGO", ""):
            values = [each for each in candidate.values if _is_allowed(name, each, facts.version)]
            found[name] = _parameter(name, values, candidate.group, current, candidate.needs)
    for name, own in added.items():
        _check_added(name, own, facts.version)
        found[name] = _parameter(name, own, "added", current)
    for name in left_out:
        if name not in found:
            raise UsageError(f"{name} is not searched here: searched are {', '.join(found)}")
    kept = [each for each in found.values() if each.name not in left_out]
    names = {each.name for each in kept}
    kept = [each._replace(needs=tuple(pair for pair in each.needs if pair[0] in names)) for each in kept]
    return Space(tuple(kept), tuple(_channel_bounds(names)))


def _algorithm(facts: Facts, current: Mapping[str, str]) -> list[Parameter]:
    """Returns NCCL_ALGO with choices for the collectives that count, and none that a function lacks."""
    choices = []
    if "all_reduce" in facts.collectives:
        names = ["ring", *(["tree"] if facts.nodes > 1 else [])]
        if facts.hopper and facts.switch and facts.version >= _CTAS:
            names += ["nvls" if facts.nodes == 1 else "nvlstree"]
        choices += [f"allreduce:{name}" for name in names]
    gathers = facts.collectives & {"all_gather", "reduce_scatter"}
    if gathers and facts.local_ranks == 1 and facts.version >= _PER_FUNCTION:
        choices += [";".join(f"{name.replace('_', '')}:pat" for name in sorted(gathers))]
    if facts.version < _PER_FUNCTION:
        choices = [each.partition(":")[2] for each in choices if each.startswith("allreduce:")]
    return [_parameter("NCCL_ALGO", choices, "algorithm", current)] if choices else []


def _parameter(
    name: str,
    values: Sequence[str],
    group: str,
    current: Mapping[str, str],
    needs: tuple[tuple[str, tuple[Value, ...]], ...] = (),
) -> Parameter:
    own = current.get(name)
    choices = tuple(dict.fromkeys([own, None, *values]))
    return Parameter(name, choices, own, group, needs)


def _is_read(name: str, version: Version) -> bool:
    variable = variables()[name]
    since, removed = parse_version(variable.since), parse_version(variable.removed)
    return since <= version and (not removed or version < removed)


def _is_allowed(name: str, value: str, version: Version) -> bool:
    if name in _OLD_NAMES or name in _OLD_NAMES.values():
        return int(value) <= (64 if version >= _MORE_CTAS else 32)
    return check_value(variables()[name], value, version) is None


def _check_added(name: str, values: Sequence[str], version: Version) -> None:
    variable = variables().get(name)
    if variable is None:
        raise UsageError(f"{name} is no variable that NCCL reads: see docs/tune.md")
    if variable.category not in SEARCHED:
        raise UsageError(f"{name} is not tuned: {_why_not(variable)}")
    if not _is_read(name, version):
        raise UsageError(f"NCCL {'.'.join(map(str, version))} does not read {name}: it came with {variable.since}")
    for value in values:
        if problem := check_value(variable, value, version):
            raise UsageError(f"{name}={value}: {problem.text}")


def _why_not(variable: Variable) -> str:
    return {
        Category.SAFETY: "it decides whether results are right; a fast value may be a wrong one",
        Category.OFF_SWITCH: "it switches a transport or a protection off",
        Category.SITE: "it is a fact of the site; `laggard diagnose` judges it",
        Category.OBSOLETE: "NCCL no longer reads it",
    }.get(variable.category, "it changes no collective's speed")


def _channel_bounds(names: set[str]) -> list[Constraint]:
    pairs = [("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")]
    return [
        Constraint(f"{low} is at most {high}", lambda own, low=low, high=high: _at_most(own, low, high))  # type: ignore[misc]
        for low, high in pairs
        if {low, high} <= names
    ]


def _at_most(own: Configuration, low: str, high: str) -> bool:
    return own[low] is None or own[high] is None or int(str(own[low])) <= int(str(own[high]))
