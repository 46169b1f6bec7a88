"""Rule about clipping: the total norm is that of all gradients, on every rank."""

from __future__ import annotations

from fsdpfuzz.case.operations.clip import TOTAL_NORM
from fsdpfuzz.invariants.parity import WholeParity


class ClipNorm(WholeParity):
    """The total norm of the gradients; what clipping makes of them, the parity of gradients."""

    name = "clip_norm"
    summary = "the total norm by which gradients are clipped is the reference's"
    wrong = "clips by a wrong total norm of the gradients"
    quantities = ()
    results = (TOTAL_NORM,)


CLIP = (ClipNorm(),)
