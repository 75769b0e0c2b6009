"""The documents of the collector's API beyond those in laggard.wire: the values behind its page and its findings."""

from __future__ import annotations

from msgspec import Struct

from laggard.model import Location, Note, Verdict
from laggard.wire.nodes import NodeFinding, RingPairs
from laggard.wire.ranks import InFlight


class JobLine(Struct, frozen=True):
    """A job that can be shown: pass `key` as `?job=`. `user`: the owner's name on the collector's machine, else the uid
    as text. `script` is empty and `started_at` null where the hooks do not say them. `sentence`: the answer.
    `lost_ranks`: its culprits cost as much as if so many of its `ranks` did nothing."""

    key: str
    job_id: str
    owner: int
    running: bool
    ranks: int
    verdict: Verdict
    user: str = ""
    script: str = ""
    started_at: float | None = None
    sentence: str = ""
    lost_ranks: float = 0.0


class JobCounts(Struct, frozen=True):
    """The counts of all jobs, whatever is shown of them: how many there are, how many of these run, and how many that
    run have a culprit. `found`: those that have what was looked for."""

    total: int
    running: int
    failing: int
    found: int


class SummaryDocument(Struct, frozen=True):
    """The document that the page shows first. `age_seconds`: since the agents last answered; null before they first
    did. `fleet`: how the nodes compare, a line each. `todo`: what to do, a line for each culprit that has advice.
    `external_url`: where people reach the collector; empty: not known.
    `jobs`: of those in `counts.found` rather those with a culprit, and in any case the `job` that all this is about, in
    the order in which readers most likely want to see them."""

    version: str
    age_seconds: float | None
    interval_seconds: float
    sentence: str
    evidence: tuple[str, ...]
    notes: tuple[str, ...]
    job: str | None
    jobs: tuple[JobLine, ...]
    location: Location
    fleet: tuple[str, ...] = ()
    todo: tuple[str, ...] = ()
    counts: JobCounts = JobCounts(0, 0, 0, 0)
    external_url: str = ""
    schema: str = "laggard.summary/1"


class HeatRow(Struct, frozen=True):
    """A row of the heat map: one rank, or several that are folded into one row, `first` the least and `last` the
    largest. `spans`: all of them, as ranges. `at`: the place of its first rank in the map's order, to zoom by.
    `position`: that of ranks that do the same work, in the order by it."""

    first: int
    last: int
    count: int
    node: str | None
    gpu: str | None
    state: str
    spans: tuple[tuple[int, int], ...] = ()
    at: int = 0
    position: int | None = None


class HeatDocument(Struct, frozen=True):
    """One job's window as R rows by S steps. `seconds`: of each phase and `waited`, [R][S], null where a rank has no
    row for the step. `median_seconds`: over all ranks, [S], of the same and of `own` (all phases) and `step`. Where
    several ranks are folded into one row, a cell shows the rank of them that stands out in `measure`, and `shown`
    [R][S] is that rank; else `shown` is null. Where `step_fold` is above 1, a column is the mean of so many steps, and
    `steps` has the first of each. `start` and `stop`: which ranks are shown, by place in `order`."""

    job: str | None
    measure: str
    ranks_seen: int
    steps: list[int]
    rows: tuple[HeatRow, ...]
    seconds: dict[str, list[list[float | None]]]
    median_seconds: dict[str, list[float | None]]
    shown: list[list[int]] | None
    step_fold: int = 1
    order: str = "rank"
    start: int = 0
    stop: int = 0
    schema: str = "laggard.heat/1"


