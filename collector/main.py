"""`laggard collector`: scrapes the agents, names the culprit, shows it."""

from __future__ import annotations

import argparse
import glob
import os

from laggard.collector.database_file import read_url
from laggard.collector.discovery.discovery import Discovery
from laggard.collector.discovery.dns import DnsName
from laggard.collector.discovery.label_file import LabelFile
from laggard.collector.discovery.slurm import SlurmPartition
from laggard.collector.discovery.source import Place
from laggard.collector.discovery.target_file import TargetFiles
from laggard.collector.discovery.tree import Unusable
from laggard.collector.evaluators.evaluator import QUERY_SECONDS, Evaluator
from laggard.collector.evaluators.exchange import Place as EvaluatorPlace
from laggard.collector.prometheus.client import Prometheus
from laggard.collector.prometheus.login import Login
from laggard.collector.prometheus.watch import PrometheusWatch
from laggard.collector.scrape.targets import LOCAL_AGENT, parse_targets
from laggard.collector.scrape_loop import ScrapeLoop
from laggard.collector.serve import serve
from laggard.collector.settings import LISTEN_ADDRESS, CollectorSettings, incidents_writer, load_settings
from laggard.collector.tenants.viewer import Admission
from laggard.collector.web.stacks import stacks_tokens
from laggard.daemon import add_config_flag, add_listen_flag, add_log_flags, asked_about_settings, log_to_stderr
from laggard.errors import UsageError
from laggard.http.listen import bind, split_address
from laggard.http.tls import ServerTls, client_context
from laggard.locate.verdict import locate
from laggard.secret_files import read_token_file
from laggard.web_config import load_web_config


def configure(parser: argparse.ArgumentParser) -> None:
    add_config_flag(parser)
    parser.add_argument(
        "--target",
        dest="targets",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help=f"an agent to scrape, as HOST, HOST:PORT or URL; repeatable (default: {LOCAL_AGENT})",
    )
    add_listen_flag(parser, LISTEN_ADDRESS)
    parser.add_argument(
        "--interval",
        type=float,
        metavar="SECONDS",
        help="from the start of one round of scrapes to the next (default: 5)",
    )
    add_log_flags(parser)


def main(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT, then returns 0. Raises UsageError where it cannot start."""
    settings = load_settings(
        arguments.config, arguments.targets, arguments.listen_address, arguments.interval, arguments.web_config_file
    )
    discovery = _discovery(settings)
    split_address(settings.listen_address)  # raises where it is none
    tls = load_web_config(settings.web_config_file)
    client_context()  # raises where what it shows agents cannot be read
    _check_tenants(settings, tls)
    _check_tokens(settings)
    watch = _watch(settings)
    if asked_about_settings(arguments, settings, _unmatched(settings)):
        return 0
    _take_password(settings)
    with bind(settings.listen_address) as listener:
        log_to_stderr(arguments.log_level, arguments.log_format)
        tokens = stacks_tokens(settings)
        sent = tokens.sent if tokens else None
        serve(listener, ScrapeLoop(discovery, settings, locate, watch, sent), settings, tls)
    return 0


def _take_password(settings: CollectorSettings) -> None:
    """Has libpq find the password of incidents_database_file, whoever connects: no text of a URL has it then."""
    path = settings.incidents_database_file
    if path and (password := read_url(path, "incidents_database_file").password):
        os.environ["PGPASSWORD"] = password


def _check_tenants(settings: CollectorSettings, tls: ServerTls | None) -> None:
    """Raises UsageError where users could not be told apart as the settings say."""
    if Admission(settings).needs_certificates and not (tls and tls.verifies_clients):
        raise UsageError(
            "tenant_certificates and certificate:NAME need clients' certificates: give client_ca_file and "
            "client_auth_type in the file of web_config_file"
        )


def _check_tokens(settings: CollectorSettings) -> None:
    """Raises UsageError where a secret cannot be read, or is for every user to read."""
    for name in ("ring_token_file", "confirm_token_file", "stacks_token_file"):
        if path := getattr(settings, name):
            read_token_file(path, name)


def _unmatched(settings: CollectorSettings) -> list[str]:
    """A line for each of target_files that no file matches yet: it may come later."""
    return [
        f"target_files: no file is {pattern} now, so it tells of no agent until there is one"
        for pattern in settings.target_files
        if not glob.glob(pattern)
    ]


def _discovery(settings: CollectorSettings) -> Discovery:
    """Raises UsageError where a target or name cannot be read, or the file of labels; a file of targets may be
    missing yet."""
    places: list[Place] = [*map(DnsName, settings.target_names), *map(TargetFiles, settings.target_files)]
    places += [SlurmPartition(text, settings.sinfo) for text in settings.target_slurm]
    listed = parse_targets(settings.targets)
    labels = _label_file(settings.node_labels_file)
    return Discovery(listed, places, settings.max_targets, settings.forget_after_seconds, labels)


def _label_file(path: str) -> LabelFile | None:
    """Raises UsageError where it cannot be used now; later what it said last holds."""
    try:
        return LabelFile(path) if path else None
    except Unusable as error:
        raise UsageError(f"node_labels_file {path} cannot be used: {error}") from None


def _watch(settings: CollectorSettings) -> PrometheusWatch | Evaluator | None:
    if not settings.prometheus:
        return None
    login = Login(
        settings.prometheus_bearer_token_file, settings.prometheus_basic_auth_file, settings.prometheus_headers_file
    )
    limit = QUERY_SECONDS if settings.evaluators else None
    prometheus = Prometheus(settings.prometheus, login, settings.prometheus_cluster, limit)
    seconds = settings.prometheus_interval_seconds
    if not settings.evaluators:
        return PrometheusWatch(prometheus, seconds)
    name = incidents_writer(settings, os.environ)
    place = EvaluatorPlace(settings.incidents_database, settings.evaluators, name)
    return Evaluator(prometheus, place, seconds, settings.max_jobs)
