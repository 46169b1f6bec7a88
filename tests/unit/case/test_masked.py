"""A loss that is an exact zero on one rank: what it goes with, what it does, what is plainer."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
    Linear,
    Sequential,
    Step,
    anatomy,
    check,
    decode,
    digest,
    encode,
    features,
    lower,
)
from fsdpfuzz.case.dimensions import on_ranks
from fsdpfuzz.case.masked import MaskedDimension
from fsdpfuzz.case.operations import Op
from fsdpfuzz.case.recipe import Call, Do, walk
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler
from fsdpfuzz.repro import Context, render
from tests.unit.case.test_units import fsdp2, make
from tests.unit.loop.standins import finding

MODEL = Sequential(children=(Linear(out=3), Linear(out=2)))
WORDS = "a loss that is zero on one rank"


def trained(*ranks: int | None, world_size: int = 3) -> CaseSpec:
    """An iteration for each rank on which the loss is masked."""
    program: list[Op] = []
    for rank in ranks:
        program += [Forward(masked=rank), Backward(), Step()]
    case = make(fsdp2(""), model=MODEL, program=tuple(program))
    return msgspec.structs.replace(case, world_size=world_size)


def ranks_of(case: CaseSpec) -> list[int | None]:
    return [op.masked for op in case.program if isinstance(op, Forward)]


def refused(case: CaseSpec) -> str:
    with pytest.raises(CaseError) as caught:
        check(case)
    return f"{caught.value.path}: {caught.value.reason}"


def test_it_goes_into_json_and_changes_no_other_case() -> None:
    case = trained(None, 2)
    check(case)
    assert decode(encode(case)) == case
    assert b"masked" not in encode(trained(None))
    assert digest(trained(None)) != digest(trained(0))


@pytest.mark.parametrize(
    ("ranks", "value"), [((None,), "no"), ((None, 1), "some"), ((0, 1), "all"), ((0,), "all")]
)
def test_features(ranks: tuple[int | None, ...], value: str) -> None:
    assert features(trained(*ranks))["masked"] == value


def test_there_is_the_rank_and_another_one_and_a_backward() -> None:
    assert refused(trained(None, 3)).startswith("$.program[3].masked: rank 3 exceeds")
    assert "one rank" in refused(trained(0, world_size=1))
    alone = (Forward(masked=0, drop=True), Forward(), Backward(), Step())
    assert "without a backward" in refused(make(fsdp2(""), model=MODEL, program=alone))
    tracked = msgspec.structs.replace(trained(0), probes=("mem_tracker",))
    assert "plain forward" in refused(tracked)


def test_one_rank_multiplies_its_loss_by_zero() -> None:
    done = [
        (do.call.function, do.ranks)
        for do in walk(lower(anatomy(trained(2))).main)
        if isinstance(do, Do) and isinstance(do.call, Call) and "masked" in str(do.call.function)
    ]
    assert done == [("steps.masked.nothing_of", (2,))]


def test_a_script_says_so_in_plain_torch() -> None:
    found = finding("grad_parity", op=1, operation="backward", quantity="grad", name="0.weight")
    text = render(trained(1), found, Context(torch="2.13.0", backend="gloo"))
    assert "if rank in (1,):" in text
    assert "loss * 0.0" in text
    assert "* 0.0" not in render(trained(None), found, Context(torch="2.13.0", backend="gloo"))


def test_plainer_neighbours() -> None:
    case = trained(1, 2)
    found = [(ranks_of(s.case), s.words) for s in MaskedDimension().simpler(case)]
    assert found == [([None, None], WORDS), ([None, 2], ""), ([1, None], ""), ([0, 0], "")]
    assert WORDS in [neighbour.words for neighbour in simpler(case)]
    assert list(MaskedDimension().simpler(trained(None))) == []
    assert [ranks_of(s.case) for s in MaskedDimension().simpler(trained(0))] == [[None]]


def test_fewer_ranks() -> None:
    case = trained(None, 2)
    assert ranks_of(on_ranks(case, 4)) == [None, 2]
    assert ranks_of(on_ranks(case, 2)) == [None, 1]
    assert ranks_of(on_ranks(case, 1)) == [None, None]


def test_words() -> None:
    assert Forward(masked=1).words() == "forward masked on rank 1"
