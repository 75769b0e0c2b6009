"""Secrets are planted wherever a user may have some, and the parts run for real on one job: then no file, log, answer
or word of theirs holds one."""

import base64
import contextlib
import gzip
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route
from support.certificates import SECONDS, Files, Start, client
from support.fronts import served_by
from support.paths import TESTS, TRAINING
from support.planted import content_of, new_secret, places_of
from support.ports import free_port, free_ports
from support.waiting import wait_for
from support.warm import Warm, WarmProcess

from laggard.cli import main
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.api import Api
from laggard.kit.tls import ENV_CA_FILE, ENV_CERT_FILE, ENV_KEY_FILE

JOB, INTERFACE = "shownjob4711", "shownif0"
"""No secrets: what is found of these shows that the search looks into each kind of output."""
VARIABLES = (
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "HF_TOKEN",
    "NVIDIA_API_KEY",
    "GRAFANA_TOKEN",
    "SLURM_JWT",
    "LAGGARD_RING_TOKEN",
    "NCCL_COMM_ID",
    "NCCL_SOCKET_MAGIC",
    "NCCL_SESSION_PASSWORD",
)
AGENT = ("/", "/metrics", "/-/ready", "/api/v1/report", "/api/v1/ranks", "/api/v1/collectives?owner=0&job=" + JOB)


