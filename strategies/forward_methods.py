"""By which method the program calls the model."""

from __future__ import annotations

import msgspec

from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """By ``encode`` in all forwards of the model, or in some. Shrinks towards ``forward``."""
    wanted, some, flags = d.chance(75), d.chance(40), d.mask(14)
    root = d.a.by_path[""].node
    if not wanted or d.a.fsdp1 or root is None or not root.encodes:
        return
    replace = msgspec.structs.replace
    program = tuple(
        replace(op, by_method=not (some and flags[i % 14]))
        if op.runs_model and not op.called
        else op
        for i, op in enumerate(d.case.program)
    )
    called = replace(d.case, program=program)
    if d.accepts(called):
        d.case = called
