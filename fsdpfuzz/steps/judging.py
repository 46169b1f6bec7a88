"""What is wrong, in words: each gives a list of texts, empty where nothing is wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

from torch import Tensor

from fsdpfuzz.expect.rounding import rounding


# ``not ... <= allowed`` here and below, and never ``> allowed``: NaN has to count as wrong.
def off(name: str, seen: Tensor, right: Tensor, allowed: float) -> list[str]:
    """The elements of a tensor that are further off than ``allowed``."""
    return [
        f"{name}: element {k} is {a:.9g}, but should be {b:.9g}"
        for k, (a, b) in enumerate(
            zip(seen.flatten().tolist(), right.flatten().tolist(), strict=True)
        )
        # NaN is not off by any number, so the comparison is the other way round.
        if not abs(a - b) <= allowed
    ]


# product() of no ranges gives one empty index: a tensor without dimensions has one element.
def whole_off(name: str, seen: Tensor, right: Tensor, allowed: float) -> list[str]:
    """The same, each element by its indices."""
    return [
        f"{name}{[*k]} is {seen[k]:.9g}, but should be {right[k]:.9g}"
        for k in product(*map(range, right.shape))
        if not abs(seen[k] - right[k]) <= allowed
    ]


def part_off(name: str, offsets: Sequence[int], seen: Tensor, right: Tensor) -> list[str]:
    """Which elements of a part that begins at ``offsets`` in a whole tensor are others."""
    return [
        f"{name}{[*map(sum, zip(k, offsets, strict=True))]} is {seen[k]:.9g}, "
        f"but should be {right[k]:.9g}"
        for k in map(tuple, (seen != right).nonzero().tolist())
    ]


def flat_off(name: str, places: Sequence[Sequence[int]], seen: Tensor, right: Tensor) -> list[str]:
    """Which elements of a flat part, which have these ``places`` in a whole tensor, are others."""
    return [
        f"{name}{[*places[k]]} is {seen[k]:.9g}, but should be {right[k]:.9g}"
        for k in (seen != right).nonzero().flatten().tolist()
    ]


def entry_off(
    name: str,
    state: Mapping[str, Tensor],
    right: Tensor,
    allowed: float,
    rank0_only: bool,
    rank: int,
) -> list[str]:
    """The same of an entry of a state dict, which rank 0 alone may have."""
    if rank0_only and rank > 0:
        return []
    return whole_off(name, state[name], right, allowed)


def unlike(name: str, seen: Tensor, right: Tensor, allowed: float, rtol: float) -> list[str]:
    """The same beyond the relative tolerance of ``torch.testing.assert_close``."""
    return [
        f"{name}: element {k} is {a:.9g} in the variant, but {b:.9g} in the case"
        for k, (a, b) in enumerate(
            zip(seen.flatten().tolist(), right.flatten().tolist(), strict=True)
        )
        if not abs(a - b) <= allowed + rtol * abs(b)
    ]


def other(what: str, seen: object, right: object) -> list[str]:
    """Whether something is not what it should be."""
    return [] if seen == right else [f"{what}: {seen}, but should be {right}"]


def more(what: str, seen: int, most: int) -> list[str]:
    """Whether there is more than there may be."""
    return [] if seen <= most else [f"{what}: {seen}, but should be at most {most}"]


def less(what: str, seen: int, least: int) -> list[str]:
    """Whether there is less than there must be."""
    return [] if seen >= least else [f"{what}: {seen}, but should be at least {least}"]


def outside(what: str, seen: int, low: int, high: int) -> list[str]:
    """Whether a number is not between two others."""
    return [] if low <= seen <= high else [f"{what}: {seen}, but should be {low} to {high}"]


def far(what: str, seen: int, right: int, part: float, least: int) -> list[str]:
    """Whether a number is off by more than a part of the right one, and more than ``least``."""
    near = abs(seen - right) <= max(part * right, least)
    return [] if near else [f"{what}: {seen}, but should be about {right}"]


def late(issued: Sequence[str], first: str, then: str) -> list[str]:
    """Whether one collective comes after another that it should come before."""
    early = issued.index(first) < issued.index(then)
    return [] if early else [f"{first}: after {then}, but should be before it"]


def among(seen: Collection[str], names: Collection[str], text: str) -> list[str]:
    """Which of the names were seen."""
    return [f"{name!r} {text}" for name in seen if name in names]


def entries(
    state: Mapping[str, Any],
    plain: Mapping[str, Any],
    rank0_only: bool,
    rank: int,
    flat: Collection[str] = (),
    cut: Collection[str] = (),
) -> list[str]:
    """Keys, shapes and dtypes of a state dict that are not the plain model's.

    ``flat`` names units whose parameters are saved as one flat parameter; ``cut`` parameters that
    are sharded, and so may be on rank 0 alone.
    """
    right = dict(plain)
    if flat:
        right = {key: form for key, form in right.items() if key.rpartition(".")[0] not in flat}
        right |= {f"{unit}._flat_param".strip("."): None for unit in flat}
    wrong = [f"{key} is missing" for key in sorted(right.keys() - state.keys())]
    wrong += [f"{key} is unexpected" for key in sorted(state.keys() - right.keys())]
    for key in sorted(state.keys() & right.keys()):
        form = (tuple(state[key].size()), state[key].dtype)
        if right[key] not in (None, form):
            wrong.append(f"{key} is {form}, but should be {right[key]}")
    if rank0_only and rank > 0:
        # Only rank 0 gets what is sharded.
        wrong = [f"{key} is unexpected" for key in sorted(state) if key in cut]
    return wrong


def differences(
    seen: Mapping[str, Tensor], right: Mapping[str, Tensor], eps: float, adaptive: float = 0.0
) -> list[str]:
    """Which tensors differ by more than rounding, and what the optimizer makes of it, explain."""
    largest = max(float(value.abs().max()) for value in right.values() if value.numel())
    wrong: list[str] = []
    for name, value in seen.items():
        if value.numel():
            allowed = rounding(float(right[name].abs().max()), largest, eps, 64) + adaptive
            wrong += off(name, value, right[name], allowed)
    return wrong