class Scene:
    """One node with a job, its agent and a collector. `seen` gets all that is written or said; `planted` is where users
    keep their secrets, and is not searched."""

    def __init__(
        self, folder: Path, files: Files, start: Start, warm: Warm, rank_dir: Path, prometheus: tuple[str, set[str]]
    ) -> None:
        self.seen, self.planted, self.rank_dir = folder / "seen", folder / "planted", rank_dir
        self.files, self.start, self.warm = files, start, warm
        self.prometheus, self.logins = prometheus
        self.ranks: list[WarmProcess] = []
        for each in (self.seen, self.planted):
            each.mkdir()
        self.secrets = {name: new_secret() for name in (*VARIABLES, "proxy", "argument", "url", "token", "password")}
        self.secrets |= {"ring": new_secret(), "conf": new_secret(), "comment": new_secret()}
        for name in ("server", "client"):
            self.secrets[f"{name}'s key"] = (files.folder / f"{name}.key").read_text().splitlines()[2]
        self.environ = {
            **{name: self.secrets[name] for name in VARIABLES},
            "HTTPS_PROXY": f"http://ada:{self.secrets['proxy']}@proxy.example:3128",
            "NO_PROXY": "127.0.0.1",
            "NCCL_SOCKET_IFNAME": INTERFACE,
            "NCCL_CONF_FILE": self.plant(
                "any.conf",
                f"# {self.secrets['comment']}\nNCCL_OWN_PASSWORD={self.secrets['conf']}\nmachine github.com "
                f"password {self.secrets['password']}\n",
            ),
            "LAGGARD_STATE_DIR": str(self.seen / "state"),
            ENV_CA_FILE: str(files.folder / "ca.pem"),
            ENV_CERT_FILE: str(files.folder / "client.pem"),
            ENV_KEY_FILE: str(files.folder / "client.key"),
        }
        self.with_login = f"http://ada:{self.secrets['url']}@127.0.0.1:9"

    def plant(self, name: str, text: str) -> str:
        (self.planted / name).write_text(text)
        return str(self.planted / name)

    def keep(self, name: str, text: str) -> None:
        path = self.seen / "said" / name
        path.parent.mkdir(exist_ok=True)
        assert not path.exists(), name
        path.write_text(text)

    def daemons(self) -> None:
        secure = ("--web.config.file", self.files.config(client_ca_file="ca.pem", client_auth_type=REQUIRED))
        debug = ("--log.level", "debug")
        own = ("--rank-dir", str(self.rank_dir))
        self.agent = self.start("agent", *secure, *debug, *own, environ=self.environ)
        settings = {
            "targets": [self.agent.url],
            "target_files": [self.plant("agents.yml", json.dumps([{"targets": [f"{self.with_login}1"]}]))],
            "interval_seconds": 0.5,
            "ring_token_file": self.plant("ring", self.secrets["ring"]),
            "prometheus": self.prometheus,
            "prometheus_interval_seconds": 1,
            "prometheus_bearer_token_file": self.plant("bearer", self.secrets["token"]),
            "incidents_database": str(self.seen / "incidents.sqlite"),
        }
        self.settings = self.plant("collector.json", json.dumps(settings))
        words = ("collector", "--config", self.settings, *secure, *debug)
        self.collector = self.start(*words, environ=self.environ)
        self.controller_settings = self.plant(
            "controller.json",
            json.dumps(
                {
                    "collector": self.with_login,
                    "api_server": self.with_login,
                    "token_file": self.plant("service-account", self.secrets["token"]),
                    "ca_file": str(self.files.folder / "ca.pem"),
                    "interval_seconds": 0.5,
                }
            ),
        )
        words = ("kubernetes", "controller", "--config", self.controller_settings, *debug)
        self.controller = self.start(*words, environ=self.environ)

    def train(self) -> list[WarmProcess]:
        common = {
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
            "LAGGARD_RANK_DIR": str(self.rank_dir),
            "LAGGARD_RECORD_DIR": str(self.seen / "recording"),
            "LAGGARD_EXPORT": f"127.0.0.1:{self.export}",
            "LAGGARD_JOB_ID": JOB,
        }
        script = ["-m", "laggard", "run", TRAINING / "all_reduce_loop.py", "1000000"]
        words = [*script, "--api-key", self.secrets["argument"]]
        ranks = [{**self.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
        self.ranks = [self.warm.start(words, environment) for environment in ranks]
        return self.ranks

    @property
    def export(self) -> int:
        self._export = getattr(self, "_export", 0) or max(free_ports(2))
        return self._export

    def get(self, url: str) -> str:
        context = client(self.files, "client") if url.startswith("https:") else None
        try:
            with urllib.request.urlopen(url, timeout=SECONDS, context=context) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return str(error.read().decode())

    def ask_everything(self, when: str) -> None:
        """Keeps what each path of agent, collector, controller and, while it runs, of a rank answers."""
        routes: list[Route] = Api(None, CollectorSettings()).routes()  # type: ignore[arg-type]
        documents = [route.path for route in routes if "POST" not in (route.methods or ())]
        asked = {f"{self.agent.url}{path}": f"agent-{path}" for path in AGENT}
        for path in ("/", "/metrics", "/-/ready", *documents):
            asked[f"{self.collector.url}{path}"] = f"collector-{path}"
        asked[f"{self.controller.url}/metrics"] = "controller-metrics"
        if when == "running":
            asked[f"http://127.0.0.1:{self.export}/metrics"] = "rank-metrics"
        for url, name in asked.items():
            self.keep(f"{when}-{name.replace('/', '_')}", self.get(url))

    def until(self, condition: Callable[[], object]) -> None:
        wait_for(condition, self.told)

    def told(self) -> str:
        """What the ranks and the daemons said, for who has to find out why a test waits in vain."""
        logs = {path.name: content_of(path)[-3000:].decode(errors="replace") for path in self.seen.parent.glob("*.log")}
        for rank in self.ranks:
            logs[f"rank {rank.pid}, status {rank.poll()}"] = rank.printed()[-3000:]
        for path in AGENT[-2:]:
            logs[path] = self.get(f"{self.agent.url}{path}")[:3000]
        return "\n".join(f"--- {name}\n{text}" for name, text in logs.items())


REQUIRED = "RequireAndVerifyClientCert"


@pytest.fixture
def scene(
    tmp_path: Path, files: Files, start: Start, warm_torch: Warm, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    """The ranks' directory is where the probe for NCCL's variables knows ranks by."""
    rank_dir = Path("/dev/shm/laggard") / f"secrets-{os.getpid()}"
    made = not rank_dir.parent.exists()
    rank_dir.mkdir(parents=True)
    (tmp_path / "tls").mkdir()
    warm_torch.run(["-c", "pass"])  # the server, which other tests share, starts without what is planted
    logins: set[str] = set()

    def refuse(path: str, body: bytes, headers: Any) -> tuple[int, bytes]:
        """As a Prometheus that knows nobody; keeps how clients log in."""
        logins.add(headers.get("Authorization", ""))
        return 401, b""

    with served_by(refuse) as prometheus:
        built = Scene(tmp_path, files, start, warm_torch, rank_dir, (prometheus, logins))
        for name, value in built.environ.items():
            monkeypatch.setenv(name, value)
        yield built
    shutil.rmtree(rank_dir)
    if made:
        with contextlib.suppress(OSError):
            rank_dir.parent.rmdir()


@pytest.mark.slow
def test_no_secret_is_in_anything_that_laggard_writes_or_says(
    scene: Scene, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scene.daemons()
    ranks = scene.train()
    location = f"{scene.collector.url}/api/v1/location?fresh=1"
    scene.until(lambda: (json.loads(scene.get(location))["window"]["last_step"] or 0) > 15)
    scene.ask_everything("running")
    run(scene, capfd, "healthcheck", "--format", "json", "--no-agent")
    run(scene, capfd, "record", str(scene.seen / "machine"))
    ranks[1].kill()
    scene.until(lambda: JOB in scene.get(f"{scene.collector.url}/api/v1/incidents"))
    ranks[0].wait(SECONDS)
    scene.keep("ranks", "".join(text for rank in ranks for text in rank.communicate()))
    scene.ask_everything("over")
    idle_rings(scene)
    for words in commands(scene):
        run(scene, capfd, *words)
    for path in (*tmp_path.glob("*.log"),):
        shutil.copy(path, scene.seen)

    shown = places_of({"job": JOB, "interface": INTERFACE}, scene.seen, scene.rank_dir)
    for place in ("incidents.sqlite", "locate.html", "held/job.jsonl", "recording/", "machine/", "study.db", ".rank"):
        assert any(place in each for each in shown["job"] | shown["interface"]), f"{place} is not searched: {shown}"
    for place in (
        "agent-_metrics",
        "agent-_api_v1_ranks",
        "collector-_metrics",
        "collector-_api_v1_location",
        "rank-metrics",
    ):
        assert any(place in each for each in shown["job"]), f"{place} is not searched"
    logins = {"Bearer " + scene.secrets["token"]}
    assert logins < scene.logins, "both ways to log in were taken"
    leaks = {name: places for name, places in places_of(scene.secrets, scene.seen, scene.rank_dir).items() if places}
    assert not leaks, leaks


def commands(scene: Scene) -> list[tuple[str, ...]]:
    collector, login, seen = scene.collector.url, scene.with_login, scene.seen
    basic = scene.plant("basic", f"ada:{scene.secrets['password']}")
    environment = scene.plant("env.txt", "".join(f"{name}={value}\n" for name, value in scene.environ.items()))
    tuned = TESTS / "support" / "nccl_tests.py"
    trial = f"{shlex.quote(sys.executable)} -S -E {shlex.quote(str(tuned))} {{test}} -b {{bytes}} -e {{bytes}}"
    study = ("--study", str(seen / "study.db"), "--trials", "24", "--html", str(seen / "tune.html"))
    return [
        ("locate", "--collector", collector, "--record", str(seen / "held"), "--html", str(seen / "locate.html")),
        ("locate", "--collector", collector, "--format", "json"),
        ("locate", "--trace", str(seen / "recording"), "--html", str(seen / "trace.html")),
        ("locate", "--prometheus", scene.prometheus, "--basic-auth-file", basic),
        ("top", "--collector", collector, "--once"),
        ("incidents", "--collector", collector),
        ("incidents", "--database", str(seen / "incidents.sqlite"), "--format", "json"),
        ("recommend", "--collector", collector, "--format", "json"),
        ("recommend", environment, str(seen / "recording"), "--write", str(seen / "recommended")),
        ("diagnose", environment, "--format", "json"),
        ("tune", "nccl", "--command", trial, *study, "--write", str(seen / "tuned"), "--format", "json"),
        ("healthcheck", "--gate", "report-only", "--check-gate", "--collector", login, "--no-agent", "--verbose"),
        ("healthcheck", "--gate", "enforce", "--drain", "--collector", login, "--scontrol", "/bin/false"),
        ("collector", "--config", scene.settings, "--dump-config"),
        ("kubernetes", "controller", "--config", scene.controller_settings, "--dump-config"),
        ("dashboards", "push", login),
        ("dashboards", "push", "http://127.0.0.1:9"),
        *((name, "--collector", login) for name in ("locate", "top", "incidents", "recommend")),
        ("locate", "--prometheus", login),
        ("locate", "--prometheus", f"ftp://127.0.0.1/?token={scene.secrets['url']}"),
        ("collector", "--target", login),
        ("agent", "--idle-rings", "--collector", login.replace("http", "ftp")),
    ]


def run(scene: Scene, capfd: pytest.CaptureFixture[str], *words: str) -> None:
    """Keeps what `laggard WORDS` says, whatever comes of it."""
    capfd.readouterr()
    assert main(words) in (0, 1, 2, 64)
    said = capfd.readouterr()
    number = len(list((scene.seen / "said").iterdir()))
    assert said.out or said.err, words
    scene.keep(f"{number}-{words[0]}", said.out + said.err)


def idle_rings(scene: Scene) -> None:
    """It proves to the collector that it knows the token."""
    user = {"user": "nobody"} if os.geteuid() == 0 else {}
    settings = {"collector": scene.collector.url, "token_file": str(scene.planted / "ring"), "node": "n0", **user}
    path = scene.plant("idle-rings.json", json.dumps({**settings, "rank_dir": str(scene.seen)}))
    command = [sys.executable, "-m", "laggard", "agent", "--idle-rings", "--config", path, "--log.level", "debug"]
    with (scene.seen / "idle-rings.log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            scene.until(lambda: "ring is due" in (scene.seen / "idle-rings.log").read_text().partition("whether")[2])
        finally:
            process.terminate()


def test_the_search_finds_a_secret_in_whatever_form(tmp_path: Path) -> None:
    secret = new_secret()
    login = f"ada:{secret}".encode()
    (tmp_path / "plain").write_text(f"api_key={secret}&")
    (tmp_path / "basic").write_bytes(base64.b64encode(login))
    (tmp_path / "packed").write_bytes(gzip.compress(login))
    (tmp_path / "digits").write_text(login.hex())
    (tmp_path / secret).touch()
    (tmp_path / "link").symlink_to(secret)
    with contextlib.closing(sqlite3.connect(tmp_path / "rows")) as database, database:
        database.execute("CREATE TABLE kept (text)")
        database.execute("INSERT INTO kept VALUES (?)", ("x" * 4090 + secret,))
    (tmp_path / "nothing").write_text(new_secret())
    found = {"plain", "basic", "packed", "digits", secret, "link", "rows"}
    assert places_of({"it": secret}, tmp_path) == {"it": found}
