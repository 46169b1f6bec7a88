"""Cases in which one training runs with activations kept, recomputed or offloaded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from fsdpfuzz.spec import (
    CaseSpec,
    Checkpoint,
    Dense,
    Twin,
    case_places,
    frozen_names,
    units_among,
    variant_of,
    width_in,
)
from fsdpfuzz.strategies._cases import around_a_found_root, cases, off_ground
from fsdpfuzz.strategies._checkpoints import checkpoint_placements
from fsdpfuzz.strategies._choose import Draw, chance

_NAMES = ("first", "second")


def checkpoint_cases(
    *,
    apis: Sequence[str] = ("fsdp1", "fsdp2"),
    world_sizes: Sequence[int] = (2,),
    misuse: bool = True,
    avoid: frozenset[str] = frozenset(),
) -> st.SearchStrategy[CaseSpec]:
    """Cases as `cases` draws them, with one or two twins that differ in their checkpoints.

    One of them keeps all activations, unless the case itself does. Some offload what a
    function call recomputes, and some of fsdp2's use the composable form.

    Shrinks towards what `cases` shrinks to, with a twin that recomputes the whole model.
    """
    base = cases(apis=apis, world_sizes=world_sizes, misuse=misuse, avoid=avoid)
    return _checkpoint_cases(base)


@st.composite
def _checkpoint_cases(draw: Draw, base: st.SearchStrategy[CaseSpec]) -> CaseSpec:
    case = draw(base)
    case = msgspec.structs.replace(case, checkpoints=_varied(draw, case, case.checkpoints))
    forms: list[tuple[Checkpoint, ...]] = [()] if case.checkpoints else [_somewhere(draw, case)]
    if chance(draw, 40):
        forms.append(_somewhere(draw, case))
    if isinstance(case.inputs, Dense) and any(c.reentrant for form in forms for c in form):
        data = msgspec.structs.replace(case.inputs, requires_grad=True)
        case = msgspec.structs.replace(case, inputs=data)
    forms = [form for form in dict.fromkeys(forms) if form != case.checkpoints]
    twins = [Twin(name=n, checkpoints=f) for n, f in zip(_NAMES, forms, strict=False)]
    return msgspec.structs.replace(
        case, twins=tuple(twin for twin in twins if _is_plain(case, twin))
    )


def _somewhere(draw: Draw, case: CaseSpec) -> tuple[Checkpoint, ...]:
    """A placement that is not empty."""
    units = units_among(case_places(case), case.plan)
    drawn = draw(
        checkpoint_placements(case.model, width_in(case), units=units, frozen=frozen_names(case))
    )
    placed = _varied(draw, case, drawn) or (Checkpoint(path="", side="around"),)
    return around_a_found_root(case, placed)


def _varied(
    draw: Draw, case: CaseSpec, checkpoints: tuple[Checkpoint, ...]
) -> tuple[Checkpoint, ...]:
    """The same placements, now and then in a form that `checkpoint_placements` does not draw."""
    if not checkpoints:
        return ()
    if chance(draw, 25):
        return tuple(_offloaded(checkpoint) for checkpoint in checkpoints)
    if chance(draw, 25) and case.api == "fsdp2":
        return tuple(_composable(checkpoint) for checkpoint in checkpoints)
    return checkpoints


def _offloaded(checkpoint: Checkpoint) -> Checkpoint:
    if checkpoint.kind != "function":
        return checkpoint
    return msgspec.structs.replace(checkpoint, kind="function_offload")


def _composable(checkpoint: Checkpoint) -> Checkpoint:
    if checkpoint.kind != "wrapper" or checkpoint.reentrant:
        return checkpoint
    return msgspec.structs.replace(checkpoint, kind="composable", side="inside")


def _is_plain(case: CaseSpec, twin: Twin) -> bool:
    """Whether the twin stands on no known defect's ground that the case keeps off."""
    variant = variant_of(case, twin)
    return off_ground(variant) == variant
