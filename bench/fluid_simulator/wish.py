"""A family's wish for a job. Pure."""

import dataclasses

from fluid_simulator.layouts import Layout


@dataclasses.dataclass
class Wish:
    """A family's wish for a job; None: what chance gives. `engine`: ddp, fsdp, hsdp or mega. `fast`: short steps, at
    whose end the host asks the GPU. `own_adapter`: each GPU has one."""

    engine: str
    ranks: int
    steps: int
    gpus: int | None = None
    own_adapter: bool = False
    fast: bool = False
    blocking: bool | None = None
    layout: Layout | None = None
