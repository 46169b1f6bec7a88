"""Placements of activation checkpoints that torch cannot run are refused with the reason."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    Tokens,
    Transformer,
    anatomy,
    check,
    reference_recomputes,
)
from fsdpfuzz.case.checkpoints import CheckpointKind
from fsdpfuzz.errors import CaseError

DECODER = "transformer.decoder.layers.0"


def recomputed(kind: CheckpointKind, *, reentrant: bool, path: str = DECODER) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Transformer(rows=2, width=4, encoders=1, decoders=1),
        inputs=Tokens(batch=1, length=2),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        checkpoints=(Checkpoint(path=path, kind=kind, reentrant=reentrant),),
        program=(Forward(),),
    )


@pytest.mark.parametrize("path", [DECODER, "transformer.encoder.layers.0"])
def test_no_reentrant_function_recomputes_what_is_called_by_keywords(path: str) -> None:
    with pytest.raises(CaseError, match=r"\$.checkpoints\[0\]: .* no keyword arguments"):
        check(recomputed("function", reentrant=True, path=path))
    check(recomputed("function", reentrant=False, path=path))
    check(recomputed("wrapper", reentrant=True, path=path))


@pytest.mark.parametrize("kind", ["offload", "composable"])
def test_some_kinds_have_no_reentrant_form(kind: CheckpointKind) -> None:
    with pytest.raises(CaseError, match="has no reentrant form"):
        check(recomputed(kind, reentrant=True))
    check(recomputed(kind, reentrant=False))


@pytest.mark.parametrize("path", ["", "0", "1"])
@pytest.mark.parametrize("input_grad", [False, True])
def test_the_plain_model_recomputes_where_gradients_get_lost(path: str, input_grad: bool) -> None:
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=2), Linear(out=2))),
        inputs=Dense(width=2, requires_grad=input_grad),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        checkpoints=(Checkpoint(path=path, reentrant=True),),
        program=(Forward(),),
    )
    check(case)
    assert reference_recomputes(anatomy(case)) == (path != "1" and not input_grad)
