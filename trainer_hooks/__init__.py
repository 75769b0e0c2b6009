"""The hooks, which run inside the training process. Importing them imports the standard library only.

    import laggard.trainer_hooks
    engine, optimizer, _, _ = deepspeed.initialize(...)
    laggard.trainer_hooks.attach(engine)            # or attach(model, optimizer) where torch trains alone

or no line at all: `laggard run train.py` in place of `python train.py`, under torchrun too. LAGGARD_OFF=1 disables
the hooks. An error in a hook is counted, the agent shows the count, and the training goes on.
"""

from laggard.trainer_hooks.attach import attach, metrics, phase, step, waits
from laggard.trainer_hooks.culprit import tell_culprit

__all__ = ["attach", "metrics", "phase", "step", "tell_culprit", "waits"]
