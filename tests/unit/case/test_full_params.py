"""Whole parameters between iterations: what may be asked for, what it calls, what is plainer."""

from __future__ import annotations

import msgspec
import pytest
import torch

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Sequential,
    Step,
    Tie,
    anatomy,
    check,
    decode,
    encode,
    features,
    foreseen_rejections,
    is_orderly,
    is_sound,
    lower,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.operations import FullParams, Op
from fsdpfuzz.case.recipe import MODEL, Do, Value, Variable, call, literal, walk
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler
from fsdpfuzz.steps.full_params import taken
from tests.unit.case.test_units import fsdp1, fsdp2, make

LAYERS = Sequential(children=(Linear(out=3), Linear(out=2)))
TRAIN: tuple[Op, ...] = (Forward(), Backward(), Step())
READ = FullParams()
WRITTEN = FullParams(written=("0.weight", "1.bias"), offload_to_cpu=True)
ASYNC = FullParams(async_op=True)
GRADS = FullParams(grads=True)
ALONE = FullParams(rank0_only=True)
ORIG = fsdp1("", "0", use_orig_params=True)


def asked(*ops: Op, api: str = "fsdp1", **changes: object) -> CaseSpec:
    plan = fsdp1("", "0") if api == "fsdp1" else fsdp2("", "0")
    made = make(plan, model=LAYERS, program=(*TRAIN, *ops, *TRAIN))
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize(
    ("op", "api", "done"),
    [
        (READ, "fsdp1", "read"),
        (WRITTEN, "fsdp1", "written"),
        (READ, "fsdp2", "read"),
        (ASYNC, "fsdp2", "read"),
    ],
)
def test_each_form_is_sound_and_seen(op: FullParams, api: str, done: str) -> None:
    case = asked(op, api=api)
    check(case)
    assert decode(encode(case)).program[3] == op
    found = features(case)
    assert found["full_params"] == done
    assert found.get("full_params_offload", "off") == ("on" if op.offload_to_cpu else "off")
    assert found.get("unshard_async", "off") == ("on" if op.async_op else "off")
    assert ("unshard_async" in found) is (api == "fsdp2")


@pytest.mark.parametrize(
    ("wrong", "at"),
    [
        (asked(WRITTEN, api="fsdp2"), ".written"),
        (asked(FullParams(offload_to_cpu=True), api="fsdp2"), ".offload_to_cpu"),
        (asked(ASYNC), ".async_op"),
        (asked(GRADS, api="fsdp2"), ".grads"),
        (asked(GRADS), ".grads"),
        (asked(FullParams(grads=True, offload_to_cpu=True), plan=ORIG), ".grads"),
        (asked(FullParams(written=("0.gone",))), ".written[0]"),
        (asked(ALONE, api="fsdp2"), ".rank0_only"),
        (asked(FullParams(written=("0.weight",), rank0_only=True)), ".written"),
        (asked(WRITTEN, frozen=("1.bias",)), ".written"),
    ],
)
def test_what_the_api_does_not_have_is_named(wrong: CaseSpec, at: str) -> None:
    with pytest.raises(CaseError) as caught:
        check(wrong)
    assert caught.value.path == f"$.program[3]{at}"


def test_gradients_are_read_of_original_parameters() -> None:
    case = asked(GRADS, plan=ORIG)
    check(case)
    assert decode(encode(case)).program[3] == GRADS
    assert features(case)["full_params_grads"] == "on"
    assert features(asked(READ, plan=ORIG))["full_params_grads"] == "off"
    assert "full_params_grads" not in features(asked(READ, api="fsdp2"))
    plainer = [n.case for n in simpler(case) if n.words == "with_grads"]
    assert plainer == [asked(READ, plan=ORIG)]
    assert GRADS.words() == "full parameters, with gradients"


def test_rank_0_alone_reads() -> None:
    case = asked(ALONE)
    check(case)
    assert decode(encode(case)).program[3] == ALONE
    assert features(case)["full_params_rank0"] == "on"
    assert [n.case for n in simpler(case) if n.words == "rank0_only"] == [asked(READ)]
    assert ALONE.words() == "full parameters, on rank 0 only"


def test_gradients_are_copies_beside_what_is_trained() -> None:
    model = torch.nn.Linear(1, 1)
    model.weight.requires_grad_(False)
    (model(torch.ones(1)) * 2).backward()
    values = taken(dict(model.named_parameters()), grads=True)
    assert set(values["bias"]) == {"value", "grad"}
    assert values["weight"].tolist() == model.weight.tolist()
    model.bias.grad = None
    assert values["bias"]["grad"].tolist() == [2.0]
    assert taken(dict(model.named_parameters()), grads=True)["bias"]["grad"].tolist() == [0.0]


