"""`kubectl laggard`, a plugin of one file: a real kubectl and API server before a real collector, and a kubectl that is
made up where what is tried takes a kubelet (port-forward) or a cluster that is not as it should be."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.collectors import Make as Documents
from support.control_plane import MERGE
from support.paths import REPOSITORY
from support.waiting import wait_for

PLUGIN = REPOSITORY / "deploy" / "kubernetes" / "kubectl-laggard"
MADE_UP = '''#!{python}
"""As kubectl: notes its arguments, and does for one service what {folder}/cluster.json says."""
import json, sys, time, urllib.error, urllib.request
words = sys.argv[1:]
with open("{folder}/asked", "a") as file:
    file.write(json.dumps(words) + "\\n")
cluster = json.load(open("{folder}/cluster.json"))
if words[-1].startswith("/api/v1/") and "--raw" in words:
    place = words[-1].partition("/proxy")[2]
    request = urllib.request.Request(cluster["collector"] + place, headers=dict(Host=cluster.get("host", "localhost")))
    try:
        sys.stdout.buffer.write(urllib.request.urlopen(request, timeout=60).read())
    except urllib.error.HTTPError as error:
        sys.exit("Error from server: " + error.read().decode())
elif "port-forward" in words:
    print("Forwarding from 127.0.0.1:%s -> 19401" % cluster["collector"].rpartition(":")[2], flush=True)
    time.sleep(600)
elif "--all-namespaces" in words and cluster.get("forbidden"):
    sys.exit("Error from server (Forbidden): services is forbidden")
else:
    print(json.dumps(dict(items=cluster["services"])))
'''


def service(namespace: str = "laggard") -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "name": "laggard-collector"},
        "spec": {"ports": [{"name": "http", "port": 19401}]},
    }


def plugin(*words: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PLUGIN), *words],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environ},
    )


class Cluster:
    """A made-up kubectl, in a folder that comes first in PATH."""

    def __init__(self, folder: Path, collector: str, **changes: Any) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "kubectl").write_text(MADE_UP.format(python=sys.executable, folder=folder))
        (folder / "kubectl").chmod(0o755)
        self.set(collector=collector, **changes)

    def set(self, **values: Any) -> None:
        (self.folder / "cluster.json").write_text(json.dumps({"services": [service()], **values}))
        (self.folder / "asked").write_text("")

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": f"{self.folder}:{os.environ['PATH']}"}

    def asked(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return plugin(*words, environ=self.environ)


@pytest.fixture
def collector(start_collector: Callable[..., Any], fake_agent: Callable[..., Any]) -> Any:
    """One that names rank 2 of its job, on a node with a critical finding."""
    agent = fake_agent(Documents.node("n0", [0, 1, 2, 3], slow=2), Documents.report("n0", ["GPU_LOST"]))
    found = start_collector("--target", agent.address, "--interval", "0.3")
    found.wait_until(lambda: found.get("/api/v1/location").json()["culprits"])
    found.wait_until(lambda: found.get("/api/v1/nodes").json()["nodes"][0]["findings"])
    return found


def expect_answers(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    located = run("locate")
    assert located.returncode == 1, located
    assert located.stdout.startswith("Rank 2 on n0 is slow in forward"), located.stdout
    assert run("locate", "1000:job-1").stdout == located.stdout
    nodes = run("nodes")
    assert nodes.returncode == 0 and nodes.stdout.splitlines()[0].split() == [
        "NODE",
        "STATE",
        "VERDICT",
        "RANKS",
        "FINDINGS",
    ]
    assert nodes.stdout.splitlines()[1].split() == ["n0", "up", "fail", "4", "GPU_LOST"]
    top = run("top")
    assert top.returncode == 0 and top.stdout.splitlines()[1].startswith("job-1 "), top
    assert "Rank 2 on n0" in top.stdout
    document = json.loads(run("--json", "nodes", "--limit", "1").stdout)
    assert document["schema"] == "laggard.nodes/1"


@pytest.mark.slow
def test_it_asks_through_a_real_api_server(
    own_control_plane: Any, start_collector: Any, fake_agent: Any, tmp_path: Path
) -> None:
    """By the proxy of services, with kubectl's own context; kubectl finds it as a plugin."""
    plane, kubectl, address = own_control_plane, shutil.which("kubectl"), own_address()
    if kubectl is None or not address:
        pytest.skip("needs kubectl, and an address of this machine that is not loopback's")
    agent = fake_agent(Documents.node("n0", [0, 1, 2, 3], slow=2), Documents.report("n0", ["GPU_LOST"]))
    found = start_collector("--target", agent.address, "--interval", "0.3", "--web.listen-address", f"{address}:0")
    found.wait_until(lambda: found.get("/api/v1/location").json()["culprits"])
    found.wait_until(lambda: found.get("/api/v1/nodes").json()["nodes"][0]["findings"])
    port = int(found.url.rpartition(":")[2])
    expose(plane, address, port)
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(PLUGIN, folder / "kubectl-laggard")
    environ = {"KUBECONFIG": str(plane.write_kubeconfig(tmp_path)), "PATH": f"{folder}:{os.environ['PATH']}"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [kubectl, "laggard", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environ})

    plane.wait_until(lambda: run("nodes").returncode == 0)
    expect_answers(run)
    assert run("--context", "x", "--namespace", "laggard", "locate").returncode == 1
    assert "context" in run("--context", "none", "locate").stderr
    listed = subprocess.run([kubectl, "plugin", "list"], capture_output=True, text=True, env={**os.environ, **environ})
    assert f"{folder}/kubectl-laggard" in listed.stdout
    refused = run("--user", "nobody", "locate")
    assert refused.returncode == 64 and refused.stderr.count("\n") == 1, refused


