"""The rules for the kernel itself: panics, oopses, lockups, stalls, hung tasks, the source of its clock.

Sources: Linux, kernel/panic.c, arch/x86/mm/fault.c, arch/arm64/mm/fault.c, kernel/watchdog.c, kernel/rcu/tree_stall.h,
kernel/hung_task.c, kernel/time/clocksource.c, arch/x86/kernel/tsc.c.
"""

from __future__ import annotations

from typing import Final

from laggard.diagnose.kernel.rule import CRITICAL, WARNING, KernelRule, rule

_RESTART: Final = "Drain the node and restart it; look for hardware errors before it, and for a newer kernel or driver."
_LOCKED: Final = "Look at what the trace names: a driver (update it) or storage; restart the node if it stays."

HOST_RULES: Final[tuple[KernelRule, ...]] = (
    rule("Kernel panic", r"Kernel panic - not syncing: (?P<why>.{1,100})", "KERNEL_FAULT", CRITICAL, "the kernel",
         "panicked: {why}", _RESTART, ("ls /var/crash /var/lib/systemd/pstore", "ipmitool sel elist")),
    rule("hard LOCKUP", r"[Ww]atchdog detected hard LOCKUP on cpu (?P<device>\d+)", "KERNEL_FAULT", CRITICAL,
         "CPU {device}", "hung in the kernel with interrupts off (hard LOCKUP)", _LOCKED,
         ("dmesg -T | grep -A30 LOCKUP",)),
    rule("soft lockup",
         r"BUG: soft lockup - CPU#(?P<device>\d+) stuck for (?P<time>\d+s)!? \[(?P<task>[^\]]{1,60})\]",
         "KERNEL_FAULT", CRITICAL, "CPU {device}", "is stuck in the kernel for {time}: soft lockup of {task}",
         _LOCKED, ("dmesg -T | grep -A30 'soft lockup'",)),
    rule("BUG: ",
         r"(?<!\w)BUG: (?P<why>unable to handle .{1,60}?|kernel NULL pointer dereference.{0,20})(?: at |, address|$|:)",
         "KERNEL_FAULT", CRITICAL, "the kernel", "crashed (oops): {why}", _RESTART, ("dmesg -T | grep -A40 BUG:",)),
    rule("kernel BUG at", r"kernel BUG at (?P<where>\S+\.[chS]:\d+)!?$", "KERNEL_FAULT", CRITICAL, "the kernel",
         "crashed at {where}", _RESTART, ("dmesg -T | grep -A40 'kernel BUG'",)),
    rule("[#", r"^(?:(?:Internal error: )?Oops(?: - \w+)?|general protection fault|invalid opcode|divide error|stack "
         r"segment)\b.{0,160}\[#\d+\]", "KERNEL_FAULT", CRITICAL, "the kernel", "crashed (oops)", _RESTART,
         ("dmesg -T | grep -A40 Oops",)),
    rule("detected stall", r"rcu: (?:INFO: )?rcu_?\w+ (?:self-)?detected (?:expedited )?stalls? on CPU|INFO: rcu_\w+ "
         r"(?:self-)?detected stalls? on CPU", "KERNEL_FAULT", CRITICAL, "the kernel",
         "waits for a CPU that hangs: RCU stall", _LOCKED, ("dmesg -T | grep -A30 'detected stall'",)),
    rule("rcu_", r"rcu: INFO: rcu_\w+ (?:self-)?detected stalls?", "KERNEL_FAULT", CRITICAL, "the kernel",
         "waits for a CPU that hangs: RCU stall", _LOCKED, ("dmesg -T | grep -A30 'detected stall'",)),
    rule("blocked for more than",
         r"INFO: task (?P<device>.{1,40}):\d+ (?:<[^>]*> )?blocked (?:on .{1,60} )?for more than (?P<time>\d+) "
         r"seconds", "KERNEL_FAULT", WARNING, "the process {device}",
         "hung in the kernel for more than {time} s (state D)",
         "Look at the trace below it in the log: most often a file system or a driver does not answer.",
         ("dmesg -T | grep -A20 'blocked for more'", "ps -eo pid,stat,wchan:30,comm | awk '$2 ~ /D/'")),
    rule("unstable",
         r"clocksource: .{0,160}?Marking clocksource '?(?P<device>\w+)'? as unstable|tsc: Marking (?P<other>TSC) "
         r"unstable due to (?!running on)", "CLOCK_SOURCE_SLOW", WARNING, "the clocksource {device}{other}",
         "was given up by the kernel, which reads time from a slower one such as hpet",
         "Restart the node; look for newer firmware of the board, or boot with `tsc=reliable` where the clock is "
         "sound.", ("cat /sys/devices/system/clocksource/clocksource0/current_clocksource",),
         r"Switched to clocksource (?:tsc|kvm-clock|arch_sys_counter|hyperv\w*|xen)\b"),
)  # fmt: skip
