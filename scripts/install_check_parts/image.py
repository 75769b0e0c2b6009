"""deploy/container/Containerfile, built by buildah and run by crun as a cluster would: as its user, with a root that it
cannot write, without a capability.

The registry's image of Python is out of reach here: a fresh Debian with its Python goes by that name. pip finds its
packages in a folder. The control groups of this machine are left alone.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

BASE = "docker.io/library/python:3.12-slim"
IMAGE = "registry.example.org/laggard:check"
USER = 65532
PATIENCE_SECONDS = 120.0
# crun takes no machine with both kinds of control groups: it gets a view without the second one.
_HIDE = "! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified"
_CRUN = f'{_HIDE}; exec crun --cgroup-manager=disabled "$@"'


def check_image(repository: Path, archive: Path, fetched: Path) -> None:
    """`archive`: of a Debian with Python; `fetched`: the packages that pip finds. Needs root, and a network that has
    loopback alone is enough."""
    missing = [name for name in ("buildah", "crun") if shutil.which(name) is None]
    if missing:
        sys.exit(f"install-check: image: not here: {', '.join(missing)} (Debian's packages)")
    with tempfile.TemporaryDirectory(prefix="laggard-image-") as name:
        folder = Path(name)
        with Store(folder) as store:
            store.make_base(archive, fetched)
            store.build(repository, fetched)
            _try(store.image())


def _try(image: Image) -> None:
    print(f"  built by buildah: {IMAGE}, user {image.user}", flush=True)
    _expect(image.run("--help"), "slow rank")
    _expect(image.run("healthcheck", "--no-agent", "--gate", "report-only"), "gate: pass")
    _expect(image.run("touch", "/x", entrypoint=[]), "Read-only file system", status=1)
    with image.daemon("agent", 19400) as agent:
        agent.expect("/-/ready", "")
        agent.expect("/metrics", "laggard_probe_verdict")
    with image.daemon("collector", 19401) as collector:
        collector.expect("/-/healthy", "")


def _expect(done: subprocess.CompletedProcess[str], words: str, status: int = 0) -> None:
    said = done.stdout + done.stderr
    print(f"  {' '.join(done.args)}\n    {said.strip().splitlines()[0][:160] if said.strip() else ''}", flush=True)
    if done.returncode != status or words not in said:
        sys.exit(f"install-check: image: status {done.returncode}, no {words!r} in\n{said[-3000:]}")


class Store:
    """Images of this run alone, kept as buildah finds best on this machine. What it mounts goes with the block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._policy = folder / "policy.json"
        self._policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._buildah("rm", "--all")
        subprocess.run(["umount", "--quiet", self._folder / "store" / "overlay"])  # where there is one

    def _buildah(self, command: str, *words: object) -> str:
        places = ["--root", self._folder / "store", "--runroot", self._folder / "run"]
        signed = ["--signature-policy", self._policy] if command in ("from", "commit", "build", "push") else []
        call = ["buildah", *places, command, *signed, *words]
        done = subprocess.run(list(map(str, call)), capture_output=True, text=True, timeout=600)
        if done.returncode:
            sys.exit(f"install-check: image: {' '.join(map(str, call))}\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout.strip()

    def make_base(self, archive: Path, fetched: Path) -> None:
        container = self._buildah("from", "scratch")
        root = Path(self._buildah("mount", container))
        subprocess.run(["tar", "-C", root, "--exclude=./dev/*", "-xf", archive], check=True)
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        (root / "etc/pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {fetched}\n")
        self._buildah("commit", "--rm", container, BASE)

    def build(self, repository: Path, fetched: Path) -> None:
        words = ["--isolation", "chroot", "--network", "host", "--pull=never", "--volume", f"{fetched}:{fetched}:ro"]
        self._buildah("build", *words, "-f", repository / "deploy/container/Containerfile", "-t", IMAGE, repository)

    def image(self) -> Image:
        config = json.loads(self._buildah("inspect", "--type", "image", IMAGE))["OCIv1"]["config"]
        root = Path(self._buildah("mount", self._buildah("from", IMAGE)))
        return Image(self._folder, root, config)


class Image:
    """What was built, and `crun` to run it. `config`: the image's own, as OCI has it."""

    def __init__(self, folder: Path, root: Path, config: dict[str, Any]) -> None:
        self._folder, self._root, self._config = folder, root, config
        self._count = 0
        self.user: str = config["User"]

    def run(self, *words: str, entrypoint: list[str] | None = None) -> subprocess.CompletedProcess[str]:
        """`entrypoint`: in place of the image's own."""
        start = self._config["Entrypoint"] if entrypoint is None else entrypoint
        done = subprocess.run(self._command([*start, *words]), capture_output=True, text=True, timeout=300)
        done.args = ["in the image, by crun:", *start, *words]
        return done

    def daemon(self, name: str, port: int) -> Daemon:
        return Daemon(self._command([*self._config["Entrypoint"], name]), self._folder / f"{name}.log", name, port)

    def _command(self, words: list[str]) -> list[str]:
        self._count += 1
        bundle = self._folder / f"bundle-{self._count}"
        bundle.mkdir()
        subprocess.run(["crun", "spec"], cwd=bundle, check=True)
        spec = json.loads((bundle / "config.json").read_text())
        self._change(spec, words)
        (bundle / "config.json").write_text(json.dumps(spec))
        call = ["run", "--bundle", str(bundle), f"laggard-check-{self._count}-{self._folder.name}"]
        return ["unshare", "--mount", "sh", "-c", _CRUN, "crun", *call]

    def _change(self, spec: dict[str, Any], words: list[str]) -> None:
        """What crun proposes, with the image's words, and what the chart asks for the agent's container."""
        user, group = map(int, self.user.split(":"))
        environment = [*self._config["Env"], "LAGGARD_STATE_DIR=/var/lib/laggard"]
        process = spec["process"]
        process.update(terminal=False, args=words, env=environment, user={"uid": user, "gid": group})
        process.update(capabilities={}, noNewPrivileges=True)
        process.pop("rlimits", None)
        spec["root"] = {"path": str(self._root), "readonly": True}
        linux = spec["linux"]
        linux["namespaces"] = [it for it in linux["namespaces"] if it["type"] not in ("network", "cgroup")]
        linux.pop("resources", None)
        spec["mounts"] = [it for it in spec["mounts"] if it["destination"] != "/sys/fs/cgroup"]
        for place in ("/tmp", "/var/lib/laggard"):
            options = ["nosuid", "nodev", "mode=1777", "size=64m"]
            spec["mounts"].append({"destination": place, "type": "tmpfs", "source": "tmpfs", "options": options})


class Daemon:
    """A daemon of the image, which ends with the block, and has to end well."""

    def __init__(self, command: list[str], log: Path, name: str, port: int) -> None:
        self._name, self._log, self._port = name, log, port
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)

    def __enter__(self) -> Daemon:
        return self

    def expect(self, path: str, words: str) -> None:
        """Waits until the path answers with these words."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
                    if words in answer.read().decode():
                        print(f"  {self._name}: {path}: {answer.status} {words}", flush=True)
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.3)
        sys.exit(f"install-check: image: no answer of {self._name} at {path}: {self._log.read_text()[-2000:]}")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()  # crun passes the signal on
        status = self._process.wait(PATIENCE_SECONDS)
        print(f"  {self._name}: ended with status {status}", flush=True)
        if status:
            sys.exit(f"install-check: image: {self._name}: status {status}: {self._log.read_text()[-2000:]}")