def own_address() -> str:
    """An address of this machine that others would reach; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
        return "" if address.startswith("127.") else address


def expose(plane: Any, address: str, port: int) -> None:
    """As the manifests' Service, with its end told by hand, since no pod runs."""
    core = "/api/v1/namespaces"
    plane.do("POST", core, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "laggard"}})
    labels = {"app.kubernetes.io/name": "laggard-collector"}
    ports = [{"name": "http", "port": 19401, "targetPort": port}]
    made = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "laggard-collector", "labels": labels}}
    plane.do("POST", f"{core}/laggard/services", {**made, "spec": {"ports": ports}})
    plane.wait_until(lambda: plane.request("GET", f"{core}/laggard/serviceaccounts/default").is_success)
    spec = {"containers": [{"name": "collector", "image": "laggard"}], "nodeName": "node1"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "collector-0"}, "spec": spec}
    plane.do("POST", f"{core}/laggard/pods", pod)
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    plane.do("PATCH", f"{core}/laggard/pods/collector-0/status", {"status": status}, MERGE)
    target = {"kind": "Pod", "name": "collector-0", "namespace": "laggard"}  # the proxy asks pods alone
    ends = [{"addresses": [{"ip": address, "targetRef": target}], "ports": [{"name": "http", "port": port}]}]
    endpoints = {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "laggard-collector"}, "subsets": ends}
    plane.do("POST", f"{core}/laggard/endpoints", endpoints)


@pytest.mark.slow
def test_it_answers_as_the_collector_does(collector: Any, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "bin", collector.url)
    expect_answers(cluster.run)
    assert cluster.run("locate", "nobody's").stdout.startswith("Cannot tell"), "a job that is not there"


@pytest.mark.slow
def test_where_the_api_server_has_a_name_it_forwards_a_port(collector: Any, tmp_path: Path) -> None:
    """A collector takes no request under a name that allowed_hosts does not list, as that of a managed cluster's API
    server."""
    cluster = Cluster(tmp_path / "bin", collector.url, host="api.cluster.example")
    expect_answers(cluster.run)
    assert any("port-forward" in words and "service/laggard-collector" in words for words in cluster.asked())


