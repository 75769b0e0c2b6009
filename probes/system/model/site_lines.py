"""The file of a site's own checks, as values, and what NHC says of its own lines. Pure."""

from __future__ import annotations

import shlex
from typing import Annotated, Final, Literal

from msgspec import Meta, field

from laggard.kit.config import Settings
from laggard.kit.limits import NAME, PROGRAM, Prose, Text
from laggard.kit.words import lazy_pattern
from laggard.probes.probe import Thresholds

SECONDS: Final = 5.0
"""The default `timeout` of node-problem-detector's custom plugins (pkg/custompluginmonitor/types/config.go)."""

MAX_CHECKS: Final = 64

Seconds = Annotated[float, Meta(gt=0, le=60)]
Program = Annotated[str, Meta(pattern=PROGRAM, max_length=4096)]
_Name = Annotated[str, Meta(pattern=NAME)]
Means = Literal["critical", "warning", "info"]


class SiteCheck(Thresholds, frozen=True):
    """One check of the site's own: a line of `checks`."""

    run: Program
    """The absolute path of a program and its arguments, with a shell's quotes. No shell runs: nothing is expanded."""
    nodes: Text = "*"
    """The nodes on which it runs: names, `gpu*`, `gpu[001-064,070]`, `/regular expression/`, several with commas; with
    `!` before it all others."""
    seconds: Seconds = SECONDS
    """The time after which it is killed, and unknown."""
    status: dict[Annotated[int, Meta(ge=1, le=255)], Means] = field(default_factory=lambda: {1: "critical"})
    """The severity by exit status; 0 is ok, and any other one unknown. Nagios' plugins: `{1: warning, 2: critical}`."""
    fix: Prose = ""
    """What a person should do; empty: to run it by hand."""

    @property
    def argv(self) -> list[str]:
        """Raises ValueError."""
        return shlex.split(self.run)


class Nhc(Thresholds, frozen=True):
    """Checks of LBNL NHC, 1.4.2 or newer, which run as they are, in one process of NHC's."""

    conf: str = ""
    """NHC's own configuration, as /etc/nhc/nhc.conf; empty: `lines` alone."""
    lines: Annotated[str, Meta(max_length=1 << 16)] = ""
    """More lines in that form, `NODES || CHECK`."""
    program: Program = "/usr/sbin/nhc"
    """NHC itself."""
    options: tuple[Text, ...] = ()
    """More of its options, such as `[-D, /opt/nhc/etc]`."""
    seconds: Seconds = SECONDS
    """The time for all of its lines; those that it did not reach are unknown."""
    severity: Means = "critical"
    """The severity of a check that fails."""

    @property
    def argv(self) -> list[str]:
        return [self.program, *self.options, *_WORDS]

    def by_hand(self, check: str) -> str:
        return shlex.join((self.program, *self.options, "-e", check))


class SiteChecks(Settings, frozen=True):
    """The content of the file of a site's own checks."""

    checks: Annotated[dict[_Name, SiteCheck], Meta(max_length=MAX_CHECKS)] = {}
    """Programs of the site's, by name, a line each. The name is the device of its findings, by which these are
    accepted and counted."""
    nhc: Nhc | None = None
    """NHC's checks."""


_MARK: Final = "laggard runs: "
NHC_END: Final = "laggard: all lines were run"

_RUN_ALL: Final = (
    "unset NHC_DETACHED; syslog() { :; }; CHECKS=( ); nhc_load_conf /dev/stdin; "
    'for CHECK in "${CHECKS[@]}"; do echo; echo "' + _MARK + '$CHECK"; '
    "NHC_CHECK_ALL=1 MARK_OFFLINE=0 SILENT=0 CHECK_DIED=0; eval $CHECK; RET=$?; "
    '[[ $RET == 0 || $CHECK_DIED == 1 ]] || echo "ERROR: $NAME: Health check failed: it returned $RET"; done; '
    "echo; echo " + NHC_END
)
"""What `nhc -e` evaluates: all lines of its standard input, as its own main loop does (nhcmain_run_checks), each after
its mark. With -e NHC writes no log and marks no node (nhcmain_finalize_env), and with NHC_CHECK_ALL it goes on after a
check that fails, whatever variables a line sets. A line that is no check of NHC's fails by its exit status, which NHC
itself then passes over."""

_WORDS: Final = ("-e", _RUN_ALL, "NHC_DETACHED=1", "FORCE_SETSID=0")
"""The words after NHC's name. As if detached already it does not detach itself, whatever /etc/sysconfig/nhc says, and
without a session of its own it ends with the process group that started it."""

_FAILED: Final = lazy_pattern(r"ERROR:\s+\S+:\s+Health check failed:\s+(?:check_\w+:\s+)?(.*)")


def read_nhc(output: str) -> dict[str, str]:
    """The lines that ran, in order, and why each failed; empty: it did not. NHC 1.4.2 says it twice."""
    parts = (part.partition("\n") for part in output.split(f"\n{_MARK}")[1:])
    failed = ((check, _FAILED.search(said)) for check, _, said in parts)
    return {check: (found[1] or "it failed") if found else "" for check, found in failed}
