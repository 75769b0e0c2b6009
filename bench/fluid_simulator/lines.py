"""The lines of a rank's recording. Times are on the clock of its machine."""

from fluid_simulator.losses import Clocks
from fluid_simulator.operations import Operation
from fluid_simulator.rank import Rank, Record, Span, Step


def peer_field(peer: int | None) -> str:
    return f'"peer":{peer},' if peer is not None else ""


class Writer:
    """`blocking`: the host waits for each collective, so that all is on its clock; else on the device's."""

    def __init__(self, rank: Rank, clocks: Clocks, blocking: bool) -> None:
        self.rank, self._clocks, self._blocking = rank.number, clocks, blocking
        self._machine = rank.simulation.cluster.machine(rank.number)
        self._clock = "host" if blocking else "device"

    def time(self, seconds: float) -> str:
        return f"{self._clocks.read(self._machine, seconds):.6f}"

    def unix(self, seconds: float) -> str:
        return f"{self._clocks.unix + seconds:.3f}"

    def collective(self, record: Record) -> str:
        issued = record.start if self._blocking else record.issued
        return self._collective(record, record.step, issued, record.start, self.time(record.end), record.waited)

    def unfinished(self, operation: Operation, until: float) -> str:
        """A collective that the rank waited for in vain."""
        assert operation.ready is not None
        ready = operation.ready
        return self._collective(operation, operation.step, ready, ready, "null", until - ready)

    def _collective(
        self, what: Record | Operation, step: int, issued: float, start: float, end: str, waited: float
    ) -> str:
        return (
            f'{{"kind":"collective","rank":{self.rank},"step":{step},"group":"{what.group.name}","op":"{what.op}",'
            f'{peer_field(what.peer)}"seq":{what.number},"bytes":{int(what.size)},"issued":{self.time(issued)},'
            f'"start":{self.time(start)},"end":{end},"waited":{waited:.6f},"clock":"{self._clock}"}}'
        )

    def span(self, span: Span) -> str:
        micro = f',"micro":{span.micro}' if span.micro is not None else ""
        return (
            f'{{"kind":"span","rank":{self.rank},"step":{span.step},"name":"{span.name}",'
            f'"start":{self.time(span.start)},"end":{self.time(span.end)}{micro}}}'
        )

    def step(self, step: Step) -> str:
        return (
            f'{{"kind":"step","rank":{self.rank},"step":{step.number},"start":{self.time(step.start)},'
            f'"end":{self.time(step.end)},"work":{step.work}}}'
        )

    def end(self, at: float, more: str = "") -> str:
        return f'{{"kind":"end","rank":{self.rank},"lost":0,"at_seconds":{self.time(at)}{more}}}'
