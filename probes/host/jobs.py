"""Whose a process or a file is: a job's of SLURM that lives on this node, a pod's, or nobody's.

The kernel and slurmd say it, and no name that a user can choose. The cgroup of a step is named after its job (v1:
`/slurm/uid_1001/job_41/step_0`, v2: `/system.slice/slurmstepd.scope/job_41/step_0/user`: SLURM's cgroups.html and
cgroup_v2.html). A job lives here while root's slurmstepd of one of its steps does: it writes the step into its own
command line and has a socket `NODE_JOB.STEP` in SlurmdSpoolDir (stepd_api.c). A process that is left over in the cgroup
of an ended job has none.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from laggard.kit.words import lazy_pattern
from laggard.probes.errors import or_none
from laggard.probes.host.host import Host
from laggard.probes.profiles import covers

FIRST_USER: Final = 1000
# The lowest number that login.defs gives to people (UID_MIN); the system's accounts are below.

_JOB: Final = lazy_pattern(r"^\d+:[^:]*:(?:/system\.slice)?/[^/\n]*slurm[^/\n]*/(?:uid_\d+/)?job_(\d+)(?:/|$)", re.M)
_POD: Final = lazy_pattern(r"^\d+:[^:]*:(?:/[^/\n]+)*?/kubepods[./]", re.M)
_STEP: Final = lazy_pattern(r"slurmstepd: \[(\d+)")
_SOCKET: Final = lazy_pattern(r".+_(\d+)\.\d+(?:\+\d+)?")
CONFIGURATIONS: Final = ("/run/slurm/conf/slurm.conf", "/etc/slurm/slurm.conf")  # first that of slurmd --conf-server
_MAX_DEPTH: Final = 64
_MIG_PROFILE: Final = lazy_pattern(r"\dg\.\d")


class Process(msgspec.Struct, frozen=True):
    """What the kernel shows of a process. `user`: its real uid, -1 where that is not seen, as of `parent`; `job`: of
    its cgroup."""

    user: int
    parent: int
    job: str
    of_pod: bool
    cgroup_seen: bool


class LivingJobs(msgspec.Struct, frozen=True):
    """The jobs that live here, and the slurmstepd processes that no user runs. `scheduled`: slurmd runs here;
    `all_seen`: no process is hidden from here."""

    jobs: frozenset[str]
    steps: frozenset[int]
    scheduled: bool
    all_seen: bool

    @property
    def idle(self) -> bool:
        """Whether this is a node of SLURM's on which no job lives, as far as can be seen."""
        return self.scheduled and not self.jobs and not self.steps

    def has(self, host: Host, pid: int) -> bool | None:
        """Whether the process is of one of them; None where that is not known, or where it is a pod's."""
        process = read_process(host, pid)
        above, depth = process.parent, 0
        while above > 1 and above not in self.steps and depth < _MAX_DEPTH:
            above, depth = read_process(host, above).parent, depth + 1
        if above in self.steps or process.job in self.jobs:
            return True
        return None if process.of_pod or not process.cgroup_seen or (process.job and not self.all_seen) else False


def read_process(host: Host, pid: int) -> Process:
    """What the kernel shows of it; nothing of one that has ended, or is hidden."""
    words = (status_words(host.text, pid, name)[:1] for name in ("Uid", "PPid"))
    user, parent = (int(word[0]) if word and word[0].isdecimal() else -1 for word in words)
    cgroup = or_none(host.read, f"/proc/{pid}/cgroup")
    job = _JOB.search(cgroup or "")
    return Process(user, parent, job[1] if job else "", bool(_POD.search(cgroup or "")), cgroup is not None)


def status_words(read: Callable[[str], str], pid: int | str, field: str) -> list[str]:
    """The words of a line of the process's status. The name, which stands above, has its newlines escaped there."""
    lines = read(f"/proc/{pid}/status").split("\n")
    return next((words.split() for key, _, words in (line.partition(":") for line in lines) if key == field), [])


