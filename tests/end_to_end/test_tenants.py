"""Two users' jobs, a collector that asks who asks, and nginx in front of it as docs/tenants.md has it: no answer to one
user holds a name of the other's.

The agents of the shared nodes are stand-ins: they report what takes other users' processes on real hardware, and a
finding of every code. A real agent with a real rank of each user is beside them, where the tests run as root.
"""

import base64
import json
import os
import re
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from msgspec import structs
from support.agents import IDENTITY, LANES, RankProcess, let_others_enter
from support.certificates import SECONDS, Files, client
from support.collectors import FakeAgent, Make, going_on, ranks_document
from support.daemons import Daemon
from support.paths import REPOSITORY
from support.ports import free_port
from support.rows import rows

from laggard.catalogue.findings import all_types, finding_type
from laggard.cli import main
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.app import all_routes
from laggard.collector.web.page_html import PAGE_DIR
from laggard.collector.web.tenants import GATE, OPEN, OPERATOR, TENANT
from laggard.kit.tls import ENV_CA_FILE, ENV_CERT_FILE, ENV_KEY_FILE
from laggard.model import CpuNeighbour, Finding, Fix, ProbeResult, Report, Severity, Verdict
from laggard.wire.ranks import CpuWait, RanksDocument, RejectedFiles

ADA, BOB = 61001, 61002
PAGE = REPOSITORY / "docs" / "tenants.md"
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
PASSWORDS = {"ada": "ada-logs-in", "bob": "bob-logs-in", "ops": "ops-logs-in", "eve": "eve-logs-in"}
BOBS = {
    "job": "bobjob7731",
    "second job": "bobsecond7732",
    "uid": str(BOB),
    "script": "bobscript7733",
    "pid": "4177341",
    "neighbour's pid": "4177351",
    "command": "bobcmd7736",
    "node": "bobnode7737",
    "rejected file": "bobfile7738",
    "words of a finding": "bobwords7739",
    "device of a finding": "bobdevice7740",
}
"""What must be in no answer to ada; `words` and `device` are in what agents say of bob's jobs, processes and paths."""
ROUTES = {it.path for it in all_routes(None, CollectorSettings())}  # type: ignore[arg-type]
POSTED = {"/api/v1/rings/due", "/api/v1/confirm", "/api/v1/stacks/ask"}
"""Routes that answer POST alone."""

PATHS = {"/page/{name}": "/page/page.js", "/findings/{code}": "/findings/DISK_FULL",
         "/runbooks/{alert}": "/runbooks/LaggardRankHung", "/api/v1/history": "/api/v1/history?node=n0"}  # fmt: skip
"""How routes are asked that have parts, or that are asked for something."""


def rank_documents(node: str, job: str, owner: int, hog: CpuNeighbour, **changes: Any) -> list[Any]:
    """Two ranks on the node, of which the second is slow: its threads wait behind `hog`."""
    document = Make.node(node, [0, 1], slow=1, world_size=2, job_id=job, owner=owner, **changes)
    calm, held = CpuWait(10.0, 9.0, 0.2, 0.0), CpuWait(10.0, 3.0, 6.5, 0.0, 0.0, (hog,))
    return [structs.replace(row, cpu_wait=held if row.rank == 1 else calm) for row in document.ranks]


def everything_that_can_be_found(node: str) -> Report:
    """A finding of each code; what the code's page says may name others does."""

    def found(code: str) -> Finding:
        shown = finding_type(code).shown
        own = shown == "whole"
        device = "gpu0" if own or shown == "device" else BOBS["device of a finding"]
        words = f"{code.lower()} was found" if own else f"{code} {BOBS['words of a finding']}"
        owner = {"owner": BOB} if shown == "owner" else {}
        return Finding(code, Severity.WARNING, device, words, {"said": words, **owner}, Fix(words, (words,)), "doc")

    findings = tuple(found(it.code) for it in all_types())
    return Report(Verdict.FAIL, node, 0.1, (ProbeResult("all", Verdict.FAIL, "", 0.1),), findings, {})


