"""Parameters without elements: what is said of them."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Embedding,
    Forward,
    Linear,
    Op,
    Plan,
    RequiresGrad,
    Sequential,
    StateDict,
    Tokens,
    anatomy,
    check,
    decode,
    encode,
    features,
    parameter_features,
    unit_features,
)
from fsdpfuzz.case.modules import Empty
from fsdpfuzz.case.operations.clip import Clip
from fsdpfuzz.case.strides import without_elements
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect.bytes import shard_bytes
from tests.unit.case.test_units import fsdp1, fsdp2, make

MODEL = Sequential(children=(Linear(out=4, bias=False), Empty(), Linear(out=2, bias=False)))
ONCE: tuple[Op, ...] = (Forward(), Backward())


def case(plan: Plan, **changes: Any) -> CaseSpec:
    return make(plan, **{"model": MODEL, "program": ONCE} | changes)


def test_it_takes_no_tokens() -> None:
    model = Sequential(children=(Empty(), Embedding(rows=3, out=4)))
    with pytest.raises(CaseError, match="cannot take tokens"):
        check(case(fsdp1(""), model=model, inputs=Tokens()))


@pytest.mark.parametrize("plan", [fsdp1("", "1"), fsdp2("", "1")])
def test_its_features(plan: Plan) -> None:
    given = case(plan)
    check(given)
    assert decode(encode(given)) == given
    a = anatomy(given)
    assert features(given)["empty_parameter"] == "on"
    assert [unit_features(a, path)["empty_parameter"] for path in a.units] == ["no", "trained"]
    assert unit_features(a, "1")["elements"] == "0"
    told = [parameter_features(a, fqn)["empty"] for fqn in ("0.weight", "1.rows")]
    assert told == ["off", "on"]
    assert features(case(fsdp1(""), model=Linear(out=2)))["empty_parameter"] == "off"


def test_whether_it_is_ever_trained() -> None:
    frozen = case(fsdp1("", "1"), frozen=("1.rows",))
    assert unit_features(anatomy(frozen), "1")["empty_parameter"] == "frozen"
    program = (RequiresGrad(parameters=("1.rows",), value=True), *ONCE)
    thawed = case(fsdp1("", "1"), frozen=("1.rows",), program=program)
    assert unit_features(anatomy(thawed), "1")["empty_parameter"] == "trained"


def test_it_has_no_bytes() -> None:
    plain = case(fsdp2(""), model=Sequential(children=(MODEL.children[0], MODEL.children[2])))
    assert shard_bytes(anatomy(case(fsdp2("")))) == shard_bytes(anatomy(plain))


def test_where_its_sharded_state_is_gathered_it_is_told_of() -> None:
    a = anatomy(case(fsdp1("")))
    assert without_elements(a) == ("1.rows",)
    for form, told in (("sharded", True), ("full", False), ("local", False)):
        call = StateDict(form=form).gathered(a)  # type: ignore[arg-type]
        assert call is not None
        assert bool(call.options) == told


def test_the_norm_that_it_has_not_is_refused() -> None:
    def clipped(norm: Any) -> CaseSpec:
        return case(fsdp1(""), program=(*ONCE, Clip(max_norm=1.0, norm_type=norm)))

    check(clipped(2))
    with pytest.raises(CaseError, match="has a maximum"):
        check(clipped("inf"))
