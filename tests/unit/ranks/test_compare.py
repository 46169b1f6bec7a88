"""A batch says what is off, and where; it looks closer only where something is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from fsdpfuzz.case import EPSILON
from fsdpfuzz.expect import FLOAT32_EPS
from fsdpfuzz.invariants import broken, tolerance
from fsdpfuzz.observations import NOT_FINITE, Comparison
from fsdpfuzz.ranks._compare import (
    QUICK_FACTOR,
    Baseline,
    Batch,
    baselines_of,
    entries_of,
    floor_of,
)
from fsdpfuzz.ranks._reference import _kinked

FLOOR = 4.0
QUICK = QUICK_FACTOR * FLOAT32_EPS * FLOOR
"""What a batch does not look into."""


def never() -> Mapping[str, Baseline]:
    raise AssertionError("nobody needs a baseline here")


def exact_to(*distances: float) -> Callable[[], Mapping[str, Baseline]]:
    return lambda: {name: Baseline(d, 1.0) for name, d in zip("ab", distances, strict=False)}


def batch(
    baselines: Callable[[], Mapping[str, Baseline]] = never,
    *,
    exact: bool = False,
    eps: float = FLOAT32_EPS,
) -> Batch:
    return Batch("grad", 1, eps, FLOOR, exact=exact, baselines=baselines)


def right() -> dict[str, Tensor]:
    return {"a": torch.linspace(-4, 4, 9).double(), "b": torch.linspace(0, 1, 5).double()}


def compared(
    given: Batch, changes: Mapping[tuple[str, int], float], dtype: torch.dtype = torch.float64
) -> tuple[Comparison, ...]:
    """Both tensors, with other values at some places."""
    for name, expected in right().items():
        seen = expected.clone()
        for (where, k), value in changes.items():
            if where == name:
                seen[k] = value
        given.add(name, seen.to(dtype), expected)
    return given.finish()


def test_one_comparison_stands_for_all_that_agree() -> None:
    (found,) = compared(batch(), {("a", 3): -1.0 + QUICK / 2})
    assert (found.name, found.numel, found.op, found.quantity) == ("*", 14, 1, "grad")
    assert found.error == pytest.approx(QUICK / 2)
    assert not broken(found)


def test_one_element_that_is_off_is_found_and_named() -> None:
    first, second = compared(batch(exact_to(0.0, 1e-9)), {("b", 2): 0.75})
    assert (first.name, first.error) == ("a", 0.0)
    assert (second.name, second.error) == ("b", 0.25)
    assert (second.observed, second.expected) == (0.75, 0.5)
    assert (second.baseline, second.scale, second.floor) == (1e-9, 1.0, FLOOR)
    assert (broken(first), broken(second)) == (False, True)


def test_the_worst_element_is_told() -> None:
    _, found = compared(batch(exact_to(0.0, 0.0)), {("b", 1): 0.5, ("b", 4): -1.0})
    assert (found.error, found.observed, found.expected, found.numel) == (2.0, -1.0, 1.0, 5)


@pytest.mark.parametrize(("part", "number"), [(0.99, 1), (1.01, 2)])
def test_the_quick_look_ends_at_its_bound(part: float, number: int) -> None:
    assert len(compared(batch(exact_to(0.0, 0.0)), {("a", 4): part * QUICK})) == number


@pytest.mark.parametrize("eps", EPSILON.values())
def test_what_passes_quickly_would_pass_on_a_closer_look(eps: float) -> None:
    """Whatever the tensor's own size, however exact DDP was, or the plain model in that dtype."""
    (found,) = compared(batch(eps=eps), {("a", 4): 0.99 * QUICK_FACTOR * eps * FLOOR})
    assert found.error > 0.9 * QUICK_FACTOR * eps * FLOOR
    assert found.error < tolerance(found)
    if eps > FLOAT32_EPS:
        assert found.error < tolerance(msgspec.structs.replace(found, coarse=0.0))


