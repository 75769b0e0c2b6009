"""TLS as the chart asks for it: real daemons run with what is rendered.

The certificates are as cert-manager would make them; who probes shows none, as the kubelet."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from support.chart import NO_HELM, rendered
from support.daemons import Daemon
from support.paths import REPOSITORY
from support.waiting import wait_for

from laggard.kit.tls import client_context
from laggard.kubernetes.api_server import Exchange

MOUNTED = "/etc/laggard-tls"
SECONDS = 120.0
SECRETS = ("agent", "collector", "controller", "prometheus")


@pytest.fixture
def items() -> list[dict[str, Any]]:
    pytest.importorskip("helm_python", reason=NO_HELM)
    return rendered({"tls": {"enabled": True}, "podMonitor": True})


def certificates() -> dict[str, Any]:
    """The names in the certificates that cert-manager would make, by secret."""
    text = (REPOSITORY / "docs" / "examples" / "cert-manager.yaml").read_text()
    found = [it["spec"] for it in yaml.safe_load_all(text) if it["kind"] == "Certificate"]
    return {it["secretName"]: it["dnsNames"] for it in found if "dnsNames" in it}


class Site:
    """A folder that has what the pods have mounted: secrets, and the rendered configuration with paths of here."""

    def __init__(self, items: list[dict[str, Any]], folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        for secret, names in certificates().items():
            self.issue(secret, *names)
        self.files = {it["metadata"]["name"]: it["data"] for it in items if it["kind"] == "ConfigMap"}
        kinds = ("DaemonSet", "Deployment")
        self.pods = {it["metadata"]["name"]: it["spec"]["template"]["spec"] for it in items if it["kind"] in kinds}

    def issue(self, secret: str, *names: str) -> None:
        path = self.folder / secret
        path.mkdir(exist_ok=True)
        leaf = self.authority.issue_cert(*names)
        leaf.private_key_pem.write_to_path(path / "tls.key")
        leaf.cert_chain_pems[0].write_to_path(path / "tls.crt")
        self.authority.cert_pem.write_to_path(path / "ca.crt")

    def container(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.pods[name]["containers"][0]
        return found

    def secret(self, name: str) -> str:
        """The folder of the secret that this pod mounts."""
        volumes = {it["name"]: it for it in self.pods[name]["volumes"]}
        (mount,) = [it for it in self.container(name)["volumeMounts"] if it["mountPath"] == MOUNTED]
        return str(self.folder / volumes[mount["name"]]["secret"]["secretName"])

    def command(self, name: str, **changes: Any) -> list[str]:
        """The container's command with its files in place; `changes`: keys of its configuration."""
        etc = self.folder / name
        etc.mkdir()
        for file, text in self.files[name].items():
            here = text.replace(MOUNTED, self.secret(name)).replace("/etc/laggard/", f"{etc}/")
            changed = changes if file not in ("web.yaml", "profile.yaml") else {}
            (etc / file).write_text(yaml.safe_dump({**yaml.safe_load(here), **changed}))
        return [word.replace("/etc/laggard/", f"{etc}/") for word in self.container(name)["args"]]

    def environment(self, name: str) -> dict[str, str]:
        found = {it["name"]: it.get("value", "") for it in self.container(name).get("env", ())}
        return {key: text.replace(MOUNTED, self.secret(name)) for key, text in found.items() if "TLS" in key}

    def client(self, secret: str = "") -> ssl.SSLContext:
        """One that shows the certificate of a secret; as the kubelet: none, and it checks none."""
        context = ssl.create_default_context(cafile=str(self.folder / "laggard-agent-tls" / "ca.crt"))
        context.check_hostname = False
        if secret:
            context.load_cert_chain(self.folder / secret / "tls.crt", self.folder / secret / "tls.key")
        else:
            context.verify_mode = ssl.CERT_NONE
        return context


@pytest.fixture
def site(items: list[dict[str, Any]], tmp_path: Path) -> Site:
    return Site(items, tmp_path)


Start = Callable[..., str]


