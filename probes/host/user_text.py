"""The messages of the kernel that hold text of a user, and where. Pure.

Sources, of Linux 6.12: fs/fs_context.c and fs/fs_parser.c (options of mount(2), which a user may call in a user
namespace of their own), arch/x86/mm/fault.c, arch/x86/kernel/traps.c and kernel/signal.c (the name of a process, and of
the file that it executes), mm/oom_kill.c and mm/page_alloc.c, net/netfilter/nf_log_syslog.c (a prefix; of a network
namespace that is not the first one only with net.netfilter.nf_log_all_netns), net/sched/act_simple.c,
security/yama/yama_lsm.c, kernel/audit.c.

A message counts as a driver's only where its record begins as the driver's do. So text in the middle of a record says
nothing; at its beginning a user can place 15 characters, the name of a process, or where netfilter logs, up to 127.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

NAME: Final = r"(?:\\x[0-9a-f]{2}|.){1,15}"
"""A process's name, as any user chooses it: at most 15 bytes (TASK_COMM_LEN), of any value but 0."""

IN_THE_MIDDLE: Final = (
    r"\w+: (?:Unknown parameter|Bad value for|Lookup failure for) '",
    r"overlay(?:fs)?: ",
    r"process '.*' launched '",
    r"ptrace attach of ",
    r"netlink: ",
    r"audit: ",
    r"simple: ",
    r"cgroup: ",
    r"INFO: task ",
    r"CPU: \d+ ",
    r"warning: process `",
)
"""The beginnings of messages that hold text of a user further on, which is longer than a process's name."""

AT_THE_BEGINNING: Final = (
    rf"{NAME}\[\d+\]:? (?:segfault at|trap |general protection|bad frame|unhandled|vsyscall|int3|error \d)",
    rf"{NAME} invoked oom-killer: ",
    rf"{NAME} \(\d+\): ",
    rf"{NAME}: (?:page allocation failure|attempt to access beyond|vmalloc )",
)
"""The messages that begin with the name of a process. What tells them is longer than a process's name, so that no name
makes a driver's message one of these."""

OF_ANY_LENGTH: Final = (
    r".*IN=\S* OUT=\S* (?:.*\bSRC=\S+ DST=\S+ LEN=\d|MACSRC=\S+ MACDST=|MAC source = |ARP HTYPE=|"
    r"(?:[A-Z]+=\S* )*(?:MAC=(?:[0-9a-f]{2}:){5}|TRUNCATED$))"
)
"""The message of netfilter, which begins with up to 127 characters of whoever made the rule. Of a frame of a protocol
that it does not know, it ends with the interfaces and addresses (net/netfilter/nf_log_syslog.c, nf_log_unknown_packet;
of ebt_log, net/bridge/netfilter/ebt_log.c before Linux 5.13)."""


@cache  # where it is asked for first: most gates read no log, and compiling takes two milliseconds of their start
def _any_length() -> re.Pattern[str]:
    return re.compile("|".join((*IN_THE_MIDDLE, OF_ANY_LENGTH)), re.DOTALL)


@cache
def _beginning() -> re.Pattern[str]:
    return re.compile("|".join(AT_THE_BEGINNING), re.DOTALL)


def begins_with_users_text(text: str) -> bool:
    """Whether the message begins with what a user may have chosen, so that its beginning names no driver."""
    return bool(_beginning().match(text)) or holds_users_message(text)


def holds_users_message(text: str) -> bool:
    """Whether the message may hold a whole message that a user wrote."""
    return bool(_any_length().match(text))