@functools.lru_cache(maxsize=1)
def living_jobs(host: Host) -> LivingJobs:
    steps, names = set[int](), set[str]()
    jobs = {*sockets_of_jobs(host)}
    for pid in pids(host):
        names.add(name := host.text(f"/proc/{pid}/comm"))
        if name == "slurmstepd" and (process := read_process(host, pid)).user <= 0:
            command = or_none(host.read_bytes, f"/proc/{pid}/cmdline") or b""
            step = _STEP.match(command.decode(errors="replace"))
            steps.add(pid)
            jobs.add(step[1] if step else process.job)
    return LivingJobs(frozenset(jobs - {""}), frozenset(steps), "slurmd" in names, sees_all_processes(host))


def sockets_of_jobs(host: Host) -> frozenset[str]:
    """The jobs that have a step with a socket here: nearly all that live here, and one folder to read."""
    spool = (slurm_setting(host, "SlurmdSpoolDir") or "/var/spool/slurmd").replace("%n", host.node())
    names = host.names(spool.replace("%h", host.node()))
    return frozenset(found[1] for name in names if (found := _SOCKET.fullmatch(name)))


def slurm_setting(host: Host, name: str) -> str:
    """The value in slurm.conf; empty where there is none, or where it stands in a file that slurm.conf includes."""
    return next(iter(slurm_lines(host, name)), "").partition(" ")[0]


def slurm_lines(host: Host, name: str) -> list[str]:
    """What stands behind `NAME=` in each line of slurm.conf that begins so, its words with one blank between; without
    what follows a `#` that is not escaped."""
    text = next(filter(None, map(host.text, CONFIGURATIONS)), "").replace("\\\n", " ")
    text = re.sub(r"(?<!\\)#.*", "", text)
    found = re.findall(rf"^\s*{name}\s*=\s*(\S.*)", text, re.MULTILINE | re.IGNORECASE)
    return [" ".join(line.split()) for line in found]


def declared(host: Host) -> Mapping[str, str]:
    """What slurm.conf has for this node, by names in small letters. A node with less is refused by the controller, but
    where it is told to take the numbers as they stand (slurm.conf(5), config_overrides)."""
    if "config_overrides" in slurm_setting(host, "SlurmdParameters").lower():
        return {}
    usual: Mapping[str, str] = {}
    for line in slurm_lines(host, "NodeName"):
        names, _, rest = line.partition(" ")
        words = {**usual, **dict(word.partition("=")[::2] for word in rest.lower().split())}
        if names.upper() == "DEFAULT":
            usual = words
        else:
            with suppress(ValueError, re.error):  # a range that is none: slurmd does not start with it
                if covers(names, host.node()):
                    return words
    return {}


def declared_numbers(host: Host) -> Mapping[str, int]:
    return {name: int(value) for name, value in declared(host).items() if value.isdecimal()}


def declared_gpus(host: Host) -> int:
    """How many GPUs SLURM counts on here; 0 where it tells none, or counts parts of GPUs by their profiles (MIG)."""
    parts = [part.partition("(")[0].split(":") for part in declared(host).get("gres", "").split(",")]
    counts = [int(it[-1]) for it in parts if it[0] == "gpu" and it[-1].isdecimal()]
    return 0 if any(_MIG_PROFILE.search(":".join(it)) for it in parts) else sum(counts)


def users_at_work(host: Host) -> frozenset[str]:
    """The users, by number, of the jobs and pods that live here. An epilog's own job is one: the site's clean-up of
    what it has left may come after laggard."""
    living, environ = living_jobs(host), host.variables()
    of_epilog = environ.get("SLURM_SCRIPT_CONTEXT", "").startswith("epilog")
    users = {environ.get("SLURM_JOB_UID", "")} if of_epilog else set[str]()
    for pid in pids(host):
        process = read_process(host, pid)
        if process.of_pod or process.job in living.jobs or process.parent in living.steps:
            users.add(str(process.user))
    return frozenset(users - {"", "0", "-1"})


def sees_all_processes(host: Host) -> bool:
    """Whether this is the first PID namespace, where kthreadd, a thread of the kernel, has number 2."""
    return host.text("/proc/2/comm") == "kthreadd"


def pids(host: Host) -> list[int]:
    """The processes that are seen from here."""
    return [int(name) for name in host.names("/proc") if name.isdecimal()]
