"""A virtual machine for tests, with a real kernel, PCI Express registers and RDMA devices: Debian's kernel in QEMU.

QEMU emulates in software; neither KVM nor a change of the machine is needed. The guest's root file system is this
machine's own, read-only; /run is a tmpfs of its own. Its PCI tree:

    00:02.0 root port   -> 01:00.0 eth0
    00:03.0 root port   -> 02:00.0 switch -> 03:00.0 port -> 04:00.0 eth1
                                          -> 03:01.0 port -> 05:00.0 random numbers

The root ports have ACS; the switch's ports have none. There is an IOMMU, which the kernel uses, and so it switches ACS
on. rxe0 and rxe1 are RDMA devices in software over eth0 and eth1.
The kernel and the initial file system are made at the first use, and kept in LAGGARD_VM_CACHE, else in
~/.cache/laggard-vm.
"""

import base64
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

TOOLS: Final[Mapping[str, str]] = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "modprobe": "kmod",
    "cpio": "cpio",
    "rdma": "iproute2",
    "setpci": "pciutils",
    "ib_write_bw": "perftest",
    "apt-get": "apt",
}
"""The programs that must be installed, and the Debian package of each."""

_MODULES: Final = (
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "virtio_net",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "tcp_diag",
)
_APPLETS: Final = ("sh", "mount", "insmod", "poweroff", "ip", "chroot")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_VERSION: Final = "3"  # of the cached files: another number makes them anew

_INIT: Final = (Path(__file__).parents[1] / "data" / "vm" / "init.sh").read_text()
_COMMAND: Final = """export PATH={path} HOME=/run TMPDIR=/run
for number in 0 1; do rdma link add rxe$number type rxe netdev eth$number; done
echo VM-BEGIN; {command}; echo VM-END:$?
"""
_DEVICES: Final = """
-device intel-iommu
-device pcie-root-port,id=rp0,chassis=1,slot=1,addr=2 -device virtio-net-pci,romfile=,bus=rp0,netdev=n0
-netdev user,id=n0,restrict=on
-device pcie-root-port,id=rp1,chassis=2,slot=2,addr=3 -device x3130-upstream,id=up,bus=rp1
-device xio3130-downstream,id=dn0,bus=up,chassis=3,slot=3,addr=0 -device virtio-net-pci,romfile=,bus=dn0,netdev=n1
-netdev user,id=n1,restrict=on
-device xio3130-downstream,id=dn1,bus=up,chassis=4,slot=4,addr=1 -device virtio-rng-pci,bus=dn1
"""


class VmUnavailable(Exception):
    """No virtual machine can run here. The text says why."""


TIMED_OUT: Final = 124


class VmResult(NamedTuple):
    status: int
    """The command's exit status; TIMED_OUT where time ran out."""

    output: str
    log: str
    """All that the guest printed, with the kernel's messages."""


def missing_tools() -> list[str]:
    return [f"{tool} (package {package})" for tool, package in TOOLS.items() if not shutil.which(tool, path=_PATH)]


def run_in_vm(command: Sequence[str], environ: Mapping[str, str], timeout_seconds: float = 900) -> VmResult:
    """Boots the virtual machine and runs `command` in it, as root. Raises VmUnavailable."""
    if missing := missing_tools():
        raise VmUnavailable(f"not installed: {', '.join(missing)}; `scripts/setup --system` installs them as root")
    folder = _cached()
    command_line = shlex.join(["env", *(f"{name}={value}" for name, value in environ.items()), *command])
    script = base64.b64encode(_COMMAND.format(path=_PATH, command=command_line).encode()).decode()
    qemu = [
        *("qemu-system-x86_64", "-machine", "q35", "-cpu", "max", "-smp", "2", "-m", "1536"),
        *("-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"),
        *("-kernel", str(folder / "vmlinuz"), "-initrd", str(folder / "initrd.gz")),
        # Without no_timer_check the kernel panics where this machine is too busy to deliver its first timer interrupts.
        *("-append", f"console=ttyS0 quiet panic=-1 intel_iommu=on no_timer_check vmcommand={script}"),
        *("-virtfs", "local,path=/,security_model=none,mount_tag=host,readonly=on,multidevs=remap"),
        *shlex.split(_DEVICES),
    ]
    try:
        done = subprocess.run(qemu, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_seconds)
        log = done.stdout.decode(errors="replace").replace("\r", "") + done.stderr.decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        log = f"{(error.stdout or b'').decode(errors='replace')}\n(no end in {timeout_seconds:.0f} s)"
    booted, _, output = log.partition("VM-BEGIN\n")
    if not booted or not output:
        raise VmUnavailable(f"the machine did not come up:\n{log[-2000:]}")
    output, _, status = output.partition("VM-END:")
    return VmResult(int(status.split()[0]) if status else TIMED_OUT, output, log)


