"""A fresh Debian, made by mmdebstrap, booted by systemd-nspawn: systemd is its first process, as on a node."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

BASE_PACKAGES = (
    "python3", "python3-venv", "systemd", "systemd-sysv", "dbus", "curl", "procps", "iproute2"
)  # fmt: skip
_BOOT_SECONDS = 120.0
Done = subprocess.CompletedProcess[str]
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def base_archive(packages: tuple[str, ...], cache: Path) -> Path:
    """A tar archive of the system with these packages. It is made once."""
    suite = subprocess.run(["sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME"], capture_output=True, text=True)
    name = hashlib.sha256(" ".join((suite.stdout, *packages)).encode()).hexdigest()[:12]
    archive = cache / f"{name}.tar"
    if not archive.exists():
        words = ["mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}", suite.stdout.strip()]
        made = archive.with_suffix(".part.tar")
        subprocess.run([*words, made], check=True, stderr=subprocess.DEVNULL)
        made.rename(archive)
    return archive


class FreshRoot:
    """`binds`: folders of this machine that it sees at the same path, read-only. It has no network but loopback."""

    def __init__(self, folder: Path, archive: Path, binds: tuple[Path, ...] = ()) -> None:
        self.folder = folder
        subprocess.run(["tar", "-C", folder, "-xf", archive], check=True)
        # systemd takes the name that stands here, whatever --hostname says, and mmdebstrap wrote this machine's.
        (folder / "etc" / "hostname").write_text("node1\n")
        words = ["systemd-nspawn", "--register=no", "--keep-unit", "--quiet", "--boot", "--private-network"]
        words += ["--capability=all", "--machine=node1", "--hostname=node1", f"--directory={folder}"]
        words += [f"--bind-ro={path}" for path in binds]
        environment = os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
        self._log = (folder.parent / f"{folder.name}.log").open("wb")
        self._nspawn = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                                        env=environment)  # fmt: skip
        self._init = self._first_process()
        self._wait_for_boot()

    def _first_process(self) -> int:
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children")
        deadline = time.monotonic() + _BOOT_SECONDS
        while time.monotonic() < deadline and self._nspawn.poll() is None:
            for pid in children.read_text().split():
                if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                    return int(pid)
            time.sleep(0.1)
        sys.exit(f"install-check: the fresh system did not start: {Path(self._log.name).read_text()[-2000:]}")

    def _wait_for_boot(self) -> None:
        deadline = time.monotonic() + _BOOT_SECONDS
        while self.run("systemctl is-active multi-user.target", check=False).stdout.strip() != "active":
            if time.monotonic() > deadline:
                sys.exit("install-check: the fresh system did not come up")
            time.sleep(0.2)

    def run(self, script: str, folder: str = "/", check: bool = True, user: str = "") -> Done:
        """Runs a script of bash in it, as root or as `user`. A status other than 0 ends the program."""
        inside = ["nsenter", f"--target={self._init}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        inside += ["env", "-i", f"PATH={_PATH}", "HOME=/root", "LC_ALL=C.UTF-8"]
        switch = ["runuser", "-u", user, "--"] if user else []
        command = [*inside, *switch, "bash", "-euo", "pipefail", "-c", f"cd {folder}\n{script}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
        if check and done.returncode:
            printed = (done.stdout + done.stderr)[-3000:]
            sys.exit(f"install-check: status {done.returncode} of\n{script}\n{printed}\n{self._journal()}")
        return done

    def wait_for(self, script: str, words: str, seconds: float = 120.0) -> str:
        """Runs the script until what it prints has `words` in it. Returns that."""
        deadline = time.monotonic() + seconds
        while True:
            said = self.run(script, check=False)
            if words in said.stdout:
                return said.stdout
            if time.monotonic() > deadline:
                seen = f"{said.stdout[-1500:]}{said.stderr[-1500:]}\n{self._journal()}"
                sys.exit(f"install-check: no {words!r} from\n{script}\n{seen}")
            time.sleep(0.5)

    def _journal(self) -> str:
        return self.run("journalctl -u 'laggard-*' -n 40 --no-pager", check=False).stdout

    def close(self) -> None:
        self._nspawn.terminate()
        try:
            self._nspawn.wait(30)
        except subprocess.TimeoutExpired:
            self._nspawn.kill()
            self._nspawn.wait()
        self._log.close()
