"""The collector's configuration: a YAML file, with flags over it. Durations in seconds, sizes in bytes. A database's
URL may stand in a secret file of its own."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from msgspec import Meta, structs

from laggard.collector.targets import LOCAL_AGENT, parse_target
from laggard.kit.address import is_database_url, refusal, without_login
from laggard.kit.config import Settings, load, replaced
from laggard.kit.constants import COLLECTOR_PORT
from laggard.kit.environment import ENV_STATE_DIR, node_name
from laggard.kit.errors import UsageError
from laggard.kit.limits import HOST, Duration, Number, Port, Share
from laggard.kit.secret_files import read_secret, warn_of_exposed
from laggard.wire.exclusion import MAX_SECONDS


class Login(NamedTuple):
    """A URL without its password, and the password; empty where it has none."""

    url: str
    password: str


def read_url(path: str, setting: str) -> Login:
    """The URL in the only line of the file that `setting` names, as an operator of Kubernetes puts it into a Secret.
    Raises UsageError, in whose text nothing of the file is."""
    warn_of_exposed(path, setting)
    text = read_secret(path, setting)
    if not is_database_url(text) or not text.isprintable() or " " in text:
        raise UsageError(f"{setting} {path} has to hold one line, postgresql://USER:PASSWORD@HOST/NAME")
    try:
        return _split(text)
    except ValueError:
        raise UsageError(
            f"{setting} {path} holds no URL that can be read: are signs of the password written as %XX?"
        ) from None


def _split(url: str) -> Login:
    """Raises ValueError."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    bare = urlunsplit(parts._replace(netloc=f"{user}{at}{host}"))
    return Login(bare if is_database_url(bare) else url, unquote(password))


LISTEN_ADDRESS = f"127.0.0.1:{COLLECTOR_PORT}"
"""Loopback, where exporters listen on every interface: by default a collector watches its own machine only, and what it
shows (job names, users, nodes) has no password. `--web.listen-address :19401` opens it to others."""

INCIDENTS_DATABASE = "/var/lib/laggard/incidents.sqlite"


_THIS_MACHINE = (LOCAL_AGENT,)


