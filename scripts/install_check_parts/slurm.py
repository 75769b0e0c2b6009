"""The gate in SLURM, from docs/install.md and deploy/slurm/README.md, on real daemons under systemd."""

from __future__ import annotations

import sys
import textwrap

from install_check_parts.site import Site
from install_check_parts.systemd import AGENT

_SLURM_CONF = """\
    ClusterName=fresh
    SlurmctldHost=node1
    SlurmUser=root
    SlurmdUser=root
    StateSaveLocation=/var/spool/slurmctld
    SlurmdSpoolDir=/var/spool/slurmd
    SlurmctldPidFile=/run/slurmctld.pid
    SlurmdPidFile=/run/slurmd.pid
    ProctrackType=proctrack/linuxproc
    SelectType=select/cons_tres
    NodeName=node1 CPUs=2 RealMemory=500 State=UNKNOWN
    PartitionName=debug Nodes=ALL Default=YES State=UP
    """
"""A site's own, without laggard: /etc/slurm/slurm.conf as it stood before."""
_CGROUP_CONF = "CgroupPlugin=cgroup/v1\n"
"""slurmd does not start where cgroup v1 and v2 are both in /proc/self/cgroup, as they are where the machine outside of
the fresh system has both. It makes no cgroup here."""
_NETWORK = """\
ip link add node1 type veth peer name switch
ip addr add 10.77.9.1/24 dev node1
ip link set switch up
ip link set node1 up
"""
"""With loopback alone srun finds no address family to listen with (getaddrinfo's AI_ADDRCONFIG). One end has no carrier
before the other is up."""


def check_slurm(site: Site) -> None:
    root = site.root
    (root.folder / "etc/slurm").mkdir(exist_ok=True)
    (root.folder / "etc/slurm/slurm.conf").write_text(textwrap.dedent(_SLURM_CONF))
    (root.folder / "etc/slurm/cgroup.conf").write_text(_CGROUP_CONF)
    (root.folder / "etc/hosts").write_text("127.0.0.1 localhost\n10.77.9.1 node1\n")
    root.run(_NETWORK)
    root.run("install -d /var/spool/slurmctld /var/spool/slurmd; systemctl restart munge slurmctld slurmd")
    site.show("srun -N1 hostname", "node1")
    site.follow(AGENT)
    site.follow("Install", page=site.repository / "deploy" / "slurm" / "README.md")
    root.run("cat deploy/slurm/slurm.conf.snippet >>/etc/slurm/slurm.conf; systemctl restart slurmctld slurmd",
             folder="/source")  # fmt: skip
    site.show("curl -sf localhost:19400/-/ready", "ready")
    site.show("srun -N1 echo it runs", "it runs")
    site.show("journalctl --no-pager -o cat | grep 'laggard.*gate: ' | tail -1", "gate: ")
    site.show("/etc/laggard/slurm/check.sh || true", "no collector is named")
    _enforce(site)


def _enforce(site: Site) -> None:
    """The node is drained once its gate may, for a disk that is full after a job."""
    root = site.root
    root.run("printf 'MODE=enforce\\nCOLLECTOR=none\\n' >>/etc/laggard/slurm/gate.conf")
    site.show("/etc/laggard/slurm/check.sh", "gate: set up, enforce: ")
    root.run("mount -t tmpfs -o size=16m scratch /mnt; head -c 16300k /dev/zero >/mnt/checkpoint")
    root.run("srun -N1 true", check=False)  # where the agent knows of the disk by now its prolog rejects it
    site.show("sinfo -h -R -o %E", "laggard: DISK_FULL /mnt ")
    wrong = root.run("journalctl --no-pager -o cat | grep 'WRONG SETUP' || true").stdout
    if wrong:
        sys.exit(f"install-check: the gate's log has: {wrong}")
