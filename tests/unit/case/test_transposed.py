"""Parameters that are not contiguous: which they are, and what is refused of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
    Given,
    Linear,
    Op,
    Optimizer,
    Plan,
    Rebuild,
    Sequential,
    StateDict,
    Tie,
    anatomy,
    check,
    decode,
    encode,
    features,
    foreseen_rejections,
    parameter_features,
    unit_features,
)
from fsdpfuzz.case.modules import Imported, Transposed
from fsdpfuzz.case.modules.imported import ImportedModule, ImportedParameter
from fsdpfuzz.case.operations.optim_state import OptimState
from fsdpfuzz.case.operations.transfer import Transfer
from fsdpfuzz.case.strides import orders, transposed
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce.tree import smaller_models
from tests.unit.case.test_units import fsdp1, fsdp2, make

LAYER = Transposed(out=4)
MODEL = Sequential(children=(Linear(out=4, bias=False), LAYER, Linear(out=2)))


def case(plan: Plan | None = None, **changes: Any) -> CaseSpec:
    values: dict[str, Any] = {"model": MODEL, "program": (Forward(), Backward())}
    return make(plan or fsdp1("", "1"), **values | changes)


@pytest.mark.parametrize(("width", "out"), [(1, 3), (3, 1)])
def test_one_row_or_column_lies_as_it_is_indexed(width: int, out: int) -> None:
    model = Sequential(children=(Linear(out=width), Transposed(out=out)))
    with pytest.raises(CaseError, match="the transpose is contiguous"):
        check(case(fsdp1(""), model=model))


def test_its_features() -> None:
    a = anatomy(case())
    assert features(a.case)["transposed"] == "on"
    assert [unit_features(a, path)["transposed"] for path in ("", "1")] == ["off", "on"]
    told = [parameter_features(a, f"1.{name}")["transposed"] for name in ("weight", "bias")]
    assert told == ["on", "off"]
    assert features(case(fsdp1(""), model=Linear(out=2)))["transposed"] == "off"


def test_a_tie_makes_one_of_the_other_as_it_lies() -> None:
    model = Sequential(children=(Linear(out=4), Transposed(out=4), Transposed(out=4)))
    for source, target, found in (
        ("1.weight", "2.weight", {"1.weight", "2.weight"}),
        ("0.weight", "1.weight", {"2.weight"}),
        ("1.weight", "0.weight", {"0.weight", "1.weight", "2.weight"}),
    ):
        ties = (Tie(source=source, target=target),)
        told = make(fsdp1(""), model=model, ties=ties, program=(Forward(),))
        assert transposed(anatomy(told)) == found


def test_so_may_those_of_a_model_of_somebodys_own() -> None:
    turned, plain = (
        ImportedParameter(name=name, shape=(3, 2, 4), order=order)
        for name, order in (("turned", (0, 2, 1)), ("plain", ()))
    )
    again = ImportedParameter(name="again", shape=(3, 2, 4), tied="layer.turned")
    root = ImportedModule(path="", alone=True)
    modules = (root, ImportedModule(path="layer", parameters=(turned, plain, again)))
    model = Imported(target="mine.py", modules=modules)
    ties = (Tie(source="layer.turned", target="layer.again"),)
    given = case(fsdp1(""), model=model, inputs=Given(), ties=ties)
    assert decode(encode(given)) == given
    assert orders(anatomy(given)) == {"layer.turned": (0, 2, 1), "layer.again": (0, 2, 1)}
    assert features(given)["transposed"] == "on"
    refused = msgspec.structs.replace(given, plan=fsdp2(""))
    assert [r.name for r in foreseen_rejections(anatomy(refused))] == ["fsdp2_not_contiguous"]


def test_fsdp2_refuses_those_that_it_manages() -> None:
    names = [r.name for r in foreseen_rejections(anatomy(case(fsdp2("", "1"))))]
    assert names == ["fsdp2_not_contiguous"]
    assert foreseen_rejections(anatomy(case(fsdp2("0", "2")))) == ()
    assert foreseen_rejections(anatomy(case())) == ()


def test_a_checkpoint_of_them_is_not_loaded_by_a_model_of_fsdp2() -> None:
    check(case(program=(Transfer(),)))
    check(case(program=(Transfer(into="fsdp1"),)))
    with pytest.raises(CaseError, match="none but contiguous parameters"):
        check(case(program=(Transfer(into="fsdp2"),)))


def test_it_is_kept_as_it_is_and_reduced_to_a_linear_layer() -> None:
    given = case()
    check(given)
    assert decode(encode(given)) == given
    found = [smaller.model for smaller in smaller_models(given)]
    for plainer in (Linear(out=4, bias=False), Transposed(out=4, bias=False)):
        assert Sequential(children=(MODEL.children[0], plainer, MODEL.children[2])) in found


@pytest.mark.parametrize(
    ("op", "told"),
    [
        (StateDict(form="full"), "on"),
        (StateDict(form="local"), "on"),
        (StateDict(form="sharded"), "shards"),
        (OptimState(form="full"), "saved"),
        (OptimState(form="sharded"), "shards"),
        (Rebuild(plan=fsdp1("")), "shards"),
    ],
)
def test_how_it_is_saved(op: Op, told: str) -> None:
    program = (Forward(), Backward(), op)
    assert features(case(program=program, optimizer=Optimizer()))["transposed"] == told
