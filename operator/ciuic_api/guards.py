"""`training.guards`: when an optimizer step is not trusted. Read by the trainer and the CRD."""

from typing import Annotated

from .schema import Schema, bounded


class Guards(Schema):
    """Steps that would harm the model are skipped by all ranks, and said. A loss or gradient that is not finite always is."""

    spike_sigma: Annotated[float, bounded("training.guards.spikeSigma", 0, 1000, "0 turns spike detection off")] = 6.0
    """A step is a spike, and skipped, when its loss or the logarithm of its gradient's norm is so many standard deviations above
    the mean of the steps before; 0: never."""
    spike_window_steps: Annotated[
        int, bounded("training.guards.spikeWindowSteps", 8, 512, "128 is long enough to know what is usual")
    ] = 128
    """Steps whose losses and norms are remembered. Nothing is a spike before half of them were seen."""
