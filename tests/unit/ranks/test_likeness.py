"""A variant is held to its case element by element, whatever part of a tensor a rank has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from fsdpfuzz.expect import between_variants
from fsdpfuzz.observations import Comparison, Quantity
from fsdpfuzz.ranks._compare import Baseline
from fsdpfuzz.ranks._sharded import Shard
from fsdpfuzz.ranks._variants import RELATIVE, Likeness

SHAPES = {"w": (2, 3), "b": (3,), "c": (3,)}
NOBODY = frozenset[str]()


def shard(name: str, where: slice, values: Tensor, grad: Tensor | None = None) -> Shard:
    """Elements ``where`` of the flattened parameter."""
    held = nn.Parameter(values)
    held.grad = grad

    def same_part(whole: Tensor) -> Tensor:
        return whole.flatten()[where]

    def gradient(_: bool) -> Tensor:
        assert held.grad is not None
        return held.grad

    return Shard(name, held, held.detach, gradient, same_part)


def all_of(name: str, values: Sequence[float], grad: Sequence[float] | None = None) -> Shard:
    made = None if grad is None else torch.tensor(grad)
    return shard(name, slice(None), torch.tensor(values), made)


def parts(likeness: Likeness, *shards: Shard, quantity: Quantity = "param") -> None:
    likeness.add_parts(quantity, 2, shards, lambda fqn: fqn, NOBODY)


def unlike(
    usual: Sequence[Shard],
    own: Sequence[Shard],
    *,
    exact: bool = False,
    quantity: Quantity = "param",
    skipped: frozenset[str] = NOBODY,
) -> Comparison:
    """The worst deviation of a variant's parts from those of the case."""
    pattern = Likeness(SHAPES)
    parts(pattern, *usual, quantity=quantity)
    assert pattern.comparisons == []
    likeness = Likeness(SHAPES, pattern, exact=exact)
    likeness.add_parts(quantity, 2, own, lambda fqn: fqn, skipped)
    (found,) = likeness.comparisons
    return found


WHOLE = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_what_is_equal_is_alike() -> None:
    found = unlike([all_of("w", WHOLE)], [all_of("w", WHOLE)])
    assert (found.error, found.numel, found.name, found.op) == (0.0, 6, "*", 2)
    assert (found.scale, found.eps) == (6.0, torch.finfo(torch.float32).eps)


def test_one_element_that_differs_is_told() -> None:
    other = [*WHOLE[:4], 5.5, 6.0]
    found = unlike([all_of("w", WHOLE)], [all_of("w", other)])
    assert (found.name, found.observed, found.expected) == ("w", 5.5, 5.0)
    assert found.error == pytest.approx(0.5 - RELATIVE[torch.float32] * 5.0)


@pytest.mark.parametrize(("exact", "alike"), [(False, True), (True, False)])
def test_the_relative_tolerance_is_for_what_need_not_be_exact(exact: bool, alike: bool) -> None:
    other = [*WHOLE[:5], 6.0 + 2.0**-20]
    found = unlike([all_of("w", WHOLE)], [all_of("w", other)], exact=exact)
    assert (found.error == 0.0) is alike
    assert found.exact is exact


def test_parts_are_compared_where_they_overlap() -> None:
    """Another plan gives a rank other elements of a parameter."""
    usual = [shard("w", slice(0, 4), torch.tensor(WHOLE[:4]))]
    own = [shard("w", slice(2, 6), torch.tensor(WHOLE[2:]))]
    found = unlike(usual, own)
    assert (found.error, found.numel) == (0.0, 2)
    off = [shard("w", slice(2, 6), torch.tensor([3.0, 9.0, 5.0, 6.0]))]
    assert unlike(usual, off).observed == 9.0
    apart = [shard("w", slice(4, 6), torch.tensor([9.0, 9.0]))]
    assert (unlike(usual, apart).error, unlike(usual, apart).numel) == (0.0, 0)


