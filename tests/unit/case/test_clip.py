"""Clipping of gradients: what a case may ask for, what it calls, what is plainer."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp1Unit,
    Fsdp2Unit,
    Linear,
    Optimizer,
    Rebuild,
    Sequential,
    Step,
    Variant,
    ZeroGrad,
    anatomy,
    check,
    decode,
    encode,
    features,
    is_orderly,
    is_sound,
    lower,
)
from fsdpfuzz.case.dimensions import DIMENSIONS
from fsdpfuzz.case.operations import Clip, Op
from fsdpfuzz.case.recipe import Call, Do, Global, Value, walk
from fsdpfuzz.errors import CaseError
from tests.unit.case.test_units import fsdp1, fsdp2, make

MODEL = Sequential(children=(Linear(out=3), Linear(out=2)))


def clipped(*clips: Op, api: str = "fsdp2", units: tuple[str, ...] = ("", "0")) -> CaseSpec:
    plan = fsdp1(*units) if api == "fsdp1" else fsdp2(*units)
    return make(plan, model=MODEL, program=(Forward(), Backward(), *clips, Step()))


def refused(case: CaseSpec) -> str:
    with pytest.raises(CaseError) as caught:
        check(case)
    return f"{caught.value.path}: {caught.value.reason}"


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize("norm", [1, 2, "inf"])
def test_each_norm_goes_on_both_apis_and_into_json(api: str, norm: object) -> None:
    clip = Clip(max_norm=0.5, norm_type=norm)  # type: ignore[arg-type]
    case = clipped(clip, api=api)
    check(case)
    assert decode(encode(case)).program[2] == clip
    assert features(case)["clip"] == str(norm)


@pytest.mark.parametrize("value", ["0.0", '1.0,"norm_type":3', '1.0,"norm_type":true'])
def test_what_is_no_norm_is_refused_in_json(value: str) -> None:
    given = encode(clipped(Clip(max_norm=1.0))).replace(b":1.0", f":{value}".encode())
    assert value.encode() in given
    with pytest.raises(CaseError):
        decode(given)


def test_gradients_have_to_be_reduced_by_then() -> None:
    early = clipped(api="fsdp2")
    program: tuple[Op, ...] = (Forward(), Clip(max_norm=1.0), Backward())
    assert "not reduced" in refused(make(early.plan, model=MODEL, program=program))
    for middle, wrong in (
        ((Forward(sync=False), Backward()), True),
        ((Forward(), Backward()), False),
    ):
        program = (*middle, Clip(max_norm=1.0), Forward(), Backward(), Clip(max_norm=1.0))
        assert is_sound(make(early.plan, model=MODEL, program=program)) is not wrong
        assert is_orderly(program) is not wrong


def test_fsdp1_clips_on_its_root_which_a_rebuild_may_take_away() -> None:
    assert "root" in refused(clipped(Clip(max_norm=1.0), api="fsdp1", units=("0", "1")))
    check(clipped(Clip(max_norm=1.0), api="fsdp2", units=("0", "1")))
    again = (Rebuild(plan=fsdp1("0", "1")), Forward(), Backward())
    case = clipped(*again, Clip(max_norm=1.0), api="fsdp1")
    assert refused(case).startswith("$.program[5]")
    check(clipped(Clip(max_norm=1.0), *again, api="fsdp1"))


def test_the_error_is_an_option_of_fsdp2() -> None:
    asked = Clip(max_norm=1.0, error_if_nonfinite=True)
    check(clipped(asked))
    assert features(clipped(asked))["clip_error"] == "on"
    assert refused(clipped(asked, api="fsdp1")).startswith("$.program[2].error_if_nonfinite")
    assert "clip_error" not in features(clipped(Clip(max_norm=1.0), api="fsdp1"))


@pytest.mark.parametrize("unit", [Fsdp1Unit, Fsdp2Unit])
def test_there_is_no_one_norm_where_ranks_keep_gradients_of_their_own(
    unit: type[Fsdp1Unit | Fsdp2Unit],
) -> None:
    case = clipped(Clip(max_norm=1.0), api="fsdp1" if unit is Fsdp1Unit else "fsdp2", units=("",))
    check(case)
    units = (unit(path="", ignored=("0",)),)
    plan = msgspec.structs.replace(case.plan, units=units)
    left = msgspec.structs.replace(case, plan=plan)
    assert "no unit manages" in refused(left)
    # What is frozen has none.
    ignored = tuple(p.fqn for p in anatomy(left).parameters if p.fqn.startswith("0."))
    assert ignored
    check(msgspec.structs.replace(left, frozen=ignored, optimizer=Optimizer(foreach=False)))


def test_a_variant_trains_with_the_gradients_of_the_case() -> None:
    case = make(
        fsdp2(""),
        model=MODEL,
        frozen=("0.weight",),
        program=(Forward(), Backward(), Clip(max_norm=1.0), Step()),
        twins=(Variant(name="held", frozen=(), held_out=("0.weight",)),),
    )
    assert refused(case).startswith("$.twins[0].frozen")


@pytest.mark.parametrize(
    ("clips", "norms", "number"),
    [
        ((), "no", "0"),
        ((Clip(max_norm=1.0),), "2", "1"),
        ((Clip(max_norm=1.0, norm_type=1), Clip(max_norm=1.0, norm_type=1)), "1", "2+"),
        ((Clip(max_norm=1.0), Clip(max_norm=1.0, norm_type=1)), "1 and 2", "2+"),
        ((Clip(max_norm=1.0), Clip(max_norm=1.0, norm_type="inf")), "inf and other", "2+"),
    ],
)
def test_features(clips: tuple[Op, ...], norms: str, number: str) -> None:
    found = features(clipped(*clips))
    assert (found["clip"], found["clips"]) == (norms, number)


def calls(case: CaseSpec) -> list[tuple[str, tuple[Value, ...], dict[str, Value], str]]:
    """What the first clipping calls, on whom, with which options."""
    operation = next(s for s in walk(lower(anatomy(case)).main) if getattr(s, "name", "") == "clip")
    found: list[tuple[str, tuple[Value, ...], dict[str, Value], str]] = []
    for do in walk(operation.body):  # type: ignore[union-attr]
        assert isinstance(do, Do)
        assert isinstance(do.call, Call)
        assert [v.name for v in do.into] == ["total_norm"]  # type: ignore[union-attr]
        found.append((str(do.call.function), do.call.args[1:], dict(do.call.options), do.who))
    return found


def test_fsdp1_has_a_method_of_its_own() -> None:
    asked = {"norm_type": Global("torch.inf")}
    assert calls(clipped(Clip(max_norm=0.5, norm_type="inf"), api="fsdp1")) == [
        (".clip_grad_norm_", (0.5,), asked, "fsdp"),
        ("torch.nn.utils.clip_grad_norm_", (0.5,), asked, "reference"),
    ]


def test_fsdp2_does_as_the_plain_model_and_makes_the_norm_whole() -> None:
    utility = ("torch.nn.utils.clip_grad_norm_", (0.5,))
    assert calls(clipped(Clip(max_norm=0.5))) == [
        (*utility, {}, "both"),
        ("steps.clip.whole", (False,), {}, "fsdp"),
    ]


def test_only_fsdp_is_asked_for_an_error() -> None:
    """A reference may leave the range of its dtype: nothing is compared from there on."""
    utility = ("torch.nn.utils.clip_grad_norm_", (0.5,))
    assert calls(clipped(Clip(max_norm=0.5, error_if_nonfinite=True)))[:2] == [
        (*utility, {"error_if_nonfinite": True}, "fsdp"),
        (*utility, {}, "reference"),
    ]


@pytest.mark.parametrize(
    "before", [(), (Forward(), Backward(), ZeroGrad())], ids=["none yet", "cleared"]
)
def test_gradients_may_be_lacking(before: tuple[Op, ...]) -> None:
    case = make(fsdp2(""), model=MODEL, program=(*before, Clip(max_norm=1.0)))
    assert calls(case)[-1][1] == (True,)


def test_plainer_neighbours() -> None:
    case = clipped(Clip(max_norm=0.5, norm_type="inf", error_if_nonfinite=True), ZeroGrad())
    found = [s for d in DIMENSIONS for s in d.simpler(case)]
    clips = [next((op for op in s.case.program if isinstance(op, Clip)), None) for s in found]
    assert None in clips
    for plainer, words in (
        (Clip(max_norm=0.5, error_if_nonfinite=True), "clipping by another norm than the 2-norm"),
        (Clip(max_norm=0.5, norm_type="inf"), "error_if_nonfinite"),
        (Clip(max_norm=0.1, norm_type="inf", error_if_nonfinite=True), ""),
    ):
        assert words == next(s.words for s, c in zip(found, clips, strict=True) if c == plainer)
    assert Clip(max_norm=1.0, norm_type="inf", error_if_nonfinite=True) not in clips
    assert case not in [s.case for s in found]


@pytest.mark.parametrize(("size", "smaller"), [(0.1, set()), (1.0, {0.1}), (30.0, {0.1, 1.0})])
def test_it_clips_by_less_until_even_a_small_model_is_clipped(
    size: float, smaller: set[float]
) -> None:
    case = clipped(Clip(max_norm=size))
    found = [s.case for d in DIMENSIONS for s in d.simpler(case)]
    seen = {op.max_norm for case in found for op in case.program if isinstance(op, Clip)}
    assert seen - {size} == smaller


def test_words() -> None:
    assert Clip(max_norm=1.0).words() == "clip to 1"
    given = Clip(max_norm=0.25, norm_type="inf", error_if_nonfinite=True)
    assert given.words() == "clip to 0.25, norm inf, error if nonfinite"