class CollectorSettings(Settings, frozen=True):
    targets: tuple[str, ...] = _THIS_MACHINE
    """The agents to scrape, as HOST, HOST:PORT or URL. Left out where target_names, target_files or
    target_slurm say where agents are: none but those."""
    target_names: tuple[str, ...] = ()
    """Names in DNS, as HOST, HOST:PORT or URL: each address of a name is an agent. Made for a headless service of
    Kubernetes."""
    target_files: tuple[str, ...] = ()
    """Files that list agents, in the format of Prometheus' file_sd_configs (JSON where the name ends so, else YAML);
    `*` stands for more."""
    target_server_name: str = ""
    """The name that the certificates of agents with https must have, at whatever address they are asked; empty: the
    host of their URL, which for target_names is the address."""
    target_slurm: tuple[str, ...] = ()
    """Partitions of SLURM, as PARTITION, PARTITION:PORT or https://PARTITION:PORT, and `*` for all: at the address of
    each node is an agent, on that port. Nodes that are powered down are left out."""
    sinfo: str = "/usr/bin/sinfo"
    """The program that is asked for them. It finds slurm.conf by SLURM_CONF, as ever."""
    discovery_interval_seconds: Duration = 15.0
    """The time after which names, files and SLURM are asked again. While one does not answer, what it said last holds,
    for `forget_after_seconds`."""
    max_targets: Number = 16_384
    """The most agents that are scraped, of all that are listed and found."""
    listen_address: str = LISTEN_ADDRESS
    """The address at which the collector serves, as HOST:PORT; `:PORT` is every interface, port 0 any free one."""
    web_config_file: str = ""
    """A file that asks for TLS, and for clients' certificates, in the format of Prometheus' exporters (docs/tls.md);
    empty: plain HTTP."""
    interval_seconds: Duration = 5.0
    """The time from the start of one round of scrapes to the start of the next."""
    timeout_seconds: Duration = 3.0
    """The time limit for one agent's complete answer. A round takes longer where more than 1,024 agents say nothing."""
    report_interval_seconds: Duration = 30.0
    """The time between two requests for the report: probes run every minute or so, so less often than the ranks."""
    concurrency: Number = 64
    """The number of agents that are asked at once, beside those that say nothing for a quarter of a second: up to 1,024
    of these are waited for."""
    max_body_bytes: Number = 16 << 20
    """The largest answer of an agent."""
    max_jobs: Number = 4096
    """The most jobs of all users together, who share them fairly: docs/development/contracts.md, Tenants."""
    max_ranks: Number = 131_072
    """The most ranks of all jobs together, shared as the jobs are. A rank's window takes about 40 KiB."""
    max_connections: Number = 512
    """The most connections of all clients together. A client that is slow to ask, or to take its answer, makes room for
    a new one; a quarter more are kept for gates and agents."""
    max_connections_per_address: Number = 64
    """A reverse proxy is one address."""
    allowed_hosts: tuple[Annotated[str, Meta(pattern=HOST)], ...] = ()
    """Names under which clients may ask, `*.DOMAIN` for all in a domain, `*` for any. Addresses, names without a dot
    and this machine's own name are always allowed. Others are refused: a web page could give its own name this
    address, and read in a visitor's browser what is answered."""
    tenant_header: str = ""
    """The header in which a reverse proxy names the user who has logged in: then users see their own jobs alone, and
    who is not named sees nothing (docs/tenants.md). Empty, and without tenant_certificates: whoever can ask sees
    everything."""
    tenant_groups_header: str = ""
    """The header in which it names the user's groups, with commas between them; it has to replace a client's own, as
    that of the user. Empty: the groups are those that the user has on the collector's machine."""
    tenant_certificates: bool = False
    """True: the common name of a client's certificate is the user who asks. It needs client_ca_file in the file of
    web_config_file."""
    trusted_proxies: tuple[str, ...] = ()
    """The senders from whom tenant_header is believed: addresses, networks such as 10.0.0.0/8, and certificate:NAME for
    a client whose certificate has that DNS name. All others who send it are refused. An address stands for everybody
    who has a process on that machine."""
    operators: tuple[str, ...] = ()
    """The operators, who see everything: names of users, @GROUP, and certificate:NAME, as for Prometheus."""
    tenant_users: dict[str, int] = {}
    """Uids by the names that a proxy or a certificate gives. Names that are not here are looked up on the collector's
    machine."""
    tenant_domain: str = ""
    """Is left out of names that end with @DOMAIN, before they are looked up."""
    gate_clients: tuple[str, ...] = ()
    """The clients that may ask /api/v1/drains, as the gate on each node does, and nothing else; listed as in
    trusted_proxies."""
    forget_after_seconds: Duration = 900.0
    """The time for which a job is shown after it has ended, or after an agent last reported a rank of it that ran."""
    max_drain_ratio: Share = 0.05
    """The largest share of the answering nodes that may be drained for failing at once, but always one; 0: none."""
    confirm_token_file: str = ""
    """A file with the secret by which operators prove who they are when they tell that a suspect was measured (`laggard
    confirm`, docs/tasks/exclude.md); empty: nobody can."""
    stacks_token_file: str = ""
    """A file with the secret that agents have as their stacks_token_file, too: with it the collector asks them for the
    stacks of slow and hung ranks, and an operator asks the collector (`laggard stacks`, docs/stacks.md); empty: nobody
    is asked."""
    exclude_seconds: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] = 12 * 3600.0
    """The time for which a node is left out of the next jobs (`laggard exclude`) after it was last named or confirmed,
    at most 604800. One with a critical finding is left out as long as that stands."""
    max_drains_per_hour: Number = 4
    """The number of nodes that are drained within an hour at most."""
    fleet_wide_ratio: Share = 0.01
    """A finding that more than this share of the answering nodes got within an hour, five at least, has one cause that
    they share: it is told as one thing, and drains nobody. So is one that more than `max_drain_ratio` have."""
    ring_token_file: str = ""
    """A file with the secret by which agents prove who they are when they ask whether a ring is due (`laggard
    agent --idle-rings`, docs/rings.md); empty: no ring is ever due."""
    ring_period_seconds: Duration = 86400.0
    """The time in which each idle node is measured once."""
    ring_nodes: Annotated[int, Meta(ge=3, le=32)] = 8
    """The number of nodes that measure one another, 3 to 32."""
    ring_ask_seconds: Duration = 30.0
    """The time between two questions of an idle node. A ring begins when all of its nodes have asked once more."""
    ring_port: Port = 19403
    """The port at which a ring's first node listens meanwhile."""
    prometheus: str = ""
    """A Prometheus that scrapes agents, as URL: jobs that no target reports are judged by the counters there."""
    prometheus_interval_seconds: Duration = 60.0
    """The time after which one look at Prometheus' jobs is followed by the next."""
    evaluators: str = ""
    """The name of the group of collectors that share the jobs of `prometheus`, the same for each of them; it needs a
    database of PostgreSQL as incidents_database, and no agents to scrape (docs/operate.md). Empty: this collector
    judges them all."""
    prometheus_bearer_token_file: str = ""
    """A file with the token to log in there with, read anew when it changes."""
    prometheus_basic_auth_file: str = ""
    """A file with USER:PASSWORD to log in there with, read anew when it changes."""
    prometheus_headers_file: str = ""
    """A file with lines `NAME: VALUE` that are sent there with each query, such as `X-Scope-OrgID: TENANT` for Mimir
    and Cortex; read anew when it changes."""
    prometheus_cluster: str = ""
    """Only jobs whose series have this label `cluster` are judged, where several clusters write into one store; empty:
    all jobs, but none that several of them have."""
    external_url: str = ""
    """The URL at which people's browsers reach this collector, such as one behind a proxy: alerts and kept pages
    then link to it; empty: alerts have paths alone."""
    prometheus_page: str = ""
    """The URL at which people's browsers reach Prometheus: the page links to graphs of a job, a rank and a node there;
    empty: no links."""
    grafana_page: str = ""
    """The URL at which people's browsers reach Grafana with laggard's dashboards (docs/dashboards.md); empty: no
    links."""
    incidents_database: str = INCIDENTS_DATABASE
    """The SQLite file that keeps incidents over restarts; empty: none. The folder of the default has to be made. Where
    LAGGARD_STATE_DIR is set, the default is incidents.sqlite in there. For several collectors that share incidents: the
    URL of a database of PostgreSQL, postgresql://HOST/NAME, without a password (docs/incidents.md); it needs
    `laggard[postgres]`."""
    incidents_database_file: str = ""
    """A file with such a URL in one line, in place of incidents_database: a secret, so that the password may be in it.
    Read at the start."""
    incidents_writer: str = ""
    """The name under which this collector writes such a database, the same after a restart and no other collector's;
    empty: the node's name and the port of listen_address."""
    incidents_max_bytes: Number = 64 << 20
    """The largest size of that file, or of the rows in that database. Beyond it, the oldest incidents of the user who
    has the most are dropped."""
    incidents_keep_seconds: Duration = 90 * 86400.0
    """The time for which an incident is kept after it was closed."""
    incident_quiet_seconds: Duration = 300.0
    """An incident is closed when its culprit has not been named for so long by verdicts that could have."""

    @property
    def shows_tenants_their_own(self) -> bool:
        """Whether users see their own jobs alone."""
        return bool(self.tenant_header or self.tenant_certificates)