def test_a_missing_gradient_and_one_of_zeros_are_the_same_update() -> None:
    without, zeros = all_of("b", [1.0] * 3), all_of("b", [1.0] * 3, [0.0] * 3)
    some = all_of("b", [1.0] * 3, [0.0, 0.25, 0.0])
    assert unlike([zeros], [without], quantity="grad").error == 0.0
    assert unlike([without], [without], quantity="grad").error == 0.0
    lost = unlike([some], [without], quantity="grad")
    assert (lost.name, lost.observed, lost.expected) == ("b", 0.0, 0.25)
    assert unlike([without], [some], quantity="grad").observed == 0.25


def test_what_is_trained_apart_is_left_out() -> None:
    usual, own = [all_of("b", [1.0] * 3)], [all_of("b", [2.0] * 3)]
    assert unlike(usual, own).error > 0.9
    assert unlike(usual, own, skipped=frozenset({"b"})).error == 0.0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_unlike_anything_else(value: float) -> None:
    found = unlike([all_of("b", [1.0] * 3)], [all_of("b", [1.0, value, 1.0])])
    assert (found.finite, found.name) == (False, "b")
    same = [all_of("b", [1.0, value, 1.0])]
    assert unlike(same, same).finite


def test_values_are_kept_as_they_were() -> None:
    """The case goes on training after its parameters were noted."""
    held = all_of("b", [1.0, 2.0, 3.0])
    pattern = Likeness(SHAPES)
    parts(pattern, held)
    held.held.data.zero_()
    likeness = Likeness(SHAPES, pattern)
    parts(likeness, all_of("b", [1.0, 2.0, 3.0]))
    assert [c.error for c in likeness.comparisons] == [0.0]


def test_a_second_name_that_fsdp_has_parted_is_passed_over() -> None:
    """Old FSDP2 makes two of a parameter that the model itself has under two names."""
    parted = all_of("w2", WHOLE)
    found = unlike([all_of("w", WHOLE), parted], [all_of("w", WHOLE), all_of("w2", [0.0] * 6)])
    assert (found.error, found.numel) == (0.0, 6)


def test_whole_tensors_are_compared_by_name_and_operation() -> None:
    pattern = Likeness(SHAPES)
    output = torch.tensor([1.0, 2.0])
    pattern.add_whole("output", "output[0]", 0, output)
    output.zero_()
    likeness = Likeness(SHAPES, pattern)
    likeness.add_whole("output", "output[0]", 0, torch.tensor([1.0, 2.0]))
    likeness.add_whole("output", "output[0]", 0, torch.tensor([1.0, 2.5]))
    likeness.add_whole("output", "output[0]", 0, torch.tensor([1.0, 2.0, 3.0]))
    alike, other, misshapen = likeness.comparisons
    assert (alike.error, other.observed, misshapen.finite) == (0.0, 2.5, False)


def told(off: Mapping[str, float], distances: Mapping[str, float]) -> tuple[Comparison, int]:
    """The worst of several whole gradients of ones, and how often baselines were asked for."""
    asked = 0

    def baselines() -> Mapping[str, Baseline]:
        nonlocal asked
        asked += 1
        return {name: Baseline(distance) for name, distance in distances.items()}

    likeness = Likeness(SHAPES)
    for own in (dict.fromkeys(off, 0.0), off):
        made = [all_of(n, [1.0] * 3, [1.0 + by, 1.0, 1.0]) for n, by in own.items()]
        likeness.add_parts("grad", 2, made, lambda fqn: fqn, NOBODY, baselines)
        likeness = Likeness(SHAPES, likeness) if likeness.pattern is None else likeness
    (found,) = likeness.comparisons
    return found, asked


def test_what_rounding_carries_far_hides_no_other_tensor() -> None:
    far = {"b": 1e-2, "c": 1e-4}
    assert told(far, {})[0].name == "b"
    found, asked = told(far, {"b": 1e-3, "c": 1e-8})
    assert (found.name, found.baseline, asked) == ("c", 1e-8, 2)
    found, _ = told(far, {"b": 1e-4, "c": 1e-4})
    assert found.name == "b"
    assert found.error > between_variants(found.baseline) > 0.0
    found, _ = told(far, {"b": 1e-3, "c": 1e-3})
    assert found.error < between_variants(found.baseline)


def test_baselines_are_asked_for_only_beyond_what_is_always_allowed() -> None:
    assert told({"b": 5e-6}, {"b": 1.0}) == (told({"b": 5e-6}, {})[0], 0)
