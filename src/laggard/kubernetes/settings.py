"""The controller's configuration: a YAML file, with flags over it. Durations in seconds."""

from __future__ import annotations

from typing import Final, Literal

from laggard.kit.address import as_url, without_login
from laggard.kit.config import Settings, load, replaced
from laggard.kit.constants import COLLECTOR_PORT, CONTROLLER_PORT
from laggard.kit.errors import UsageError
from laggard.kit.limits import Duration, DurationOrZero, Number, Share

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
    interval_seconds: Duration = 15.0
    """The time from the end of one round to the start of the next."""
    timeout_seconds: Duration = 10.0
    """The time limit for one answer of the collector or the API server."""
    unknown_seconds: DurationOrZero = 60.0
    """The time for which an agent is silent before the node's condition becomes Unknown."""
    events: bool = True
    """True: events on the nodes say what becomes of condition and taint; `kubectl describe node` shows them."""
    taint: Literal["off", "dry-run", "on"] = "off"
    """The switch that gives nodes with a critical finding the taint laggard/unhealthy. `dry-run`: the log says which
    would."""
    taint_effect: Literal["NoSchedule", "PreferNoSchedule"] = "NoSchedule"
    """The effect of the taint. NoExecute, which would kill the jobs that run, is not offered."""
    failing_seconds: DurationOrZero = 120.0
    """The time for which a node fails without a break before it is tainted."""
    healthy_seconds: DurationOrZero = 600.0
    """The time for which it is healthy without a break before the taint is removed. What is unknown removes none."""
    max_tainted_ratio: Share = 0.05
    """The largest share of the answering nodes that may fail (one always may); where more fail, none is tainted: a
    fault of the checks, or of something that all share, is then likelier than so many broken machines. 0: none ever."""
    max_taints_per_hour: Number = 4
    """The number of nodes that are tainted within an hour at most."""
    min_answering_ratio: Share = 0.5
    """The least share of the agents that has to answer; where fewer answer, none is tainted."""
    api_server: str = ""
    """The API server, as URL. Where empty: the cluster's own, from KUBERNETES_SERVICE_HOST and _PORT."""
    token_file: str = f"{_SERVICE_ACCOUNT}/token"
    """The service account's token, read anew before it expires."""
    ca_file: str = f"{_SERVICE_ACCOUNT}/ca.crt"
    """The certificates that the API server's is checked against."""


def load_settings(
    config: str | None, listen_address: str | None, web_config_file: str | None = None, collector: str | None = None
) -> ControllerSettings:
    """The settings in the file, each replaced by its flag where one was given. Raises UsageError."""
    settings = load(config, ControllerSettings) if config else ControllerSettings()
    url = None if collector is None else as_url(collector, COLLECTOR_PORT)
    settings = replaced(settings, listen_address=listen_address, web_config_file=web_config_file, collector=url)
    for name in ("collector", "api_server"):
        text = getattr(settings, name)
        if (text or name == "collector") and not text.startswith(("http://", "https://")):
            raise UsageError(f"{name} is {without_login(text)!r}: write http://HOST:PORT")
    return settings