def incidents_path(settings: CollectorSettings, environ: Mapping[str, str]) -> str:
    """The file that keeps incidents; empty for none. The default gives way to LAGGARD_STATE_DIR, so that a demo or a
    test on a machine with a collector leaves nothing in that one's file."""
    path, folder = settings.incidents_database, environ.get(ENV_STATE_DIR)
    return os.path.join(folder, os.path.basename(path)) if folder and path == INCIDENTS_DATABASE else path


def incidents_writer(settings: CollectorSettings, environ: Mapping[str, str]) -> str:
    """The name under which this collector writes a database that others write, too."""
    return settings.incidents_writer or f"{node_name(environ)}:{settings.listen_address.rpartition(':')[2]}"


_DEFAULT_TIMEOUT = CollectorSettings().timeout_seconds


def load_settings(
    config: str | None,
    targets: Sequence[str],
    listen_address: str | None,
    interval_seconds: float | None,
    web_config_file: str | None = None,
) -> CollectorSettings:
    """The settings in the file, each replaced by its flag where one was given. Raises UsageError where one is wrong."""
    settings = load(config, CollectorSettings) if config else CollectorSettings()
    if not targets:
        _refuse_repeated(settings.targets)
    settings = replaced(
        settings,
        targets=tuple(targets) or None,
        listen_address=listen_address,
        web_config_file=web_config_file,
        interval_seconds=interval_seconds,
    )
    settings = _with_database_of_file(_with_somebody_to_watch(settings))
    if settings.timeout_seconds > max(settings.interval_seconds, _DEFAULT_TIMEOUT):
        raise UsageError(
            f"timeout_seconds is {settings.timeout_seconds:g}, longer than interval_seconds, "
            f"{settings.interval_seconds:g}: one silent agent would hold up every round"
        )
    for problem in (*_problems_of_database(settings), *_problems_of_prometheus(settings)):
        raise UsageError(problem)
    return settings


