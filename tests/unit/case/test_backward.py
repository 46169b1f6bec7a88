"""A backward that goes back through its graph twice: what it says, refuses and lowers to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    Activation,
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Linear,
    Sequential,
    Step,
    anatomy,
    chain,
    check,
    features,
    lower,
    unit_features,
)
from fsdpfuzz.case.grad_scaler import GradScaler
from fsdpfuzz.case.recipe import Call, Do, Operation
from fsdpfuzz.case.variants import Variant
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import traffic
from fsdpfuzz.expect.traffic import Bounds

TWICE = (Forward(), Backward(again=True), Step())


def case(api: str = "fsdp2", program: Any = TWICE, **changes: Any) -> CaseSpec:
    return msgspec.structs.replace(chain(api, (3, 4, 2), (0,), 2, program), **changes)


def calls_in(given: CaseSpec, name: str) -> list[Call]:
    (operation,) = (
        s for s in lower(anatomy(given)).main if isinstance(s, Operation) and s.name == name
    )
    return [d.call for d in operation.body if isinstance(d, Do) and isinstance(d.call, Call)]


def backwards(given: CaseSpec) -> list[Call]:
    calls = calls_in(given, "backward")
    return [c for c in calls if str(c.function).endswith((".backward", "if_required"))]


def test_the_graph_is_kept_for_the_second_time_alone() -> None:
    check(case())
    assert [dict(c.options) for c in backwards(case())] == [{"retain_graph": True}, {}]
    assert {str(c.function) for c in backwards(case())} == {".backward"}
    frozen = case(frozen=("0.weight", "0.bias", "1.weight", "1.bias"))
    assert {str(c.function) for c in backwards(frozen)} == {"steps.backward.if_required"}
    assert [dict(c.options) for c in backwards(frozen)] == [{"retain_graph": True}, {}]


def test_it_counts_as_two_reductions() -> None:
    found = features(case())
    assert (found["second_backward"], found["accumulation"]) == ("graph", "sync")
    assert unit_features(anatomy(case()), "0")["reduced_again"] == "on"
    once = features(case(program=(Forward(), Backward(), Step())))
    assert (once["second_backward"], once["accumulation"]) == ("off", "off")


def test_its_plainer_neighbour_goes_back_once() -> None:
    (once,) = [s for s in Backward.simpler(case()) if s.words == "retain_graph"]
    assert once.case.program == (Forward(), Backward(), Step())


EACH = (Forward(), Forward(), Backward(each=True), Step())


def test_each_loss_that_waits_has_its_own() -> None:
    given = case(program=EACH)
    check(given)
    found = features(given)
    assert (found["second_backward"], found["accumulation"]) == ("losses", "sync")
    assert features(case())["second_backward"] == "graph"
    (summed,) = [s for s in Backward.simpler(given) if s.words == "a backward of each loss"]
    assert summed.case.program == (Forward(), Forward(), Backward(), Step())
    scaled = case(program=EACH, grad_scaler=GradScaler())
    functions = [str(c.function) for c in calls_in(scaled, "backward")]
    assert functions.index("steps.backward.scale") < functions.index("steps.backward.each")


def test_nothing_is_promised_of_collectives_there() -> None:
    assert traffic(anatomy(case(program=(Forward(), Forward(), Backward(), Step()))), 0)
    assert not traffic(anatomy(case(program=EACH)), 0)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"program": (Forward(), Backward(each=True))}, "$.program[1].each"),
        ({"program": (*EACH[:2], Backward(each=True, again=True))}, "$.program[2].again"),
        ({"program": EACH, "finalization": "manual"}, "$.program[2].each"),
        ({"finalization": "manual"}, "$.program[1].again"),
        ({"checkpoints": (Checkpoint(path="1", kind="composable"),)}, "$.checkpoints[0].kind"),
        (
            {"twins": (Variant(name="a", checkpoints=(Checkpoint(path="1", kind="composable"),)),)},
            "$.twins[0].checkpoints[0].kind",
        ),
        ({"probes": ("mem_tracker",)}, "$.program[1]"),
    ],
)
def test_what_it_does_not_go_with_is_named(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(CaseError) as caught:
        check(case(**changes))
    assert caught.value.path == path


def test_every_unit_is_gathered_and_reduced_once_more() -> None:
    """The root, whole after forward, is gathered for the second time only."""
    model = Sequential(
        children=(Linear(out=4, bias=False), Activation(), Linear(out=5, bias=False))
    )
    plain = msgspec.structs.replace(
        case(), model=model, inputs=Dense(width=3), program=(Forward(), Backward())
    )
    twice = msgspec.structs.replace(plain, program=(Forward(), Backward(again=True)))
    once, more = (traffic(anatomy(c), 0)[1] for c in (plain, twice))
    gathers = {text: n for text, n in more.numbers.items() if text.startswith("all_gather")}
    assert sorted(gathers.values()) == [Bounds(1, 1), Bounds(2, 2)]
    scatters = [text for text in once.numbers if text.startswith("reduce_scatter")]
    assert [once.numbers[text] for text in scatters] == [Bounds(1, 1)] * 2
    assert [more.numbers[text] for text in scatters] == [Bounds(2, 2)] * 2
    assert not more.early