@pytest.mark.slow
def test_the_page_is_forwarded_until_it_is_ended(collector: Any, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "bin", collector.url)
    command = [sys.executable, str(PLUGIN), "page", "--port", "19500"]
    # A shell has what it starts in the background ignore SIGINT, and so would all that the tests start.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **cluster.environ}, preexec_fn=_heed_interrupts
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == f"{collector.url}  (until Ctrl-C)\n"
        assert cluster.asked()[-1][-1] == "19500:19401"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    wait_for(lambda: "kubectl" not in running_below(cluster.folder), lambda: "kubectl outlived it", 60)


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def running_below(folder: Path) -> str:
    """The command lines of processes that run a program of the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words)
    return "\n".join(found)


def test_what_a_user_names_is_one_argument_and_no_part_of_a_path(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "bin", "http://127.0.0.1:9")
    job = "x;touch /tmp/y`$(id)` ../../nodes?limit=9&job=\n--all"
    cluster.run("--context", "a b;c", "--namespace", "n s/../x", "locate", job)
    first, second, *_ = cluster.asked()
    assert first[:1] == ["--context=a b;c"] and first[first.index("--namespace") + 1] == "n s/../x"
    raw = second[-1]
    assert raw.startswith(
        "/api/v1/namespaces/laggard/services/laggard-collector:19401/proxy/api/v1/summary?limit=1&job=x%3Btouch"
    )
    assert (
        not set(raw) & set(" ;`$()\n") and ".." not in raw.replace("%2F..", "..").split("?")[0] and raw.count("?") == 1
    )


@pytest.mark.parametrize(
    ("words", "changes", "said"),
    [
        (("locate",), {"services": []}, "no service has the label app.kubernetes.io/name=laggard-collector"),
        (
            ("locate",),
            {"services": [service("a"), service("b")]},
            "there are 2 collectors, in a, b: name one by --namespace",
        ),
        (("locate",), {}, "kubectl laggard: "),
        (("locate", "x" * 301), {}, "300 characters at most"),
        (("nodes", "--limit", "0"), {}, "--limit is 1 to 4096"),
        (("locate",), {"services": [{"metadata": {}}]}, "no document of laggard's"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, words: tuple[str, ...], changes: dict[str, Any], said: str) -> None:
    cluster = Cluster(tmp_path / "bin", "http://127.0.0.1:9", **changes)
    done = cluster.run(*words)
    assert done.returncode == 64 and said in done.stderr.splitlines()[-1] and not done.stdout, done


def test_who_may_not_look_everywhere_looks_in_laggards_namespace(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "bin", "http://127.0.0.1:9", forbidden=True)
    cluster.run("locate")
    assert [words[:4] for words in cluster.asked()][1] == ["get", "services", "--namespace", "laggard"]


def test_without_kubectl_it_is_one_line(tmp_path: Path) -> None:
    done = plugin("locate", environ={"PATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (64, "kubectl laggard: kubectl cannot be run: No such file or directory\n")


@pytest.mark.slow
def test_what_moves_a_cursor_is_shown_and_not_done(tmp_path: Path) -> None:
    """Names of jobs and nodes are users' own."""
    row = {"node": "n\x1b[2J\x07\u202e", "state": "up", "findings": ["A" * 500], "ranks": []}
    folder = Cluster(tmp_path / "bin", "http://127.0.0.1:9").folder
    (folder / "answer.json").write_text(json.dumps({"nodes": [row], "total": 3}))
    (folder / "services.json").write_text(json.dumps({"items": [service()]}))
    (folder / "kubectl").write_text(
        f"#!/bin/sh\ncase $* in *--raw*) cat {folder}/answer.json ;; *) cat {folder}/services.json ;; esac\n"
    )
    done = plugin("nodes", environ={"PATH": f"{folder}:{os.environ['PATH']}"})
    assert done.returncode == 0 and "n\\x1b[2J\\x07\\u202e" in done.stdout and "and 2 more nodes" in done.stdout, done
    assert all(len(line) < 200 and line.isprintable() for line in done.stdout.splitlines())


def test_it_runs_with_old_pythons() -> None:
    """Which laptops have, and laggard itself does not need."""
    text = PLUGIN.read_text()
    compile(text, str(PLUGIN), "exec")
    assert os.access(PLUGIN, os.X_OK) and text.startswith("#!/usr/bin/env python3\n")
    old = [shutil.which(f"python3.{minor}") for minor in (8, 9)]
    old += sorted(map(str, (Path.home() / ".pyenv" / "versions").glob("3.[89].*/bin/python3")))
    for program in filter(None, old):
        done = subprocess.run([program, str(PLUGIN), "--help"], capture_output=True, text=True, timeout=300)
        if "pyenv: " not in done.stderr:
            assert done.returncode == 0 and "locate|nodes|top|page" in done.stdout, done
