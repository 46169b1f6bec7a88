"""Where training leaves the range of a dtype that takes part, nothing is compared any more."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fsdpfuzz.case import (
    Anatomy,
    Backward,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Precision,
    anatomy,
)
from fsdpfuzz.case.operations import Clip
from fsdpfuzz.observations import NOT_FINITE, Comparison, Subject
from fsdpfuzz.ranks import _reference
from fsdpfuzz.ranks._compare import Baseline, baselines_of
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._reference import (
    NEVER,
    Recorder,
    Reference,
    Trace,
    lower_dtypes,
    references,
)
from fsdpfuzz.ranks._train import _refuses, _until
from tests.unit.loop.standins import make_case
from tests.unit.ranks.executed import environment

HALF = torch.float16


def trace(*sizes: float) -> Trace:
    return Trace(
        sizes={op: torch.tensor(size, dtype=torch.float64) for op, size in enumerate(sizes)}
    )


def left(wide: Trace, single: Trace, *lower: Trace) -> tuple[int, str]:
    dtypes = (HALF,)[: len(lower)]
    return Reference(wide, single, lower).leaves(dtypes)


def test_usual_training_is_compared_to_its_end() -> None:
    usual = trace(1.0, 4000.0, 7.0)
    assert left(usual, usual) == (NEVER, "")
    assert left(usual, usual, usual) == (NEVER, "")
    assert left(Trace(), Trace()) == (NEVER, "")


def test_float64_goes_where_no_float32_is() -> None:
    """A gradient of 2.9e38 is a float32, but twice as much, the sum over ranks, is none."""
    wide = trace(1.0, 2.9e38, 3.0)
    assert left(wide, wide) == (1, "float32")
    assert left(trace(1.0, 1e300), trace(1.0, float("inf"))) == (1, "float32")


def test_a_replica_that_leaves_the_range_on_the_way_to_a_usual_result() -> None:
    usual = trace(1.0, 2.0, 3.0)
    for lost in (float("nan"), float("inf")):
        assert left(usual, trace(1.0, 2.0, lost)) == (2, "float32")
        assert left(usual, usual, trace(1.0, lost, 3.0)) == (1, "float16")


def test_what_is_usual_in_float32_may_be_too_much_for_float16() -> None:
    wide = trace(1.0, 60_000.0)
    assert left(wide, wide) == (NEVER, "")
    assert left(wide, wide, wide) == (1, "float16")


@pytest.mark.parametrize(
    ("left", "text", "refuses"),
    [
        (1, "is non-finite, so it cannot be clipped", True),
        (2, "is non-finite, so it cannot be clipped", True),
        # What is finite by then FSDP has to clip.
        (3, "is non-finite, so it cannot be clipped", False),
        (NEVER, "is non-finite, so it cannot be clipped", False),
        (1, "anything else", False),
    ],
)
def test_clipping_may_refuse_what_has_left_the_range(left: int, text: str, refuses: bool) -> None:
    error = RuntimeError(f"The total norm of order 2.0 for gradients {text}.")
    clip = Clip(max_norm=1.0, error_if_nonfinite=True)
    asked = msgspec.structs.replace(make_case(), program=(Forward(), Backward(), clip))
    assert _refuses(asked, left, error) is refuses
    not_asked = msgspec.structs.replace(asked, program=(*asked.program[:2], Clip(max_norm=1.0)))
    assert not _refuses(not_asked, left, error)


def test_what_comes_later_is_not_compared() -> None:
    def off(op: int) -> Comparison:
        return Comparison(
            quantity="grad", name="w", op=op, error=9.0, baseline=0.0, scale=1.0, floor=1.0
        )

    subject = Subject(comparisons=(off(0), off(1), off(2)), against_case=(off(1), off(3)))
    kept = _until(2, subject)
    assert [c.op for c in kept.comparisons] == [0, 1]
    assert [c.op for c in kept.against_case] == [1]
    assert _until(NEVER, subject) == subject
    assert [c.op for c in _until(NEVER, subject, {1}).comparisons] == [0, 2]
    assert [c.op for c in _until(NEVER, subject, {1}).against_case] == [3]


@pytest.mark.parametrize(
    ("precisions", "dtypes"),
    [
        ([None, None], ()),
        ([Precision(reduce="bfloat16"), None], ()),
        ([Precision(buffer="float16"), Precision(param="float32")], ()),
        ([Precision(param="float16"), None], (torch.float16,)),
        ([Precision(param="float16", reduce="bfloat16"), None], (torch.bfloat16, torch.float16)),
        ([Precision(param="bfloat16"), Precision(buffer="float16")], (torch.bfloat16, HALF)),
    ],
)
def test_what_is_measured_is_what_units_compute_in(
    precisions: list[Precision | None], dtypes: tuple[torch.dtype, ...]
) -> None:
    units = tuple(
        Fsdp1Unit(path=path, precision=given)
        for path, given in zip(("", "0"), precisions, strict=True)
    )
    case: CaseSpec = msgspec.structs.replace(make_case((2,)), plan=Fsdp1Plan(units=units))
    assert lower_dtypes(anatomy(case)) == dtypes


def test_a_lower_dtype_is_trained_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """One draw of its rounding is right by chance where few elements are left."""
    trained: list[tuple[torch.dtype, int]] = []

    def record(
        a: Anatomy, env: RankEnv, dtype: torch.dtype, *, alone: bool = False, nudge: int = 0
    ) -> tuple[Trace, bool]:
        trained.append((dtype, nudge))
        return trace(float(nudge)), alone

    monkeypatch.setattr(_reference, "record", record)
    plan = Fsdp1Plan(units=(Fsdp1Unit(path="", precision=Precision(param="bfloat16")),))
    case: CaseSpec = msgspec.structs.replace(make_case((2,)), plan=plan)
    found, dtypes, _ = references(anatomy(case), environment())
    assert dtypes == (torch.bfloat16,)
    assert [float(each.sizes[0]) for each in found.lower] == [0.0, 1.0]
    lower = [nudge for dtype, nudge in trained if dtype == torch.bfloat16]
    assert lower == [0, 1]


def test_the_furthest_of_the_lower_dtypes_counts() -> None:
    wide = {"a": torch.tensor([4.0]).double()}
    single, half = {"a": torch.tensor([4.5])}, {"a": torch.tensor([5.0], dtype=HALF)}
    brain = {"a": torch.tensor([2.0], dtype=torch.bfloat16)}
    assert baselines_of(wide, single) == {"a": Baseline(0.5, 4.0, None)}
    assert baselines_of(wide, single, [half]) == {"a": Baseline(0.5, 4.0, 1.0)}
    assert baselines_of(wide, single, [half, brain]) == {"a": Baseline(0.5, 4.0, 2.0)}
    assert baselines_of(wide, single, [half, {"a": None}]) == {"a": Baseline(0.5, 4.0, 4.0)}
    stored_low = baselines_of(wide, single, [half], eps=2.0**-7)
    assert stored_low == {"a": Baseline(0.5, 4.0, 1.0, 2.0**-7)}
    lost = {"a": torch.tensor([float("nan")], dtype=HALF)}
    assert baselines_of(wide, single, [lost])["a"].coarse == NOT_FINITE


def test_the_size_of_nothing_is_on_the_device_as_others_are() -> None:
    """A state dict is taken of a model without parameters before anything was computed."""
    case = make_case()
    with FakeTensorMode():
        recorder = Recorder(anatomy(case), ddp=False, device=torch.device("cuda"))
        size = recorder._size({}, [])
    assert (size.device.type, size.dtype) == ("cuda", torch.float64)
