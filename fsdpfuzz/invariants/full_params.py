"""Rule about whole parameters: every rank reads the reference's."""

from __future__ import annotations

from fsdpfuzz.case.operations.full_params import WHOLE
from fsdpfuzz.invariants.parity import WholeParity


class FullParameters(WholeParity):
    """What is read; what is written, the parity of parameters."""

    name = "full_params"
    summary = "whole parameters between iterations are the reference's"
    wrong = "shows wrong whole parameters"
    quantities = ()
    results = (WHOLE,)


FULL_PARAMS = (FullParameters(),)