def _cached() -> Path:
    """Returns the folder with the kernel and the initial file system, which are made where they are missing."""
    base = os.environ.get("LAGGARD_VM_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "laggard-vm"
    )
    folder = Path(base) / f"tests-{_VERSION}"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
            _make(folder)
        except OSError as error:
            raise VmUnavailable(f"{folder} cannot be made: {error.strerror}") from None
        except subprocess.CalledProcessError as error:
            raise VmUnavailable(
                f"{shlex.join(error.cmd)} failed: {error.stderr.decode(errors='replace')[-500:]}"
            ) from None
        (folder / "ready").touch()
    return folder


def _make(folder: Path) -> None:
    """Downloads Debian's kernel package, and makes an initial file system with the modules that the machine needs."""
    _run("apt-get", "download", "-q", _kernel_package(folder), cwd=folder)
    archive = next(folder.glob("*.deb"))
    _run("dpkg", "-x", str(archive), "kernel", cwd=folder)
    archive.unlink()
    (version,) = (path.name for path in (folder / "kernel/lib/modules").iterdir())
    shutil.copy(next((folder / "kernel/boot").glob("vmlinuz-*")), folder / "vmlinuz")
    _run("depmod", "-b", "kernel", version, cwd=folder)
    root = folder / "initrd"
    for name in ("bin", "proc", "sys", "dev", "mnt", "modules"):
        (root / name).mkdir(parents=True)
    busybox = shutil.which("busybox", path=_PATH)
    assert busybox
    shutil.copy(busybox, root / "bin/busybox")
    for applet in _APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    for number, module in enumerate(_module_files(folder, version)):
        shutil.copy(module, root / f"modules/{number:03}-{module.name}")
    (root / "init").write_text(_INIT)
    (root / "init").chmod(0o755)
    _run("sh", "-c", "find . | cpio -o -H newc | gzip -1 > ../initrd.gz", cwd=root)
    shutil.rmtree(root)
    shutil.rmtree(folder / "kernel")


def _kernel_package(folder: Path) -> str:
    """Returns the name of the package with Debian's newest kernel."""
    for preparation in ((), ("apt-get", "update", "-q")):
        try:
            if preparation:
                _run(*preparation, cwd=folder)
            depends = _run("apt-cache", "depends", "linux-image-amd64", cwd=folder)
        except subprocess.CalledProcessError:
            continue
        if found := re.search(r"Depends: (linux-image-\S+)", depends):
            return found[1]
    raise VmUnavailable("apt knows no kernel package linux-image-amd64: this is no Debian, or there is no network")


def _module_files(folder: Path, version: str) -> list[Path]:
    """Returns the modules' files in the order in which they have to be loaded."""
    found: dict[str, None] = {}
    for module in _MODULES:
        shown = _run("modprobe", "-d", str(folder / "kernel"), "-S", version, "--show-depends", module, cwd=folder)
        found.update(dict.fromkeys(line.split()[1] for line in shown.splitlines() if line.startswith("insmod")))
    return [Path(name) for name in found]


def _run(*command: str, cwd: Path) -> str:
    environ = {**os.environ, "PATH": _PATH, "LC_ALL": "C"}
    return subprocess.run(command, cwd=cwd, env=environ, check=True, capture_output=True).stdout.decode()