def _with_somebody_to_watch(settings: CollectorSettings) -> CollectorSettings:
    """The settings without this machine's agent, which stands there by default, where agents are looked for."""
    looks_for_more = settings.target_names or settings.target_files or settings.target_slurm
    if (looks_for_more or settings.evaluators) and settings.targets is _THIS_MACHINE:  # left out: who writes it gets it
        return structs.replace(settings, targets=())
    if not settings.targets and not settings.prometheus and not looks_for_more:
        raise UsageError(
            "targets is empty: list the agents to watch, as HOST:PORT, say where to look for them (target_names, "
            "target_files, target_slurm), or leave the key out for this machine's"
        )
    return settings


def _with_database_of_file(settings: CollectorSettings) -> CollectorSettings:
    """The settings with the database that incidents_database_file names, but for the password."""
    path = settings.incidents_database_file
    if not path:
        return settings
    if settings.incidents_database != INCIDENTS_DATABASE:
        raise UsageError("incidents_database and incidents_database_file are both given: leave one of them out")
    return structs.replace(settings, incidents_database=read_url(path, "incidents_database_file").url)


def _problems_of_database(settings: CollectorSettings) -> Iterator[str]:
    path = settings.incidents_database
    folder = os.path.dirname(path)
    if is_database_url(path):
        if why := refusal(path):
            yield f"incidents_database {without_login(path)} {why}"
        if importlib.util.find_spec("psycopg") is None:
            yield "incidents_database is a URL, for which psycopg is needed: pip install 'laggard[postgres]'"
        if len(settings.incidents_writer) > 200 or not settings.incidents_writer.isprintable():
            yield "incidents_writer is longer than 200 characters, or holds one that is not printable"
    elif "://" in path:
        yield f"incidents_database is {without_login(path)}: give the path of a file, or postgresql://HOST/NAME"
    elif path and path != INCIDENTS_DATABASE and not os.path.isdir(folder or "."):
        yield f"incidents_database is {path}, and there is no folder {folder}: make it, or name another place"


_PAGES_OF_PROMETHEUS = ("graph", "query", "alerts", "targets", "metrics")
"""Their last parts (Prometheus' web/web.go); another path may be that of a proxy, or of a store such as Mimir."""


def _problems_of_prometheus(settings: CollectorSettings) -> Iterator[str]:
    if settings.prometheus and not settings.prometheus.startswith(("http://", "https://")):
        yield f"prometheus is {without_login(settings.prometheus)!r}: write http://HOST:PORT"
    if urlsplit(settings.prometheus).path.rstrip("/").rpartition("/")[2] in _PAGES_OF_PROMETHEUS:
        yield f"prometheus is {without_login(settings.prometheus)}, a page for people: write http://HOST:PORT"
    for name in ("external_url", "prometheus_page", "grafana_page"):
        page = getattr(settings, name)
        if page and not (page.startswith(("http://", "https://")) and page.isprintable() and " " not in page):
            yield f"{name} is no URL: give one as a browser takes it, https://HOST/PATH"
    name = settings.evaluators
    if not name:
        return
    if len(name) > 64 or not name.isprintable():
        yield "evaluators is longer than 64 characters, or holds one that is not printable"
    if not settings.prometheus:
        yield "evaluators is given without prometheus, whose jobs they share: give its URL"
    if not is_database_url(settings.incidents_database):
        yield "evaluators share what they judge in a database of PostgreSQL: give its URL as incidents_database"
    if settings.targets or settings.target_names or settings.target_files or settings.target_slurm:
        yield "evaluators judge by Prometheus alone: leave out targets and where to look for them"


def _refuse_repeated(targets: Sequence[str]) -> None:
    """Raises UsageError where the file lists an agent twice: most likely another one was meant."""
    seen: dict[str, str] = {}
    for text in targets:
        url = parse_target(text).url
        if url in seen:
            also = "" if seen[url] == text else f", as {without_login(seen[url])}"
            raise UsageError(f"targets has {without_login(text)} twice{also}: list each agent once")
        seen[url] = text
