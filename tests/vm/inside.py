"""The script that runs in the virtual machine, as root: it changes registers of the hardware, and runs the gate each
time.

Prints one line of JSON: the exit status and the report of each step. See support/vm.py for the PCI tree.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cgroups import CAP_SYS_ADMIN, drop, ranks_in_a_cgroup

import laggard.gate.command  # noqa: F401  (once, before the forks)
from laggard import cli
from laggard.diagnose.lspci import parse_lspci
from laggard.probes.host.counter_history import MIN_INTERVAL_SECONDS
from laggard.probes.host.host import Host
from laggard.probes.pci.model.config_space import NOT_READ, ConfigSpace
from laggard.probes.pci.model.sysfs import read_tree, with_config
from laggard.probes.pci.model.tree import PciTree

NEAR_ROOT, BEHIND_SWITCH, ALSO_BEHIND_SWITCH = "0000:01:00.0", "0000:04:00.0", "0000:05:00.0"

RDMA = ("--only", "rdma_ports", "--only", "rdma_net", "--only", "rdma_errors")
SOFT = {
    "rdma_ports": {"soft": True, "expected": ["rxe0"]},
    "rdma_net": {"soft": True, "ignore": ["rxe1"], "least_mtu_bytes": 1024},  # eth0 has an MTU of 1500
    "rdma_errors": {"soft": True},
}

Steps = dict[str, dict[str, Any]]


def gate(*flags: str, thresholds: dict[str, Any] | None = None, privileged: bool = True) -> dict[str, Any]:
    """Runs the gate, once more where a probe did not answer in its two seconds: where QEMU's own machine is busy, this
    one is slow."""
    for _ in range(5):
        found = _run_once(*flags, thresholds=thresholds, privileged=privileged)
        if "gave no answer in" not in str(found["report"]):
            break
    return found


def _run_once(*flags: str, thresholds: dict[str, Any] | None, privileged: bool) -> dict[str, Any]:
    """Runs the command line in a forked process. A fresh interpreter would take seconds to start here."""
    with open("/run/profile.yaml", "w") as file:
        json.dump({"thresholds": thresholds or {}, "deadline_seconds": 60}, file)  # YAML too
    command = ["healthcheck", "--format", "json", "--profile", "/run/profile.yaml", *flags]
    with open("/run/out", "w+") as out, open("/run/err", "w+") as err:
        pid = os.fork()
        if pid == 0:
            _run_gate(privileged, out.fileno(), err.fileno(), command)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        return {"status": status, "report": json.loads(out.read() or "null"), "stderr": err.read()}


def _run_gate(privileged: bool, out: int, err: int, command: list[str]) -> NoReturn:
    status = 70
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        if not privileged:
            drop([CAP_SYS_ADMIN])  # without it only 64 bytes of configuration space are shown
        status = cli.main(command)
        sys.stdout.flush()
    finally:
        os._exit(status)


def acs(endpoints: Sequence[str], virtual: bool | None = False, privileged: bool = True) -> dict[str, Any]:
    chosen = {"endpoints": list(endpoints), "virtual": virtual}
    return gate("--only", "acs", thresholds={"acs": chosen}, privileged=privileged)


@contextlib.contextmanager
def reader() -> Iterator[None]:
    """`laggard agent --reader`, which has the capability that the gate then lacks, in a forked process."""
    path = "/run/reader.sock"
    pid = os.fork()
    if pid == 0:
        os._exit(cli.main(["agent", "--reader", "--socket", path, "--allow-user", "0"]))
    os.environ["LAGGARD_READER"] = path
    while not os.path.exists(path):
        time.sleep(0.05)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        del os.environ["LAGGARD_READER"]


def set_acs(port: str, control: int) -> None:
    subprocess.run(["setpci", "-s", port, f"ECAP_ACS+6.w={control:04x}"], check=True)


def acs_steps(steps: Steps) -> None:
    apart, together = (NEAR_ROOT, BEHIND_SWITCH), (BEHIND_SWITCH, ALSO_BEHIND_SWITCH)
    steps["as the kernel set it"] = acs(apart)
    set_acs("00:02.0", 0x00)
    set_acs("00:03.0", 0x00)
    steps["acs off"] = acs(apart)
    set_acs("00:03.0", 0x1D)
    steps["acs on"] = acs(apart)
    steps["read twice"] = read_twice()
    steps["acs on, above the switch"] = acs(together)
    steps["acs on, virtual"] = acs(apart, virtual=True)
    steps["acs on, virtual unknown"] = acs(apart, virtual=None)
    steps["acs on, not root"] = acs(apart, privileged=False)
    with reader():
        steps["acs on, not root, by the reader"] = acs(apart, privileged=False)
    set_acs("00:03.0", 0x01)
    steps["source validation alone"] = acs(apart)
    set_acs("00:03.0", 0x00)
    steps["acs off again"] = acs(apart)
    steps["no endpoint named"] = gate("--only", "acs")


def other_steps(steps: Steps) -> None:
    chosen = {"endpoints": [NEAR_ROOT, BEHIND_SWITCH]}
    probes = ("iommu", "pcie_links", "pcie_requests", "pcie_errors", "numa")
    flags = [flag for probe in probes for flag in ("--only", probe)]
    thresholds: dict[str, dict[str, Any]] = dict.fromkeys(probes, chosen)
    steps["other probes"] = gate(*flags, thresholds=thresholds | {"pcie_requests": {**chosen, "virtual": False}})


def read_twice() -> dict[str, Any]:
    """Reads the same registers from /sys and from lspci's text."""
    host = Host()
    tree = read_tree(host)
    of_sysfs = PciTree({device.address: device for device in with_config(host, tree)})
    text = subprocess.run(["lspci", "-vvv", "-nn", "-D"], capture_output=True, text=True, check=True).stdout
    return {"sysfs": registers(of_sysfs), "lspci": registers(parse_lspci(text))}


