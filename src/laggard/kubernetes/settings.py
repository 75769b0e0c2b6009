"""The controller's configuration: a YAML file, with flags over it. Durations in seconds."""

from __future__ import annotations

import math
from typing import Final, Literal

from msgspec import structs

from laggard.address import as_url, without_login
from laggard.config import Settings, load
from laggard.constants import COLLECTOR_PORT, CONTROLLER_PORT
from laggard.errors import UsageError

LISTEN_ADDRESS: Final = f":{CONTROLLER_PORT}"
_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


class ControllerSettings(Settings, frozen=True):
    collector: str = "http://laggard-collector:19401"
    """The collector whose view of the nodes is written to them, as URL."""
    listen_address: str = LISTEN_ADDRESS
    """The address at which /metrics and /-/healthy are served, as HOST:PORT; `:PORT` is every interface, port 0 any
    free one."""
    web_config_file: str = ""
    """A file that asks for TLS, and for clients' certificates, in the format of Prometheus' exporters (docs/tls.md);
    empty: plain HTTP."""
    interval_seconds: float = 15.0
    """The time from the end of one round to the start of the next."""
    timeout_seconds: float = 10.0
    """The time limit for one answer of the collector or the API server."""
    unknown_seconds: float = 60.0
    """The time for which an agent is silent before the node's condition becomes Unknown."""
    events: bool = True
    """True: events on the nodes say what becomes of condition and taint; `kubectl describe node` shows them."""
    taint: Literal["off", "dry-run", "on"] = "off"
    """The switch that gives nodes with a critical finding the taint laggard/unhealthy. `dry-run`: the log says which
    would."""
    taint_effect: Literal["NoSchedule", "PreferNoSchedule"] = "NoSchedule"
    """The effect of the taint. NoExecute, which would kill the jobs that run, is not offered."""
    failing_seconds: float = 120.0
    """The time for which a node fails without a break before it is tainted."""
    healthy_seconds: float = 600.0
    """The time for which it is healthy without a break before the taint is removed. What is unknown removes none."""
    max_tainted_ratio: float = 0.05
    """The largest share of the answering nodes that may fail (one always may); where more fail, none is tainted: a
    fault of the checks, or of something that all share, is then likelier than so many broken machines. 0: none ever."""
    max_taints_per_hour: int = 4
    """The number of nodes that are tainted within an hour at most."""
    min_answering_ratio: float = 0.5
    """The least share of the agents that has to answer; where fewer answer, none is tainted."""
    api_server: str = ""
    """The API server, as URL. Where empty: the cluster's own, from KUBERNETES_SERVICE_HOST and _PORT."""
    token_file: str = f"{_SERVICE_ACCOUNT}/token"
    """The service account's token, read anew before it expires."""
    ca_file: str = f"{_SERVICE_ACCOUNT}/ca.crt"
    """The certificates that the API server's is checked against."""


_POSITIVE = (
    "interval_seconds",
    "timeout_seconds",
    "max_taints_per_hour",
)
_NOT_NEGATIVE = ("unknown_seconds", "failing_seconds", "healthy_seconds")
_SHARES = ("max_tainted_ratio", "min_answering_ratio")


def load_settings(
    config: str | None, listen_address: str | None, web_config_file: str | None = None, collector: str | None = None
) -> ControllerSettings:
    """The settings in the file, each replaced by its flag where one was given. Raises UsageError."""
    settings = load(config, ControllerSettings) if config else ControllerSettings()
    if listen_address is not None:
        settings = structs.replace(settings, listen_address=listen_address)
    if web_config_file is not None:
        settings = structs.replace(settings, web_config_file=web_config_file)
    if collector is not None:
        settings = structs.replace(settings, collector=as_url(collector, COLLECTOR_PORT))
    for name in (*_POSITIVE, *_NOT_NEGATIVE):
        value = getattr(settings, name)
        if not (math.isfinite(value) and value >= 0) or (name in _POSITIVE and not value):
            raise UsageError(f"{name} is {value}: give a number above 0")
    for name in _SHARES:
        if not 0 <= getattr(settings, name) <= 1:
            raise UsageError(f"{name} is {getattr(settings, name)}: give a share from 0 to 1")
    for name in ("collector", "api_server"):
        text = getattr(settings, name)
        if (text or name == "collector") and not text.startswith(("http://", "https://")):
            raise UsageError(f"{name} is {without_login(text)!r}: write http://HOST:PORT")
    return settings
