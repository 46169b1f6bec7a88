"""What layers that reuse keys and values say and refuse, and what requires grad in them."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Linear,
    Op,
    Plan,
    Sequential,
    Variant,
    anatomy,
    check,
    decode,
    encode,
    features,
)
from fsdpfuzz.case.modules import KvReuse
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import same_arithmetic
from fsdpfuzz.reduce.tree import smaller_models
from tests.unit.case.test_units import fsdp1, fsdp2, make

ONCE: tuple[Op, ...] = (Forward(), Backward())
NODE = KvReuse(heads=4, kv_heads=2, layers=3)


def case(plan: Plan | None = None, **changes: Any) -> CaseSpec:
    values: dict[str, Any] = {"model": NODE, "program": ONCE, "inputs": Dense(width=4, length=3)}
    return make(plan or fsdp2(""), **values | changes)


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (KvReuse(heads=3), "width 4 is not divisible by heads=3"),
        (KvReuse(heads=2, kv_heads=4), "heads=2 is not divisible by kv_heads=4"),
    ],
)
def test_heads_that_do_not_divide_are_refused(node: KvReuse, says: str) -> None:
    with pytest.raises(CaseError, match=says):
        check(case(model=node))


def test_all_its_modules_may_be_units_and_recomputed() -> None:
    paths = ("source", "layers.0", "layers.2")
    for plan in (fsdp1(*paths, ""), fsdp2("", *paths)):
        check(case(plan, checkpoints=tuple(Checkpoint(path=path) for path in paths)))
    with pytest.raises(CaseError, match="source"):
        check(case(program=(Forward(target="source", grad=False), *ONCE)))


def test_layers_require_grad_by_the_keys_that_they_are_given() -> None:
    def calls(**changes: Any) -> list[tuple[str, bool]]:
        a = anatomy(case(**changes))
        (found,) = [(op, now) for _, op, now in a.situations(0) if isinstance(op, Forward)]
        return [(call.path, call.input_grad) for call in a.calls(*found) if call.path]

    layers = ["layers.0", "layers.1", "layers.2"]
    assert calls() == [("source", False), *((layer, True) for layer in layers)]
    frozen = ("source.keys", "source.values")
    assert calls(frozen=frozen) == [
        ("source", False),
        ("layers.0", False),
        ("layers.1", True),
        ("layers.2", True),
    ]


def test_it_is_kept_as_it_is_and_made_plainer() -> None:
    given = case(model=Sequential(children=(Linear(out=4), NODE)))
    check(given)
    assert decode(encode(given)) == given
    assert NODE.words() == ["4 heads", "2 of keys", "3 layers"]
    assert features(given)["kv_reuse"] == "on"
    assert features(case(model=Linear(out=4)))["kv_reuse"] == "off"
    found = [found.model for found in smaller_models(given)]
    for plainer in NODE.simpler():
        assert Sequential(children=(Linear(out=4), plainer)) in found
    assert list(KvReuse().simpler()) == []


def test_recomputing_it_need_not_round_alike() -> None:
    placed = Variant(name="other", checkpoints=(Checkpoint(path=""),))
    assert not same_arithmetic(anatomy(case()), placed)