def test_what_must_be_equal_is_equal_to_the_last_bit() -> None:
    (found,) = compared(batch(exact=True), {})
    assert (found.name, found.error, found.exact) == ("*", 0.0, True)
    least = {("b", 4): 1.0 - 2.0**-53}
    first, second = compared(batch(dict, exact=True), least)
    assert (first.error, second.error) == (0.0, 2.0**-53)
    assert (broken(first), broken(second)) == (False, True)
    assert (second.baseline, second.scale) == (0.0, 1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("exact", [False, True])
def test_what_is_not_finite_is_broken(value: float, exact: bool) -> None:
    baselines = exact_to(0.0, 0.0)
    first, second = compared(batch(baselines, exact=exact), {("b", 0): value})
    assert (first.finite, second.finite) == (True, False)
    assert second.error == NOT_FINITE
    assert abs(second.observed) < float("inf")
    assert broken(second)


def test_a_lower_precision_is_widened_and_not_narrowed() -> None:
    half = compared(batch(exact_to(0.0, 0.0)), {("b", 2): 0.5 + 2.0**-11}, torch.bfloat16)
    assert [found.name for found in half] == ["*"]
    found = compared(batch(exact_to(0.0, 0.0)), {("b", 2): 0.5 + 2.0**-11}, torch.float32)
    assert found[1].error == 2.0**-11


def test_a_missing_tensor_is_told_unless_zeros_are_the_same() -> None:
    given = batch(dict)
    given.add("a", None, torch.tensor([0.0, -3.0]))
    given.add("b", torch.tensor([2.0]), None)
    given.add("zeros", torch.zeros(3), None)
    given.add("empty", None, torch.empty(0))
    given.add("none", None, None)
    first, second = given.finish()
    assert (first.name, first.missing, first.error, first.expected) == ("a", "observed", 3.0, 3.0)
    assert (second.name, second.missing, second.observed) == ("b", "expected", 2.0)
    assert broken(first)
    assert broken(second)


def test_what_is_missing_stands_beside_what_agrees() -> None:
    given = batch(dict)
    given.add("c", None, torch.ones(2))
    assert [found.name for found in compared(given, {})] == ["*", "c"]


def test_zeros_that_one_side_lacks_need_no_baseline() -> None:
    given = batch(never)
    given.add("zeros", torch.zeros(3), None)
    assert given.finish() == ()


def test_another_number_of_elements_is_told() -> None:
    given = batch()
    given.add("a", torch.ones(3), torch.ones(4))
    (found,) = given.finish()
    assert (found.missing, found.observed, found.expected) == ("shape", 3.0, 4.0)
    assert broken(found)


def test_empty_parts_and_an_empty_batch_say_nothing() -> None:
    given = batch()
    given.add("a", torch.empty(0), torch.empty(0))
    assert given.finish() == ()


def test_shapes_do_not_matter_but_the_order_of_elements_does() -> None:
    whole = torch.arange(6.0)
    given = batch(exact_to(0.0))
    given.add("a", whole.view(2, 3), whole)
    assert [found.name for found in given.finish()] == ["*"]
    given = batch(exact_to(0.0))
    given.add("a", whole.roll(1), whole)
    (found,) = given.finish()
    assert (found.error, found.observed, found.expected) == (5.0, 5.0, 0.0)


def test_how_many_terms_are_summed_is_handed_on() -> None:
    given = batch(exact_to(0.0))
    given.add("a", torch.ones(2), torch.zeros(2), reduced=64)
    assert [found.reduced for found in given.finish()] == [64]


def test_a_baseline_is_how_far_float32_was_off_and_how_large_the_tensor_is() -> None:
    wide = {"a": torch.tensor([1.0, -8.0]).double(), "b": torch.tensor([2.0]).double()}
    single = {"a": torch.tensor([1.0, -8.5]), "b": torch.tensor([2.0])}
    assert baselines_of(wide, single) == {"a": Baseline(0.5, 8.0), "b": Baseline(0.0, 2.0)}
    nudged = {"a": wide["a"] - 0.75, "b": wide["b"]}
    assert baselines_of(wide, single, nudged=[nudged])["a"] == Baseline(0.75, 8.0)


def test_a_baseline_without_a_second_tensor_is_its_size() -> None:
    wide = {"a": torch.tensor([3.0]), "none": None, "empty": torch.empty(0)}
    assert baselines_of(wide, {}) == {"a": Baseline(3.0, 3.0)}
    assert baselines_of({}, {}) == {}


def test_a_baseline_that_is_not_finite_is_said_to_be() -> None:
    wide, single = {"a": torch.ones(2)}, {"a": torch.tensor([1.0, float("inf")])}
    assert baselines_of(wide, single) == {"a": Baseline(NOT_FINITE, 1.0)}
    diverged = {"a": torch.tensor([float("nan")])}
    assert baselines_of(wide, diverged)["a"].distance == NOT_FINITE


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_gradient_beside_a_kink_may_be_off_but_not_twice_as_large(dtype: str) -> None:
    """Somebody's own model in a lower dtype: ReLU and the like make more of rounding."""
    baselines = {name: _kinked(Baseline(1e-9, 4.0, coarse=1e-3)) for name in right()}

    def off_by(share: float) -> list[str]:
        given = batch(lambda: baselines, eps=EPSILON[dtype])
        for name, expected in right().items():
            given.add(name, expected * (1 + share), expected)
        return [found.name for found in given.finish() if broken(found)]

    assert off_by(0.2) == []
    assert "a" in off_by(1.0)
    assert "a" in off_by(-1.0)


def test_the_floor_is_the_largest_element_of_all() -> None:
    assert floor_of({"a": torch.tensor([1.0, -7.0]), "b": torch.tensor([[3.0]]), "c": None}) == 7.0
    assert floor_of({"a": None, "b": torch.empty(0)}) == 0.0
    assert floor_of({}) == 0.0


def test_what_an_operation_gives_is_compared_by_name() -> None:
    one, two = torch.ones(1), torch.zeros(2)
    assert entries_of("norm", one) == {"norm": one}
    assert entries_of("whole", {"0.weight": one}) == {"whole[0.weight]": one}
    nested = entries_of("optim", {"0.weight": {"step": one, "exp_avg": two}})
    assert nested == {"optim[0.weight].step": one, "optim[0.weight].exp_avg": two}


def test_all_tensors_of_a_batch_are_compared_on_one_device() -> None:
    """What FSDP offloads lies on the CPU, a buffer beside it on the GPU."""
    given = batch()
    with FakeTensorMode():
        for name, kind in (("offloaded", "cpu"), ("buffer", "cuda"), ("weight", "cpu")):
            given.add(name, torch.ones(2, device=kind), torch.ones(2, device=kind))
        with pytest.raises(DataDependentOutputException):
            # As far as tensors without values can get.
            given.finish()


def test_what_float64_lacks_is_held_against_what_float32_has() -> None:
    """A gradient that is zero but for rounding: DDP's noise says how large FSDP's may be."""
    noise = {"a": torch.tensor([0.0, -2e-7])}
    assert baselines_of({"a": None}, noise)["a"] == Baseline(float(noise["a"].abs().max()), 0.0)
    lone = Batch("grad", 1, 1e-7, 0.0, baselines=lambda: baselines_of({"a": None}, noise))
    lone.add("a", torch.tensor([1e-7, 0.0]), None)
    (one,) = lone.finish()
    assert (one.missing, one.error, one.scale) == ("expected", one.observed, one.observed)
    assert one.baseline == float(noise["a"].abs().max())


def test_what_has_no_version_is_compared() -> None:
    """FSDP1 gives memory that it made under inference mode other data later on."""
    with torch.inference_mode():
        memory = torch.empty(2)
    memory.data = torch.ones(2)
    with pytest.raises(RuntimeError, match="do not track version counter"):
        memory.detach().reshape(-1)
    given = batch()
    given.add("a", memory, torch.ones(2, dtype=torch.float64))
    (one,) = given.finish()
    assert (one.name, one.error) == ("*", 0.0)
