"""The rules for the kernel itself, the processors and the host's memory.

Sources: Linux, kernel/panic.c, arch/x86/mm/fault.c, arch/arm64/mm/fault.c, kernel/watchdog.c, kernel/rcu/tree_stall.h,
kernel/hung_task.c, kernel/time/clocksource.c, arch/x86/kernel/tsc.c, drivers/edac, arch/x86/kernel/cpu/mce,
mm/memory-failure.c, mm/oom_kill.c, drivers/thermal/intel/therm_throt.c.
"""

from __future__ import annotations

from typing import Final

from laggard.kernel_rules.rule import CRITICAL, WARNING, Rule

_RESTART: Final = "Drain the node and restart it; look for hardware errors before it, and for a newer kernel or driver."
_LOCKED: Final = "Look at what the trace names: a driver (update it) or storage; restart the node if it stays."

HOST_RULES: Final[tuple[Rule, ...]] = (
    Rule("Kernel panic", r"Kernel panic - not syncing: (?P<why>.{1,100})", "KERNEL_FAULT", CRITICAL, "the kernel",
         "panicked: {why}", _RESTART, ("ls /var/crash /var/lib/systemd/pstore", "ipmitool sel elist")),
    Rule("hard LOCKUP", r"[Ww]atchdog detected hard LOCKUP on cpu (?P<device>\d+)", "KERNEL_FAULT", CRITICAL,
         "CPU {device}", "hung in the kernel with interrupts off (hard LOCKUP)", _LOCKED,
         ("dmesg -T | grep -A30 LOCKUP",), witness="CPU"),
    Rule("soft lockup",
         r"BUG: soft lockup - CPU#(?P<device>\d+) stuck for (?P<time>\d+s)!? \[(?P<task>[^\]]{1,60})\]",
         "KERNEL_FAULT", CRITICAL, "CPU {device}", "is stuck in the kernel for {time}: soft lockup of {task}",
         _LOCKED, ("dmesg -T | grep -A30 'soft lockup'",), witness="CPU"),
    Rule("BUG: ",
         r"(?<!\w)BUG: (?P<why>unable to handle .{1,60}?|kernel NULL pointer dereference.{0,20})(?: at |, address|$|:)",
         "KERNEL_FAULT", CRITICAL, "the kernel", "crashed (oops): {why}", _RESTART, ("dmesg -T | grep -A40 BUG:",),
         witness="crash"),
    Rule("kernel BUG at", r"kernel BUG at (?P<where>\S+\.[chS]:\d+)!?$", "KERNEL_FAULT", CRITICAL, "the kernel",
         "crashed at {where}", _RESTART, ("dmesg -T | grep -A40 'kernel BUG'",), witness="crash"),
    Rule("[#", r"^(?:(?:Internal error: )?Oops(?: - \w+)?|general protection fault|invalid opcode|divide error|stack "
         r"segment)\b.{0,160}\[#\d+\]", "KERNEL_FAULT", CRITICAL, "the kernel", "crashed (oops)", _RESTART,
         ("dmesg -T | grep -A40 Oops",), witness="crash"),
    Rule("detected stall", r"rcu: (?:INFO: )?rcu_?\w+ (?:self-)?detected (?:expedited )?stalls? on CPU|INFO: rcu_\w+ "
         r"(?:self-)?detected stalls? on CPU", "KERNEL_FAULT", CRITICAL, "the kernel",
         "waits for a CPU that hangs: RCU stall", _LOCKED, ("dmesg -T | grep -A30 'detected stall'",), witness="CPU"),
    Rule("rcu_", r"rcu: INFO: rcu_\w+ (?:self-)?detected stalls?", "KERNEL_FAULT", CRITICAL, "the kernel",
         "waits for a CPU that hangs: RCU stall", _LOCKED, ("dmesg -T | grep -A30 'detected stall'",), witness="CPU"),
    Rule("blocked for more than",
         r"INFO: task (?P<device>.{1,40}):(?P<pid>\d+) (?:<[^>]*> )?blocked (?:on .{1,60} )?for more than "
         r"(?P<time>\d+) seconds", "KERNEL_FAULT", WARNING, "the process {device}",
         "hung in the kernel for more than {time} s (state D)",
         "Look at the trace below it in the log: most often a file system or a driver does not answer.",
         ("dmesg -T | grep -A20 'blocked for more'", "ps -eo pid,stat,wchan:30,comm | awk '$2 ~ /D/'"),
         witness="process"),
    Rule("unstable",
         r"clocksource: .{0,160}?Marking clocksource '?(?P<device>\w+)'? as unstable|tsc: Marking (?P<other>TSC) "
         r"unstable due to (?!running on)", "CLOCK_SOURCE_SLOW", WARNING, "the clocksource {device}{other}",
         "was given up by the kernel, which reads time from a slower one such as hpet",
         "Restart the node; look for newer firmware of the board, or boot with `tsc=reliable` where the clock is "
         "sound.", ("cat /sys/devices/system/clocksource/clocksource0/current_clocksource",),
         r"Switched to clocksource (?:tsc|kvm-clock|arch_sys_counter|hyperv\w*|xen)\b"),
)  # fmt: skip

UNCORRECTED: Final = Rule(
    "or", r"\bEDAC \S+: \d+ UE |Machine Check Exception|Hardware Error\].*[Uu]ncorrected"
    r"|Memory failure: \S+ .*(?:Killing|Sending SIGBUS|recovery)|[Ff]atal machine check", "MACHINE_CHECK", CRITICAL,
    "the host", "reports hardware errors that could not be corrected",
    "Have the memory module or processor replaced; take the node out of service until then.",
    ("ras-mc-ctl --errors", "ipmitool sel elist"), witness="memory",
)  # fmt: skip
OUT_OF_MEMORY: Final = Rule(
    "ut of memory", r"^Out of memory: Kill(?:ed)? process (?P<pid>\d+) \((?P<task>.{1,40}?)\)", "HOST_MEMORY_LOW",
    WARNING, "the host", "had no memory left, and the kernel killed {task}",
    "Look at what used it (`sar -r`, the job's own record), and limit each job's memory by its cgroup.",
    ("free -g", "dmesg -T | grep -B40 'Out of memory'"), witness="told",
)  # fmt: skip
"""A job that reaches the limit of its own cgroup is no fault of the machine, and its record begins otherwise."""
HOT: Final = Rule(
    "temperature above threshold", r"^(?:mce: )?CPU\d+: (?:Core |Package )?temperature above threshold",
    "MACHINE_CHECK", WARNING, "the processors", "run slower for heat, and nothing says that they became cooler",
    "Look at fans, air and the heat sink.", ("ipmitool sdr type temperature", "turbostat --quiet -n 1"),
    r"^(?:mce: )?CPU\d+: (?:Core |Package )?temperature/speed normal", witness="told",
)  # fmt: skip

LIVE_RULES: Final = (*(rule for rule in HOST_RULES if rule.witness), UNCORRECTED, OUT_OF_MEMORY, HOT)
"""The rules that probes judge the live log by."""
