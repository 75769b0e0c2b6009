"""What each tool claims to find: in which forms of a recording, layouts and faults, and where it says so.

A tool is scored on what it claims as well as on everything, and where it claims nothing it stands as out of scope. A
claim is read widely: what the documentation leaves open counts as claimed only where the tool's own words name it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol

from simulator.dump_cases import KINDS
from simulator.layout import LAYOUTS

from quality.matrix import SLOW_FAULTS

PHASED: Final = frozenset(("host", "device"))
"""The forms in which phases are recorded, without which a tool that times them has nothing."""
EVERY_FORM: Final = frozenset(("host", "device", "sparse"))
EVERY_LAYOUT: Final = frozenset(LAYOUTS)
WITHOUT_SENDS: Final = frozenset(name for name, layout in LAYOUTS.items() if layout.pp == 1)
DATA_PARALLEL: Final = frozenset(name for name, layout in LAYOUTS.items() if layout.tp == layout.pp == layout.ep == 1)
SLOW: Final = frozenset(SLOW_FAULTS)
GPU: Final = frozenset(name for name in SLOW if name.startswith("GPU"))
HOST: Final = frozenset(("host", "host, from mid-run"))
NETWORK: Final = frozenset(("NIC", "link", "rail", "NVLink"))
HANGS: Final = frozenset(("hang_compute", "hang_collective", "hang_network"))
DEATHS: Final = frozenset(("death", "death_collective", "death_exception", "death_node"))


class Claim(NamedTuple):
    """What a tool says of itself, and where."""

    says: str
    source: str


class Scope(NamedTuple):
    """The rows of the tables, the forms and the layouts in which the tool claims to name somebody. No `claims`: it is a
    rule of this benchmark's, for everything."""

    rows: frozenset[str]
    forms: frozenset[str]
    layouts: frozenset[str]
    claims: tuple[Claim, ...] = ()

    def holds(self, row: str, form: str, layout: str) -> bool:
        return row in self.rows and self.reads(form, layout)

    def reads(self, form: str, layout: str) -> bool:
        """Whether the tool claims such jobs, whatever befell them."""
        return form in self.forms and layout.partition(",")[0] in self.layouts


class Scored(Protocol):
    """What of a result tells whether a tool claims it."""

    @property
    def row(self) -> str: ...

    @property
    def case(self) -> dict[str, Any]: ...


EVERY_KIND: Final = frozenset(KINDS)
STOPPED_GPU: Final = frozenset(kind for kind in KINDS if kind.startswith("gpu_")) | {"two_gpus"}
NOBODY: Final = frozenset(("slow", "complete"))
"""The kinds of dumps in which nobody is at fault. A tool is asked about them all the same."""


WHOLE, FOUND = "whole", "as found"
"""How the dumps of a job lie there: all of them, by one torch, from the first record on; or as jobs leave them."""


class DumpScope(NamedTuple):
    """The kinds of dumps (simulator.dump_cases) in which the tool claims to name somebody, and in which state; `sends`:
    whether it claims jobs whose ranks send to each other, too."""

    kinds: frozenset[str]
    states: frozenset[str]
    sends: bool = True
    claims: tuple[Claim, ...] = ()

    def holds(self, kind: str, state: str, sends: bool) -> bool:
        return kind in self.kinds and state in self.states and (self.sends or not sends)


EVERY_STATE: Final = frozenset((WHOLE, FOUND))


EVERYTHING: Final = Scope(SLOW | HANGS | DEATHS, EVERY_FORM, EVERY_LAYOUT)
NVRX_GUIDE: Final = "nvidia-resiliency-ext, docs/source/straggler_det/usage_guide.rst"
FR_TRACE_FILE: Final = "torch/distributed/flight_recorder/fr_trace.py, its Known Issues, and components/builder.py"
TRACEML_POLICY: Final = "traceml, docs/developer_guide/rank-straggler-policy.md"