class TimelineRow(Struct, frozen=True):
    """One rank's last steps. `role`: `asked` of a rank that was asked for, `peer` of the one beside it: the median of
    the ranks that do the same work, by own time. `seconds`: of each phase and `waited`, [S], null where it has no row
    for the step. `waits`: what it waited in over these steps, the longest first, and `collectives` the longest of its
    single collectives in the order of their begin, where the source has them; `collectives_seen`: how many it had."""

    rank: int
    role: str
    node: str | None
    gpu: str | None
    state: str
    stopped: bool
    last_step: int | None
    phase: str | None
    in_flight: InFlight | None
    seconds: dict[str, list[float | None]]
    waits: tuple[CollectiveWait, ...] = ()
    collectives: tuple[CollectiveSpan, ...] = ()
    collectives_seen: int = 0


class CollectiveWait(Struct, frozen=True):
    """All collectives of one operation in one group that a rank was in, and how long it waited in them."""

    op: str
    group: str
    count: int
    seconds: float


class CollectiveSpan(Struct, frozen=True, array_like=True):
    """One collective of one rank. `column`: the place of its step among the document's; `start` and `end` in seconds
    from that step's begin, `waited` how long the rank was blocked in it. `peer`: the other side of a send or receive,
    else null."""

    column: int
    op: str
    group: str
    peer: int | None
    start: float
    end: float
    waited: float


class GroupWait(Struct, frozen=True):
    """All collectives of one operation in one group, or between two ranks, of the ranks that are shown: of these
    `longest_rank` waited the longest in all, `longest` seconds, and `least_rank` the least, where two or more are
    shown: it came last, and the others waited for it."""

    op: str
    group: str
    peer: int | None
    count: int
    longest_rank: int
    longest: float
    least_rank: int | None = None
    least: float | None = None


class TimelineDocument(Struct, frozen=True):
    """The last steps of some ranks of a job, each beside a peer: `rows` by S steps. `groups`: in which groups or links
    they waited, the longest first, where single collectives are known."""

    job: str | None
    steps: list[int]
    rows: tuple[TimelineRow, ...]
    groups: tuple[GroupWait, ...] = ()
    schema: str = "laggard.timeline/1"


class NodeFindingsDocument(Struct, frozen=True):
    """The findings of all nodes and of comparing them, worst first. `notes`: what could not be compared, and what holds
    for many nodes at once. `total`: how many findings there are; `findings` has the first of them where fewer were
    asked for."""

    findings: tuple[NodeFinding, ...]
    notes: tuple[Note, ...] = ()
    total: int = 0
    schema: str = "laggard.node_findings/1"


class TileSpan(Struct, frozen=True, array_like=True):
    """The nodes whose names are `prefix`, a number from `first` to `last`, and `suffix`; the number has `width` digits
    at least. A node without a number in its name has first -1. `tone`: culprit (a job that runs has its culprit there),
    fail, silent, unknown, wait or ok. `codes`: of the findings that each of them has."""

    prefix: str
    first: int
    last: int
    width: int
    suffix: str
    tone: str
    codes: tuple[str, ...] = ()


class TilesDocument(Struct, frozen=True):
    """All nodes of the fleet, `shown` of `total`, in the order of their names. `counts`: of all, by tone."""

    total: int
    shown: int
    counts: dict[str, int]
    spans: tuple[TileSpan, ...]
    schema: str = "laggard.tiles/1"


class NewestRing(Struct, frozen=True):
    """The newest ring that measured pairs of nodes, `age_seconds` ago; both null where none did. Of a ring of more
    nodes `pairs` has the nodes of its slowest pairs alone; it had `nodes` nodes and measured `measured` pairs."""

    age_seconds: float | None
    pairs: RingPairs | None
    nodes: int = 0
    measured: int = 0
    schema: str = "laggard.newest_ring/1"


class Link(Struct, frozen=True):
    text: str
    href: str


class LinksDocument(Struct, frozen=True):
    """The links to other places where the metrics of a job, a rank or a node can be seen; empty where the settings name
    no such page."""

    links: tuple[Link, ...]
    schema: str = "laggard.links/1"


class ScrapeTargets(Struct, frozen=True):
    """One entry of Prometheus' http_sd."""

    targets: tuple[str, ...]
    labels: dict[str, str]