def registers(tree: PciTree) -> dict[str, Any]:
    return {
        device.address: [device.parent, device.pci_class, device.vendor, device.device, _express(config), config.acs]
        for device in tree
        if (config := device.config) is not NOT_READ
    }


def _express(config: ConfigSpace) -> Any:
    """Leaves the target speed out: where the register holds none, lspci prints the lowest."""
    return config.express and config.express._replace(target_speed=0.0)


def first_rdma_steps(steps: Steps) -> None:
    """RDMA devices in software are not judged, unless the profile says that the machine has no others."""
    steps["rdma, live"] = gate("--only", "rdma_ports", "--only", "rdma_errors")
    steps["rdma"] = gate(*RDMA, thresholds=SOFT)
    steps["rdma"]["finished"] = time.monotonic()


def rdma_steps(steps: Steps) -> None:
    """Starts a minute after the first run: snapshots closer than that count as one."""
    move_traffic()
    time.sleep(max(0.0, steps["rdma"]["finished"] + MIN_INTERVAL_SECONDS + 1 - time.monotonic()))
    steps["rdma, after traffic"] = gate(*RDMA, thresholds=SOFT)
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
    steps["rdma, eth0 down"] = gate(*RDMA, thresholds=SOFT)
    subprocess.run(["ip", "link", "set", "eth0", "up"], check=True)
    wait_until_active()
    steps["rdma, eth0 up again"] = gate(*RDMA, thresholds=SOFT)


def wait_until_active() -> None:
    for _ in range(100):
        with open("/sys/class/infiniband/rxe0/ports/1/state") as file:
            if "ACTIVE" in file.read():
                return
        time.sleep(0.2)


def move_traffic() -> None:
    command = ["ib_write_bw", "-d", "rxe0", "-D", "2", "-s", "65536"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(2)
    subprocess.run([*command, "10.77.0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
    server.wait(300)


IB_WRITE = "ib_write_bw -d rxe0 -n 300 -s 65536 & sleep 2; ib_write_bw -d rxe0 -n 300 -s 65536 10.77.0.1; wait"
SUPPORT = Path(__file__).resolve().parents[1] / "support"
MB = 1 << 20


def traffic_steps(steps: Steps) -> None:
    """What the agent's watch makes of a job with one other node, 10.77.1.1, while it uses RDMA, TCP, or reads a file
    from 10.77.0.1 over TCP. Both addresses are this machine's: who connects to one binds the other."""
    peer, storage = "10.77.1.1", "10.77.0.1"
    serve = [sys.executable, str(SUPPORT / "exchanging_rank.py"), "serve"]
    servers = [subprocess.Popen([*serve, host, "5000"], stdout=subprocess.PIPE) for host in (peer, storage)]
    for server in servers:
        assert server.stdout is not None and server.stdout.readline() == b"done\n"
    exchange, read = [peer, 5000, storage, 32 * MB, 32 * MB], [storage, 5000, peer, 1024, 8 * MB]
    talk = [peer, 5000, storage, 1024, 1024]
    plan = {
        "rdma and a file over tcp": [{"exchange": [talk, read], "command": IB_WRITE}] * 2,
        "tcp": [{"exchange": [exchange]}] * 2,
    }
    everything = [step for part in plan.values() for step in part]
    job = json.dumps({"sys": "/sys", "nodes": peer, "steps": everything})
    command = [sys.executable, str(SUPPORT / "traffic_seen.py")]
    done = subprocess.run(command, input=job, capture_output=True, text=True, timeout=300)
    for server in servers:
        server.kill()
    seen = json.loads(done.stdout.partition("SEEN:")[2] or json.dumps([done.stderr] * 4))
    steps["traffic"] = {"rdma and a file over tcp": seen[:2], "tcp": seen[2:]}


def cgroup_steps(steps: Steps) -> None:
    steps["cgroup of version 2"] = ranks_in_a_cgroup()


def main() -> None:
    steps: Steps = {}
    parts: tuple[Callable[[Steps], None], ...] = (
        first_rdma_steps,
        acs_steps,
        traffic_steps,
        other_steps,
        cgroup_steps,
        rdma_steps,
    )
    for part in parts:
        try:
            part(steps)
            print(f"{part.__name__} done", flush=True)
        except Exception as error:
            steps[part.__name__] = {"error": f"{type(error).__name__}: {error}"}
    print("STEPS:" + json.dumps(steps), flush=True)


if __name__ == "__main__":
    main()
