"""What runs inside the training process. Standard library only at import; it can be slow to learn, never slow to run.

    import laggard.trainer_hooks
    engine, optimizer, _, _ = deepspeed.initialize(...)
    laggard.trainer_hooks.attach(engine)            # or attach(model, optimizer) where torch trains alone

or no line at all: `laggard run train.py` in place of `python train.py`, under torchrun too. LAGGARD_OFF=1 turns
everything off. Whatever goes wrong in here is counted and shown by the agent; the training goes on without it.
"""

from laggard.trainer_hooks.attach import attach

__all__ = ["attach"]
