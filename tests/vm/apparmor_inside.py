"""The script that runs in the virtual machine, as root: loads the profiles of deploy/apparmor, starts reader, agent and
collector under them as their units do (users, capabilities), and tries what they must not.

    apparmor_inside.py PROFILES PYTHON PACKAGES

PROFILES: the folder of the profiles; PYTHON: the distribution's Python; PACKAGES: a file, whose lines say what is
importable of laggard and of what it needs, which is bound below /opt/laggard as an install has it. Prints one line of
JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

SECONDS = 150.0
AGENT, COLLECTOR = 19400, 19401
READERS = "dac_read_search,sys_admin,sys_ptrace,syslog"
LAUNCHER = "#!/opt/laggard/bin/python3 -sE\nimport sys\nfrom laggard.cli import main\nsys.exit(main())\n"
TRIES = {
    "agent": {
        "reads another's file": "open('/etc/shadow')",
        "writes settings": "open('/etc/laggard/agent.yaml', 'w')",
        "writes below /run/laggard": "open('/run/laggard/ranks/file', 'w')",
        "starts a shell": "__import__('subprocess').run(['/bin/sh', '-c', 'true'], check=True)",
        "reads what is others'": "open('/srv/secret')",
        "writes /proc/sys": "open('/proc/sys/kernel/panic', 'w')",
    },
    "reader": {
        "reads another's file": "open('/etc/shadow')",
        "reads what is others'": "open('/srv/secret')",
        "writes the state": "open('/var/lib/laggard/file', 'w')",
        "opens a connection": "__import__('socket').create_connection(('127.0.0.1', 19400))",
        "starts a shell": "__import__('subprocess').run(['/bin/sh', '-c', 'true'], check=True)",
    },
    "collector": {
        "reads another's file": "open('/etc/shadow')",
        "reads what is others'": "open('/srv/secret')",
        "reads another process": "open('/proc/1/environ').read()",
        "writes settings": "open('/etc/laggard/collector.yaml', 'w')",
        "reads the GPUs' tree": "__import__('os').listdir('/sys/bus/pci/devices')",
        "starts a shell": "__import__('subprocess').run(['/bin/sh', '-c', 'true'], check=True)",
    },
}
"""What each daemon's Python is made to do under its profile, as root, whom files' modes do not stop."""


def sh(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=check)


def prepare(profiles: Path, python: str, packages: list[str]) -> None:
    """A machine with an install, whose root file system cannot be written."""
    sh("mount", "-t", "securityfs", "securityfs", "/sys/kernel/security")
    Path("/run/etc").mkdir()
    sh("cp", "-a", "/etc/.", "/run/etc", check=False)
    sh("mount", "--bind", "/run/etc", "/etc")
    profiles = Path(shutil.copytree(profiles, "/run/profiles"))
    installed = install(Path("/run/opt/laggard"), python, packages)  # before what may hold the repository is covered
    for folder in ("/var/lib", "/tmp", "/srv"):
        sh("mount", "-t", "tmpfs", "tmpfs", folder)
    sh("mount", "--rbind", str(installed.parent), "/opt")
    Path("/srv/secret").write_text("of others\n")
    os.chmod("/tmp", 0o1777)
    for name, number in (("laggard", 990), ("laggard-reader", 991)):
        lines = {"passwd": f"{name}:x:{number}:{number}::/nonexistent:/bin/false", "group": f"{name}:x:{number}:"}
        for file, line in lines.items():
            with open(f"/etc/{file}", "a") as out:
                out.write(f"{line}\n")
    for made in (Path("/etc/laggard"), Path("/run/laggard/agent"), Path("/var/lib/laggard")):
        made.mkdir(parents=True, exist_ok=True)
    ranks = Path("/run/laggard/ranks")
    ranks.mkdir(mode=0o1777)
    ranks.chmod(0o1777)
    (ranks / ".ask").mkdir(mode=0o775)
    for folder in ("/run/laggard/agent", "/var/lib/laggard"):
        os.chown(folder, 990, 990)
    os.chown(ranks / ".ask", 0, 990)
    (Path("/etc/laggard") / "agent.yaml").write_text("{}\n")
    (Path("/etc/laggard") / "collector.yaml").write_text("targets: ['127.0.0.1:19400']\ninterval_seconds: 2\n")
    for daemon in TRIES:
        text = (profiles / f"laggard-{daemon}").read_text()
        # The root of this machine is a folder of its first file system: names count from there.
        own = Path("/run") / f"profile-{daemon}"
        own.write_text(text.replace("flags=(attach_disconnected)", "flags=(attach_disconnected,chroot_relative)"))
        sh("apparmor_parser", "-r", "-K", "-I", str(profiles), "-I", "/etc/apparmor.d", str(own))


def install(folder: Path, python: str, packages: list[str]) -> Path:
    """An environment with these packages in a folder that is made."""
    library = folder / "lib" / f"python{python.rpartition('python')[2]}" / "site-packages"
    for made in (folder / "bin", library):
        made.mkdir(parents=True)
    (folder / "bin" / "python3").symlink_to(python)
    (folder / "bin" / "laggard").write_text(LAUNCHER)
    (folder / "bin" / "laggard").chmod(0o755)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for package in map(Path, packages):
        place = library / package.name
        place.mkdir() if package.is_dir() else place.touch()
        sh("mount", "--bind", str(package), str(place))
    return folder


def started(daemon: str, user: int, *words: str, capabilities: str = "") -> subprocess.Popen[bytes]:
    kept = f"+{capabilities.replace(',', ',+')}" if capabilities else "-all"
    switch = [
        "setpriv",
        f"--reuid={user}",
        f"--regid={user}",
        "--clear-groups",
        f"--inh-caps={kept}",
        f"--ambient-caps={kept}",
    ]
    command = [*switch, "aa-exec", "-p", f"laggard-{daemon}", "--", "/opt/laggard/bin/laggard", *words]
    with open(f"/run/{daemon}.log", "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env={"PATH": "/usr/bin:/bin"}, cwd="/")


def got(port: int, path: str) -> Any:
    url = f"http://127.0.0.1:{port}{path}"
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())
    return None


def whole_report() -> Any:
    """That of a round in which all probes have run."""
    report = got(AGENT, "/api/v1/report")
    return report if report and len(report["probes"]) > 20 else None


def until(condition: Any, what: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            logs = "".join(Path(f"/run/{name}.log").read_text() for name in TRIES if Path(f"/run/{name}.log").exists())
            sys.exit(f"{what}\n{logs}\n{denials()}")
        time.sleep(0.5)
    return found


def denials() -> list[str]:
    """What the kernel refused a daemon, each once."""
    said = sh("dmesg", check=False).stdout
    found = re.findall(r'apparmor="DENIED" (.*)', said)
    told = (re.sub(r" (?:pid|fsuid|ouid|requested_mask)=\S+", "", it) for it in found if "laggard-" in it)
    return list(dict.fromkeys(told))


def tried(daemon: str, code: str) -> str:
    """What became of it, as root under the daemon's profile: the error's name; empty where it was done."""
    guarded = f"try:\n    {code}\nexcept BaseException as error:\n    print(type(error).__name__)\n"
    words = ("aa-exec", "-p", f"laggard-{daemon}", "--", "/opt/laggard/bin/python3", "-sE", "-c", guarded)
    done = sh(*words, check=False)
    return done.stdout.strip() or ("" if done.returncode == 0 else f"status {done.returncode}: {done.stderr[-300:]}")


def main() -> None:
    profiles, python, packages = sys.argv[1:]
    prepare(Path(profiles), python, Path(packages).read_text().splitlines())
    os.chown("/run/laggard", 0, 991)  # as systemd, the reader may make its socket there
    os.chmod("/run/laggard", 0o775)
    mode = Path("/sys/kernel/security/apparmor/profiles").read_text()
    reader = ("agent", "--reader", "--socket", "/run/laggard/reader.sock", "--allow-user", "laggard")
    daemons = [started("reader", 991, *reader, capabilities=READERS)]
    until(lambda: Path("/run/laggard/reader.sock").exists(), "the reader does not listen")
    daemons.append(started("agent", 990, "agent", "--config", "/etc/laggard/agent.yaml"))
    daemons.append(started("collector", 990, "collector", "--config", "/etc/laggard/collector.yaml"))
    report = until(whole_report, "the agent has no whole report")
    until(lambda: ((got(COLLECTOR, "/api/v1/nodes") or {}).get("nodes") or [{}])[0].get("verdict"), "no node is judged")
    until(lambda: Path("/var/lib/laggard/incidents.sqlite").exists(), "no incident is kept")
    contexts = [Path(f"/proc/{each.pid}/attr/current").read_text().strip() for each in daemons]
    refused = denials()
    for each in reversed(daemons):
        each.terminate()
    statuses = [each.wait(60) for each in daemons]
    results = {daemon: {what: tried(daemon, code) for what, code in codes.items()} for daemon, codes in TRIES.items()}
    unknown = [f"{it['name']}: {it['unknown']}" for it in report["probes"] if it["unknown"]]
    document = {
        "mode": [line for line in mode.splitlines() if line.startswith("laggard-")],
        "contexts": contexts,
        "denials": refused,
        "statuses": statuses,
        "unknown": unknown,
        "probes": len(report["probes"]),
        "tried": results,
        "state": os.listdir("/var/lib/laggard"),
    }
    print(f"\nAPPARMOR:{json.dumps(document)}", flush=True)


if __name__ == "__main__":
    main()