SCOPES: Final = {
    "NVRx, relative scores": Scope(
        GPU | HOST | {"host's CPU", "input", "pauses", "garbage collection", "two at once"}, PHASED, EVERY_LAYOUT,
        (
            Claim("scores each rank's sections of code by wall clock, and its GPU by its kernels", NVRX_GUIDE),
            Claim("the best-performing rank is the reference; some kernels must be common to all ranks", NVRX_GUIDE),
            Claim("leaves NCCL's kernels out", "nvidia-resiliency-ext, straggler/reporting.py"),
        ),
    ),
    "NVRx, individual scores": Scope(
        frozenset(("GPU, from mid-run", "host, from mid-run", "GPU, now and then")), PHASED, EVERY_LAYOUT,
        (Claim("the rank's own best is the reference, so it finds what became slow", NVRX_GUIDE),),
    ),
    "NVRx CollectiveAnalyzer": Scope(
        HANGS | DEATHS, EVERY_FORM, EVERY_LAYOUT,
        (
            Claim(
                "analyses Flight Recorder dumps made at a timeout or an exception, and returns the ranks to isolate",
                "nvidia-resiliency-ext, attribution/trace_analyzer/fr_attribution.py",
            ),
        ),
    ),
    "TraceML step time": Scope(
        GPU | HOST | {"host's CPU", "input", "pauses", "garbage collection", "two at once"}, PHASED, DATA_PARALLEL,
        (
            Claim("names a culprit rank by the backward pass (DDP), or forward and backward (FSDP)", TRACEML_POLICY),
            Claim("from 10 % of the step on", TRACEML_POLICY),
            Claim("is no direct timing of NCCL, all-reduce or synchronisation", TRACEML_POLICY),
            Claim("covers DDP and FSDP, on one node and several", "traceml, docs/user_guide/distributed-training.md"),
            Claim("covers DeepSpeed", "traceml, docs/user_guide/integrations/deepspeed.md"),
        ),
    ),
    "torch fr_trace": Scope(
        HANGS | DEATHS, EVERY_FORM, WITHOUT_SENDS,
        (
            Claim(
                "for stuck jobs: finds the ranks that did not join a collective, and collectives that do not match; "
                "of sends and receives it says nothing",
                "docs.pytorch.org/tutorials, Flight Recorder for Debugging Stuck Jobs",
            ),
        ),
    ),
    "DLRover node check": Scope(
        # Slow networks it claims as well, by a pair's own all_reduce: what that would take, no recording has.
        (HOST | GPU) - {"GPU, from mid-run", "GPU, now and then", "host, from mid-run"}, PHASED, EVERY_LAYOUT,
        (
            Claim("a slow node by slow RDMA, NVLink or hardware", "dlrover, docs/design/straggler-detection.md"),
            Claim("before the training starts", "dlrover, docs/design/straggler-detection.md"),
        ),
    ),
    "XPUTimer merged stacks": Scope(
        HANGS, EVERY_FORM, EVERY_LAYOUT,
        (Claim("detects and locates training hangs, with the stacks of all ranks", "dlrover, xpu_timer/README.md"),),
    ),
    "Megatron-LM sniff test": Scope(
        (GPU | HOST | NETWORK) - {"GPU, now and then"}, PHASED, EVERY_LAYOUT,
        (
            Claim(
                "GEMMs, all-reduce, reduce-scatter, all-to-all and send/recv in the job's groups, outliers by rank",
                "Megatron-LM, megatron/training/gpu_sniff_test.py",
            ),
        ),
    ),
}  # fmt: skip
"""By the names in the tables. A tool that is not here is scored on everything: laggard, the two simple rules, and
whatever is entered with --tool."""


DUMP_SCOPES: Final = {
    "NVRx CollectiveAnalyzer": DumpScope(
        STOPPED_GPU | {"cpu"}, EVERY_STATE, True,
        (
            Claim(
                "of dumps made at a timeout or an exception, the ranks to isolate, by what has not completed",
                "nvidia-resiliency-ext, attribution/trace_analyzer/fr_attribution.py",
            ),
        ),
    ),
    "torch fr_trace": DumpScope(
        frozenset(("cpu", "mismatch")), frozenset((WHOLE,)), False,
        (
            Claim(
                "ranks that did not join a collective, and collectives that do not match, each within a group",
                "docs.pytorch.org/tutorials, Flight Recorder for Debugging Stuck Jobs",
            ),
            Claim("omits checking what has completed", FR_TRACE_FILE),
            Claim("its numbers match for sure where dumps begin with the program", FR_TRACE_FILE),
            Claim("stops where dumps of ranks are missing, if not told otherwise", FR_TRACE_FILE),
        ),
    ),
}  # fmt: skip
"""By the names in the tables, of dumps. Two groups called in opposite orders are claimed by neither: each group's calls
match."""


def dump_scope_of(tool: str) -> DumpScope:
    return DUMP_SCOPES.get(tool, DumpScope(EVERY_KIND - NOBODY, EVERY_STATE))


def scope_of(tool: str) -> Scope:
    return SCOPES.get(tool, EVERYTHING)


def within(results: Iterable[Scored], tool: str) -> list[Any]:
    """Those of the results that the tool claims."""
    scope = scope_of(tool)
    return [one for one in results if scope.holds(one.row, str(one.case["form"]), str(one.case["layout"]))]


def read_by(results: Iterable[Scored], tool: str) -> list[Any]:
    """Those of the results whose form and layout the tool claims, whatever befell the job."""
    scope = scope_of(tool)
    return [one for one in results if scope.reads(str(one.case["form"]), str(one.case["layout"]))]


def sources() -> list[str]:
    """A line for each claim, in Markdown."""
    claims = [(tool, one) for scopes in (SCOPES, DUMP_SCOPES) for tool, scope in scopes.items() for one in scope.claims]
    return [f"- {tool}: {claim.says} ({claim.source})" for tool, claim in claims]