@pytest.fixture
def start(site: Site, tmp_path: Path) -> Iterator[Start]:
    """Starts a daemon with what is rendered for it. Returns its URL."""
    started: list[Daemon] = []

    def start(name: str, *more: str, **changes: Any) -> str:
        environ = {**site.environment(name), "LAGGARD_STATE_DIR": str(tmp_path)}
        started.append(Daemon(tmp_path / f"{name}.log", (*site.command(name, **changes), *more), environ))
        return started[-1].url

    yield start
    for daemon in started:
        daemon.stop()


def get(url: str, tls: ssl.SSLContext) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS, context=tls) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def probes(container: dict[str, Any]) -> list[dict[str, Any]]:
    return [it["httpGet"] for key, it in container.items() if key.endswith("Probe")]


def test_every_probe_and_every_scrape_is_by_https(site: Site, items: list[dict[str, Any]]) -> None:
    for name in site.pods:
        assert {it["scheme"] for it in probes(site.container(name))} == {"HTTPS"}
    monitors = [it["spec"] for it in items if it["kind"] == "PodMonitor"]
    assert len(monitors) == len(site.pods)
    for spec in monitors:
        (endpoint,) = spec["podMetricsEndpoints"]
        daemon = spec["selector"]["matchLabels"]["app.kubernetes.io/name"]
        assert endpoint["scheme"] == "https" and daemon in site.pods
        assert endpoint["tlsConfig"]["serverName"] in certificates()[f"{daemon}-tls"]
        assert endpoint["tlsConfig"]["keySecret"] == {"name": "laggard-prometheus-tls", "key": "tls.key"}


def test_the_certificates_of_the_example_are_those_that_are_mounted(site: Site) -> None:
    assert {Path(site.secret(name)).name for name in site.pods} <= set(certificates())
    assert set(certificates()) == {f"laggard-{it}-tls" for it in SECRETS}
    reader = site.pods["laggard-agent"]["containers"][1]
    assert MOUNTED not in {it["mountPath"] for it in reader["volumeMounts"]}, "who has the powers holds no key"


@pytest.mark.slow
def test_daemons_speak_tls_with_what_is_rendered(site: Site, start: Start, tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    agent = start("laggard-agent", "--rank-dir", str(tmp_path / "ranks"), node="n0")
    kubelet, prometheus = site.client(), site.client("laggard-prometheus-tls")
    for probe in probes(site.container("laggard-agent")):
        wait_for(lambda probe=probe: get(f"{agent}{probe['path']}", kubelet)[0] == 200)
    assert get(f"{agent}/metrics", kubelet)[0] == get(f"{agent}/api/v1/ranks", kubelet)[0] == 403
    assert get(f"{agent}/metrics", site.client("laggard-controller-tls"))[0] == 403, (
        "an authority's name that is not let in"
    )
    assert "laggard_build_info" in get(f"{agent}/metrics", prometheus)[1]
    port = agent.rpartition(":")[2]
    collector = start("laggard-collector", target_names=[f"https://localhost:{port}"], incidents_database="")
    wait_for(lambda: '"state":"up"' in get(f"{collector}/api/v1/nodes", kubelet)[1])
    for probe in probes(site.container("laggard-collector")):
        wait_for(lambda probe=probe: get(f"{collector}{probe['path']}", kubelet)[0] == 200)
    assert "laggard_build_info" in get(f"{collector}/metrics", prometheus)[1]
    site.issue("laggard-agent-tls", "elsewhere.example.org")
    wait_for(lambda: "Hostname mismatch" in get(f"{collector}/api/v1/nodes", kubelet)[1])


@pytest.mark.slow
def test_the_controller_takes_up_authorities_that_were_replaced(
    site: Site, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = start("laggard-collector", target_names=["localhost:9"], incidents_database="")
    url = url.replace("127.0.0.1", "localhost") + "/-/healthy"
    for key, text in site.environment("laggard-controller").items():
        monkeypatch.setenv(key, text)
    authorities = Path(site.secret("laggard-controller")) / "ca.crt"
    exchange = Exchange(SECONDS, client_context)
    assert exchange.send("GET", url).status == 200
    trustme.CA().cert_pem.write_to_path(authorities)
    assert exchange.send("GET", url).why.startswith("its certificate is not accepted: ")
    site.issue("laggard-controller-tls", "laggard-controller.laggard.svc")
    assert exchange.send("GET", url).status == 200
    authorities.write_text("half a certificate")
    assert exchange.send("GET", url).status == 200, "what was said before holds"
    exchange.close()