def test_it_stands_between_iterations() -> None:
    pending = (Forward(), READ, Backward())
    unreduced = (Forward(sync=False), Backward(), READ, Forward(), Backward())
    for program in (pending, unreduced):
        assert not is_sound(asked(program=program))
        assert not is_orderly(program)
    assert is_sound(asked(program=(READ, *TRAIN)))


def test_a_variant_that_freezes_what_is_written_is_a_contradiction() -> None:
    from fsdpfuzz.case import Variant

    held = Variant(name="held", frozen=("0.weight",))
    assert not is_sound(asked(WRITTEN, twins=(held,)))
    assert is_sound(asked(READ, twins=(held,)))


@pytest.mark.parametrize(
    ("units", "mesh", "refused"),
    [
        ((Fsdp1Unit(path=""),), None, False),
        ((Fsdp1Unit(path="", sharding="NO_SHARD"),), None, True),
        ((Fsdp1Unit(path=""), Fsdp1Unit(path="0", sharding="NO_SHARD")), None, True),
        ((Fsdp1Unit(path="", sharding="HYBRID_SHARD"),), Mesh(replicate=2, shard=1), True),
        ((Fsdp1Unit(path="", sharding="HYBRID_SHARD"),), Mesh(replicate=1, shard=2), False),
    ],
)
def test_offload_of_what_is_not_sharded_is_refused(
    units: tuple[Fsdp1Unit, ...], mesh: Mesh | None, refused: bool
) -> None:
    for op, asks in ((READ, False), (WRITTEN, True)):
        case = asked(op, plan=Fsdp1Plan(units=units), mesh=mesh)
        check(case)
        names = [rejection.name for rejection in foreseen_rejections(anatomy(case))]
        assert names == (["fsdp1_summon_offload_unsharded"] if refused and asks else [])


def calls(case: CaseSpec) -> dict[str, Value]:
    """Who calls what at the operation."""
    found = [s for s in walk(lower(anatomy(case)).main) if getattr(s, "name", "") == "full_params"]
    (operation,) = found
    dos = [do for do in walk(operation.body) if isinstance(do, Do)]  # type: ignore[union-attr]
    assert all(do.into == (Variable("full_params"),) for do in dos)
    return {do.who: do.call for do in dos}


def test_fsdp_is_read_while_it_is_whole_and_the_plain_model_as_it_is() -> None:
    written = literal(("0.weight", "1.bias"))
    assert calls(asked(WRITTEN)) == {
        "fsdp": call("steps.full_params.summoned", MODEL, True, written, offload_to_cpu=True),
        "reference": call("steps.full_params.taken", Variable("named"), written),
    }
    assert calls(asked(ASYNC, api="fsdp2")) == {
        "fsdp": call("steps.full_params.unsharded", MODEL, False, waits=True),
        "reference": call("steps.full_params.taken", Variable("named"), literal(())),
    }


def test_a_tied_parameter_is_written_once() -> None:
    square = Sequential(children=(Linear(out=4, bias=False), Linear(out=4, bias=False)))
    both = FullParams(written=("0.weight", "1.weight"))
    ties = (Tie(source="0.weight", target="1.weight"),)
    case = asked(both, model=square, ties=ties, plan=fsdp1(""))
    check(case)
    assert calls(case)["reference"] == call(
        "steps.full_params.taken", Variable("named"), literal(("0.weight",))
    )


def test_plainer_neighbours() -> None:
    def ops(case: CaseSpec) -> list[tuple[FullParams | None, str]]:
        return [
            (next((op for op in s.case.program if isinstance(op, FullParams)), None), s.words)
            for s in FullParams.simpler(case)
        ]

    assert ops(asked(WRITTEN)) == [
        (FullParams(offload_to_cpu=True), "a write of whole parameters"),
        (FullParams(written=WRITTEN.written), "offload_to_cpu"),
        (FullParams(written=("1.bias",), offload_to_cpu=True), ""),
        (FullParams(written=("0.weight",), offload_to_cpu=True), ""),
    ]
    assert ops(asked(ASYNC, api="fsdp2")) == [(READ, "async_op")]
    assert ops(asked(READ)) == []
    assert any(s.case.program == (*TRAIN, *TRAIN) for s in simpler(asked(READ)))


def test_a_smaller_model_takes_what_is_written_along() -> None:
    written = {
        name
        for s in simpler(asked(FullParams(written=("1.weight",)), plan=fsdp1("")))
        for op in s.case.program
        if isinstance(op, FullParams)
        for name in op.written
    }
    assert {"0.weight", "weight"} & written, "the first layer gone, the second one is named anew"


def test_words() -> None:
    assert READ.words() == "full parameters"
    assert WRITTEN.words() == "full parameters, write 0.weight, 1.bias, to CPU"
    assert ASYNC.words() == "full parameters, async"
