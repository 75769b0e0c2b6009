"""deploy/ansible/laggard.yml, played by a real Ansible: the first answers, once more without a change, then a newer
package. The fresh Debian is both of the inventory's machines, and the one that plays."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from install_check_parts.deb import newer_package, the_package
from install_check_parts.site import Site
from install_check_parts.systemd import first_answers_of_agent

PACKAGES = ("python3-apt",)
"""As on Debian's servers: Ansible's module apt needs it."""
_WORDS = "ansible_connection=local ansible_python_interpreter=/usr/bin/python3"
_INVENTORY = f"[nodes]\nnode1 {_WORDS}\n[collector]\nhead {_WORDS}\n"
_DAEMONS = ("laggard-agent", "laggard-collector")


def check_ansible(site: Site) -> None:
    package, root = the_package(site), site.root
    wheels = _fetch_ansible(site.repository / "out" / "ansible-wheels")
    root.run(f"python3 -m venv /root/ansible && /root/ansible/bin/pip install -q --find-links {wheels} ansible-core")
    root.run(f"printf '{_INVENTORY}' >/root/inventory".replace("\n", "\\n"))
    if not _play(site, package):
        sys.exit("install-check: the first play says that it changed nothing")
    first_answers_of_agent(site)
    site.show("curl -sf localhost:19401/api/v1/nodes", '"node":"node1","state":"up"'.replace("node1", _node(site)))
    site.show("cat /etc/laggard/collector.yaml", 'targets: ["node1"]')
    if changes := _play(site, package):
        sys.exit(f"install-check: the second play changed {changes}")
    before = _processes(site)
    newer_package(package, root.folder / "newer.deb")
    _play(site, Path("/newer.deb"))
    site.show("dpkg-query -f '${Version}\\n' -W laggard", "9")
    if again := [name for name in _DAEMONS if _processes(site)[name] == before[name]]:
        sys.exit(f"install-check: the newer package left running: {again}")
    first_answers_of_agent(site)
    site.show("cat /etc/laggard/collector.yaml", 'targets: ["node1"]')
    site.expect_calm_logs()


def _fetch_ansible(folder: Path) -> Path:
    """Ansible's wheels, for the fresh system's Python, which is this machine's Debian's."""
    if not list(folder.glob("ansible_core-*")):
        words = ["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        version = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder, "--python-version", version]
        subprocess.run([*pip, "--only-binary=:all:", "ansible-core"], check=True, stderr=subprocess.DEVNULL)
    return folder


def _play(site: Site, package: Path) -> str:
    """Plays it, one machine after the other, since both are one. Returns which tasks changed something."""
    play = "/source/deploy/ansible/laggard.yml"
    command = f"ansible-playbook --forks 1 -i /root/inventory -e deb={package} {play}"
    print(f"  $ {command}", flush=True)
    said = site.root.run(f"/root/ansible/bin/{command}").stdout
    recap = re.findall(r"^(\S+) +: (.*)$", said, flags=re.MULTILINE)
    for name, counts in recap:
        print(f"    {name}: {' '.join(counts.split()[:4])}", flush=True)
    if len(recap) != 2 or "failed=0" not in recap[0][1] or "[WARNING]" in said:
        sys.exit(f"install-check: {said[-3000:]}")
    return ", ".join(f"{name} {counts.split()[1]}" for name, counts in recap if "changed=0" not in counts)


def _node(site: Site) -> str:
    """The name of the fresh system, as its agent tells it."""
    return site.root.run("uname -n").stdout.strip()


def _processes(site: Site) -> dict[str, str]:
    return {name: site.root.run(f"systemctl show -p ExecMainPID {name}").stdout.strip() for name in _DAEMONS}