def shared_node() -> RanksDocument:
    """n0, where both have ranks; bob's process runs on the core of ada's, and the other way round."""
    bobs = CpuNeighbour(int(BOBS["neighbour's pid"]), BOB, 4.1, BOBS["command"])
    adas = CpuNeighbour(4100001, ADA, 4.1)
    facts = {"script": BOBS["script"], "started": 1.7e9}
    mine = rank_documents("n0", "adajob", ADA, bobs, facts={"script": "adascript", "started": 1.7e9})
    theirs = rank_documents("n0", BOBS["job"], BOB, adas, facts=facts, pid=int(BOBS["pid"]), gpu="bobgpu7741")
    own = Finding("TCP_FALLBACK", Severity.CRITICAL, "job adajob", "adas own words", {"owner": ADA}, Fix("f"), "doc")
    other = structs.replace(
        own, device=f"job {BOBS['job']}", summary=BOBS["words of a finding"], evidence={"owner": BOB}
    )
    unknown = structs.replace(other, evidence={})
    rejected = (RejectedFiles(BOBS["rejected file"], 1, BOBS["rejected file"]),)
    return ranks_document("n0", [*mine, *theirs], findings=(own, other, unknown), ignored=rejected)


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


class Site:
    """The collector, and nginx in front of it. `eve` may log in there, and is no user of the cluster."""

    def __init__(self, folder: Path, agents: list[str]) -> None:
        self.folder, self.files = folder, Files.make(folder)
        self._contexts: dict[str, ssl.SSLContext] = {}
        for name in ("proxy", "prometheus", "n1.nodes"):
            self.files.write(name, self.files.authority.issue_cert(f"{name}.example.org"))
        self.files.write("ada", self.files.authority.issue_cert("ada@example.org", common_name="ada"))
        web = self.files.config(client_ca_file="ca.pem", client_auth_type="VerifyClientCertIfGiven")
        (documented,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
        settings = yaml.safe_load(documented)
        settings |= {
            "targets": agents,
            "target_files": [str(folder / BOBS["words of a finding"])],
            "interval_seconds": 0.5,
            "web_config_file": web,
            "incidents_database": str(folder / "incidents.sqlite"),
            "operators": ["ops", *settings["operators"]],
            "tenant_users": {"ada": ADA, "bob": BOB},
        }
        (folder / "collector.json").write_text(json.dumps(settings))
        self.collector = Daemon(folder / "collector.log", ("collector", "--config", str(folder / "collector.json")), {})
        self.proxy = f"https://127.0.0.1:{free_port()}"
        self.nginx = self._start_nginx()

    def _start_nginx(self) -> subprocess.Popen[bytes]:
        (server,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
        for text, here in (
            ("443", self.proxy.removeprefix("https://")),
            (
                "collector.example.org:19401",
                f"localhost:{self.collector.port}",
            ),  # nginx knows no addresses in certificates
            ("/etc/nginx/laggard.users", str(self.folder / "users")),
            ("/etc/nginx/laggard.", f"{self.folder}/server."),
            ("/etc/nginx/", f"{self.folder}/"),
        ):
            assert text in server, f"the snippet in docs/tenants.md has no {text}"
            server = server.replace(text, here)
        (self.folder / "users").write_text("".join(f"{user}:{{PLAIN}}{word}\n" for user, word in PASSWORDS.items()))
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {self.folder}/{kind};\n" for kind in kinds)
        user = "user root;\n" if os.geteuid() == 0 else ""
        (self.folder / "nginx.conf").write_text(
            f"{user}daemon off;\nmaster_process off;\npid {self.folder}/nginx.pid;\nerror_log stderr;\nevents {{}}\n"
            f"http {{\naccess_log off;\n{temporary}{server}}}\n"
        )
        with (self.folder / "nginx.log").open("wb") as log:
            started = subprocess.Popen(
                [NGINX, "-p", self.folder, "-c", self.folder / "nginx.conf", "-e", "stderr"], stderr=log
            )
        return started

    def ask(self, path: str, user: str, **headers: str) -> Answer:
        """Through nginx, logged in."""
        login = base64.b64encode(f"{user}:{PASSWORDS[user]}".encode()).decode()
        return self._get(f"{self.proxy}{path}", "", {"Authorization": f"Basic {login}", **headers})

    def ask_directly(self, path: str, certificate: str = "", **headers: str) -> Answer:
        return self._get(f"{self.collector.url}{path}", certificate, headers)

    def _get(self, url: str, certificate: str, headers: dict[str, str]) -> Answer:
        request = urllib.request.Request(url, headers={name.replace("_", "-"): it for name, it in headers.items()})
        try:
            with urllib.request.urlopen(request, timeout=SECONDS, context=self._tls(certificate)) as answer:
                return Answer(answer.status, answer.headers, answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read().decode())
        except OSError as error:  # no connection
            return Answer(0, {}, str(error))

    def _tls(self, certificate: str) -> ssl.SSLContext:
        if certificate not in self._contexts:
            self._contexts[certificate] = client(self.files, certificate)
        return self._contexts[certificate]

    def as_user(self, user: str) -> str:
        return self.proxy.replace("https://", f"https://{user}:{PASSWORDS[user]}@")

    def wait_for_verdicts(self) -> None:
        wanted = {f"{ADA}:adajob", f"{BOB}:{BOBS['job']}", f"{BOB}:{BOBS['second job']}"}

        def are_there() -> bool:
            assert self.nginx.poll() is None, (self.folder / "nginx.log").read_text()
            if self.ask("/-/healthy", "ops").status != 200:
                return False
            jobs = json.loads(self.ask("/api/v1/summary", "ops").text)["jobs"]
            found = json.loads(self.ask("/api/v1/incidents", "ops").text)["incidents"]
            judged = {job["key"] for job in jobs if job["verdict"] == "fail"}
            return wanted <= judged and len(found) >= len(wanted)

        self.collector.wait_until(are_there)

    def close(self) -> None:
        for process in (self.nginx, self.collector.process):
            process.terminate()
            process.wait(300)


@pytest.fixture(scope="module")
def real_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The URL of an agent with a rank of each user; none where the tests may not become these."""
    if os.geteuid() != 0:
        yield []
        return
    folder = tmp_path_factory.mktemp("real")
    (ranks := folder / "ranks").mkdir()
    ranks.chmod(0o1777)
    let_others_enter(folder)
    started = [
        RankProcess(ranks, LANES, owner, {**IDENTITY, "job_id": job, "world_size": 1}, ())
        for owner, job in ((ADA, "adareal"), (BOB, f"{BOBS['job']}real"))
    ]
    for rank in started:
        rank.do("step", "step")
    agent = Daemon(folder / "agent.log", ("agent", "--node", "real0", "--rank-dir", str(ranks)), {})
    yield [agent.url]
    agent.process.terminate()
    agent.process.wait(300)
    for rank in started:
        rank.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, real_agent: list[str]) -> Iterator[Site]:
    if not os.path.exists(NGINX):
        pytest.skip("needs nginx: scripts/setup --system installs it")
    hog = CpuNeighbour(4100002, 0, 4.1, "kswapd0")
    other = ranks_document(BOBS["node"], rank_documents(BOBS["node"], BOBS["second job"], BOB, hog))
    agents = [
        FakeAgent(going_on(shared_node()), everything_that_can_be_found("n0")),
        FakeAgent(going_on(other), everything_that_can_be_found(BOBS["node"])),
    ]
    built = Site(tmp_path_factory.mktemp("site"), [*(agent.address for agent in agents), *real_agent])
    try:
        built.wait_for_verdicts()
        yield built
    finally:
        built.close()
        for agent in agents:
            agent.close()


def asked(route: str) -> list[str]:
    """The route, and with each question that could make it tell of somebody else. Those with a name of bob's in them
    are asked as well, in another test: an answer may repeat what was asked."""
    path = PATHS.get(route, route)
    questions = ("", "?job=adajob", f"?job={ADA}:adajob", "?fresh=1", "?job=gone", "?node=n0", "?limit=500&open=1")
    joined = "&" if "?" in path else "?"
    return [path, *(path + joined + question[1:] for question in questions[1:])]


def holds(told: str, text: str) -> bool:
    """Whether a text holds a name; of a number only as a whole one, since moments have many digits."""
    if not text.isdecimal():
        return text in told
    return re.search(rf"(?<![\d.]){text}(?!\.?\d)", told) is not None


@pytest.mark.slow
def test_no_answer_to_a_user_holds_a_name_of_another_users(site: Site) -> None:
    ways: tuple[Callable[[str], Answer], ...] = (
        lambda path: site.ask(path, "ada"),
        lambda path: site.ask_directly(path, "ada"),
    )
    leaks = {}
    for route in sorted(ROUTES):
        for path in asked(route):
            for number, ask in enumerate(ways):
                answer = ask(path)
                told = answer.text + str(answer.headers)
                found = [name for name, text in BOBS.items() if holds(told, text)] + ["gpu"] * ("bobgpu7741" in told)
                if found:
                    leaks[path, number] = found
                allowed = 200 if route in TENANT | OPEN - POSTED else 405 if route in OPEN else 403
                may_lack = "job=gone" in path or route == "/api/v1/digest"  # a job that is a minute old has none
                assert answer.status in (allowed, 404 if may_lack else 0), (path, answer)
    assert not leaks, leaks


@pytest.mark.slow
def test_the_search_would_find_each_name(site: Site) -> None:
    told = "".join(site.ask(path, "ops").text for route in ROUTES for path in asked(route))
    told += site.ask(f"/api/v1/recording?job={BOB}:{BOBS['job']}", "ops").text
    told += site.ask(f"/api/v1/location?job={BOBS['job']}", "ops").text
    not_there = [name for name, text in BOBS.items() if not holds(told, text) and name not in ("pid", "rejected file")]
    assert not not_there, "agents report these two, and the collector tells them to nobody while there are jobs"


@pytest.mark.slow
def test_another_users_job_is_to_a_user_as_one_that_does_not_exist(site: Site) -> None:
    def asked_for(name: str) -> list[tuple[int, str]]:
        paths = ("location", "ranks", "timeline?ranks=0&", "recording", "summary", "recommendation", "incidents")
        answers = []
        for path in paths:
            answer = site.ask(f"/api/v1/{path}{'' if '?' in path else '?'}job={name}", "ada")
            text = re.sub(r'"(now|age_seconds)":[\d.e+]+', "", answer.text)
            answers.append((answer.status, text.replace(name, "NAME")))
        return answers

    assert asked_for(f"{BOB}:{BOBS['job']}") == asked_for("61003:nosuchjob")
    assert asked_for(BOBS["job"]) == asked_for("nosuchjob")
    assert json.loads(site.ask(f"/api/v1/findings?node={BOBS['node']}", "ada").text)["findings"] == []


@pytest.mark.slow
def test_a_user_sees_what_is_theirs(site: Site) -> None:
    summary = json.loads(site.ask("/api/v1/summary", "ada").text)
    own = {"adajob", "adareal"} if os.geteuid() == 0 else {"adajob"}
    assert {job["job_id"] for job in summary["jobs"]} == own
    location = json.loads(site.ask("/api/v1/location?job=adajob", "ada").text)
    (culprit,) = location["culprits"]
    assert culprit["kind"] == "slow_host" and culprit["ranks"] == [1]
    assert culprit["evidence"][0].endswith(": another user's process ran 4.10 s on its cores"), culprit
    assert culprit["neighbours"] == [{"pid": -1, "owner": -1, "seconds": 4.1}]
    rows = {row["node"]: row for row in json.loads(site.ask("/api/v1/nodes", "ada").text)["nodes"]}
    assert rows["n0"]["ranks"] == [0, 1] and BOBS["node"] not in rows
    found = json.loads(site.ask("/api/v1/findings?node=n0", "ada").text)["findings"]
    by_code = {it["finding"]["code"]: it["finding"] for it in found}
    assert by_code.keys() == {it.code for it in all_types() if it.shown != "owner"} | {"TCP_FALLBACK"}
    assert by_code["TCP_FALLBACK"]["summary"] == "adas own words" and by_code["GPU_TOO_HOT"]["evidence"]
    assert by_code["GPU_XID"]["device"] == "gpu0" and by_code["DISK_FULL"]["device"] == "this node"
    incidents = json.loads(site.ask("/api/v1/incidents", "ada").text)
    assert [it["job_id"] for it in incidents["incidents"]] == ["adajob"] and incidents["open"] == 1
    metrics = site.ask("/metrics", "ada").text
    assert 'laggard_job_running{job_id="adajob",user="61001"} 1.0' in metrics and "laggard_fleet_failing" not in metrics


@pytest.mark.slow
@rows("tenants/nobody")
def test_who_is_nobody_is_told_what_to_do_and_nothing_else(
    site: Site, certificate: str, headers: dict[str, str], status: int, words: str
) -> None:
    for route in sorted(ROUTES - OPEN):
        if (certificate, route) == ("n1.nodes", GATE):
            continue
        answer = site.ask_directly(PATHS.get(route, route), certificate, **headers)
        assert answer.status == status and words in answer.text, (route, answer)
        assert status == 0 or answer.text.count("\n") == 1, answer


@pytest.mark.slow
def test_machines_see_what_they_need(site: Site) -> None:
    assert json.loads(site.ask_directly(GATE, "n1.nodes").text)["answering"] >= 2
    assert site.ask_directly("/metrics", "n1.nodes").status == 403
    assert BOBS["job"] in site.ask_directly("/metrics", "prometheus").text
    for certificate in ("", "n1.nodes", "ada"):
        assert site.ask_directly("/-/ready", certificate, Host="collector.example.org").text == "ready\n"
    assert site.ask_directly("/-/ready", Host="evil.example.org").status == 421


@pytest.mark.slow
def test_a_header_of_the_clients_own_does_not_pass_the_proxy(site: Site) -> None:
    assert site.ask_directly("/", "ada", X_Remote_User="ops").status == 403
    assert "a client at 127.0.0.1 was refused" in site.collector.said()
    answer = site.ask("/api/v1/summary", "ada", X_Remote_User="ops")
    assert answer.status == 200 and BOBS["job"] not in answer.text and "adajob" in answer.text
    assert "no user eve is known here" in site.ask("/api/v1/summary", "eve", X_Remote_User="ops").text


@pytest.mark.slow
def test_commands_log_in_as_the_site_asks(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def laggard(*words: str, collector: str, certificate: str = "") -> str:
        for name in (ENV_CA_FILE, ENV_CERT_FILE, ENV_KEY_FILE):
            monkeypatch.delenv(name, raising=False)
        for name, value in site.files.environment(certificate).items():
            monkeypatch.setenv(name, value)
        main([*words, "--collector", collector])
        return "".join(capsys.readouterr())

    locate = ("locate", "--job", "adajob")
    for said in (
        laggard(*locate, collector=site.as_user("ada")),
        laggard(*locate, collector=site.collector.url, certificate="ada"),
    ):
        assert "Rank 1 on n0 is slow" in said
    incidents = laggard("incidents", collector=site.as_user("ada"))
    assert "adajob" in incidents and BOBS["job"] not in incidents
    assert "adajob" in laggard("top", "--once", "--job", "adajob", collector=site.as_user("ada"))
    for words in (("locate",), ("incidents",), ("top", "--once")):
        said = laggard(*words, collector=site.proxy)
        assert "answers 401: log in: write USER:PASSWORD@ before the host" in said and said.count("\n") == 1, said
        said = laggard(*words, collector=site.as_user("eve"))
        assert "answers 403: no user eve is known here" in said and said.count("\n") == 1, said
        assert PASSWORDS["eve"] not in said


def test_each_route_stands_in_one_list() -> None:
    """Who adds a route decides who may see it; until then nobody does, where users see their own."""
    lists = (OPEN, TENANT, OPERATOR)
    assert set().union(*lists) == ROUTES and sum(map(len, lists)) == len(ROUTES), ROUTES ^ set().union(*lists)


def test_the_page_asks_for_nothing_that_users_may_not() -> None:
    scripts = "".join(path.read_text() for path in PAGE_DIR.glob("*.js"))
    asked_for = set(re.findall(r'ask\("([^"]+)"', scripts))
    assert "/api/v1/summary" in asked_for and asked_for <= TENANT, asked_for - TENANT
