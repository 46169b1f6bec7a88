"""Whatever the focus, nothing is out of reach: any two values that go together are drawn so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from math import exp

import pytest

from fsdpfuzz.case import FEATURES, CaseSpec, RequiresGrad
from fsdpfuzz.show import PairCounts, PairTable
from fsdpfuzz.strategies import FOCUSES
from fsdpfuzz.strategies.drawing import Focus
from tests.unit.strategies.pairs import MEANING, NOT_DRAWN, Together
from tests.unit.strategies.sample import everything, features_of, large

Pair = frozenset[tuple[str, str]]

ALWAYS: dict[str, tuple[str, ...]] = {
    "precision": ("on",),
    "cpu_offload": ("on",),
    "state_dict": ("full", "sharded", "several"),
    "state_offload": ("on",),
    "state_rank0": ("on",),
    "checkpoint": ("several",),
    "recomputed_unit": ("on",),
    "reentrant": ("whole",),
    "variants": ("checkpoints",),
    "debug_level": ("DETAIL", "INFO"),
    "flips": ("all",),
    "refrozen": ("yes",),
    "accumulation": ("sync", "no_sync"),
    "pending": ("2+",),
    "lone_forward": ("no_grad", "dropped"),
    "eval": ("on",),
    "zero_grad": ("never", "zero"),
    "optimizer": ("adam", "adamw", "none"),
    "foreach": ("on", "off"),
    "loss": ("sum",),
    "freeze": ("some", "alternate"),
    "mixed_unit": ("on",),
    "tied": ("within unit",),
    "inputs": ("sequence", "tokens"),
    "input_grad": ("on",),
    "lora": ("on",),
    "residual": ("on",),
    "unused": ("on",),
    "root": ("open",),
    "nesting": ("flat", "deep"),
    "bare_unit": ("on",),
    "wrap": ("custom_policy", "module_classes"),
    "sharding": ("SHARD_GRAD_OP", "NO_SHARD", "mixed"),
    "use_orig_params": ("on", "mixed"),
    "backward_prefetch": ("BACKWARD_POST", "off"),
    "forward_prefetch": ("on",),
    "limit_all_gathers": ("off",),
    "reshard_after_forward": ("on", "off", "int"),
}
"""Values that occur under every focus, also those that it does not look at."""


@pytest.mark.parametrize("focus", FOCUSES)
def test_nothing_is_out_of_reach_of_a_focus(focus: Focus) -> None:
    counts = rates(focus)
    never = [f"{n}={v}" for n, values in ALWAYS.items() for v in values if not counts[n, v]]
    assert not never


@pytest.mark.parametrize(
    ("focus", "name", "value", "times"),
    [
        ("state_dict", "state_dict", "any", 5),
        ("state_dict", "state_offload", "on", 5),
        ("memory", "mem_tracker", "on", 5),
        ("memory", "cpu_offload", "on", 3),
        ("memory", "precision", "on", 3),
        ("checkpoint", "variants", "checkpoints", 5),
        ("checkpoint", "checkpoint", "any", 1.2),
        ("fine_tune", "variants", "frozen", 5),
        ("fine_tune", "precision", "on", 3),
        ("fine_tune", "freeze", "any", 1.3),
        ("fine_tune", "RequiresGrad", "on", 3),
        ("exec_order", "debug_level", "DETAIL", 5),
        ("exec_order", "flips", "some", 5),
        ("exec_order", "flips", "all", 5),
    ],
)
def test_a_focus_moves_weights(focus: Focus, name: str, value: str, times: float) -> None:
    looked_at, usual = rates(focus)[name, value], rates("parity")[name, value]
    assert looked_at >= times * usual > 0


@cache
def rates(focus: Focus) -> Counter[tuple[str, str]]:
    """How many draws of a focus have a value of a feature; ``any`` is every one but the first."""
    counts: Counter[tuple[str, str]] = Counter()
    for case in large(focus):
        found = features_of(case)
        counts.update(found.items())
        counts.update((name, "any") for name, value in found.items() if not plain(name, value))
        counts["RequiresGrad", "on"] += any(isinstance(op, RequiresGrad) for op in case.program)
    return counts


def plain(name: str, value: str) -> bool:
    """Whether it is the plainest of the feature's values."""
    return value == next(iter(FEATURES[name].values), None)


COMMON = 10.0
"""In how many cases two values would meet, were they drawn independently, to count as common."""
MAX_COMMON = 20
"""How many such pairs may be missing from so small a sample. In 60,000 draws 93 were missing in
all."""
RARE = ((1.0, 1.05), (3.0, 2.3), (5.0, 6.0))
"""Of the rarer pairs that would meet in more cases than the first number: how many times as many
may be missing as chance leaves out, were any two values drawn independently."""
CORE = (
    "sharding",
    "use_orig_params",
    "reshard_after_forward",
    "wrap",
    "freeze",
    "checkpoint",
    "precision",
    "cpu_offload",
    "accumulation",
    "state_dict",
    "optimizer",
)
"""Where bugs live, by PyTorch's issues: any two values of these meet."""
SCARCE = {("freeze", "all"), ("state_dict", "local"), ("use_orig_params", "mixed")}
"""Values of these that one draw in a hundred has, or fewer; they meet most."""


@cache
def table() -> PairTable:
    """The pairs of values over all focuses."""
    counts = PairCounts()
    for case in everything():
        counts.add(features_of(case))
    return counts.table()


def met(pairs: PairTable) -> Iterator[tuple[Pair, int, float, bool]]:
    """For each two listed values: how often they met, would have met, and whether they can."""
    grid = pairs.grid()
    listed = [
        i
        for i, one in enumerate(pairs.values)
        if one.value in FEATURES[one.option].values or one.option == "world_size"
    ]
    for k, i in enumerate(listed):
        for j in listed[k + 1 :]:
            a, b = pairs.values[i], pairs.values[j]
            pair = frozenset({(a.option, a.value), (b.option, b.value)})
            if a.option != b.option:
                expected = a.count * b.count / pairs.cases
                yield pair, pairs.count(i, j), expected, grid.possible(i, j)


def missing() -> dict[Pair, float]:
    """Pairs that never met although they can and no list says why, with how often they would."""
    return {pair: expected for pair, count, expected in awaited(table()) if not count}


def awaited(pairs: PairTable) -> Iterator[tuple[Pair, int, float]]:
    """Pairs that can meet, and of which no list says why they do not."""
    known = {*pairs_of(MEANING), *pairs_of(NOT_DRAWN)}
    for pair, count, expected, possible in met(pairs):
        if possible and pair not in known:
            yield pair, count, expected


def test_common_pairs_meet() -> None:
    apart = [text(pair) for pair, expected in missing().items() if expected >= COMMON]
    assert len(apart) <= MAX_COMMON, apart


def left_out(pairs: PairTable) -> list[float]:
    """For each line of `RARE` how many times as many pairs are missing as chance leaves out.

    Of values that are drawn independently, and would meet in ``n`` cases of many, ``exp(-n)`` is
    the chance that they never do.
    """
    rare = [(count, n) for _, count, n in awaited(pairs) if n < COMMON]
    found = []
    for least, _ in RARE:
        counts = [(count, n) for count, n in rare if n > least]
        found.append(sum(not count for count, _ in counts) / sum(exp(-n) for _, n in counts))
    return found


def test_few_of_the_rare_pairs_are_missing() -> None:
    times = left_out(table())
    assert all(t <= most for t, (_, most) in zip(times, RARE, strict=True)), times


def test_rare_pairs_that_are_never_drawn_are_noticed() -> None:
    """As where one seldom kind of module kept others from being drawn."""
    kinds = ("outputs", "side_output", "in_place")
    counts = PairCounts()
    for case in everything():
        found = features_of(case)
        if sum(found[kind] != "no" for kind in kinds) <= 1:
            counts.add(found)
    times = left_out(counts.table())
    assert all(t > most for t, (_, most) in zip(times, RARE, strict=True)), times


def test_pairs_of_what_bugs_are_made_of_meet() -> None:
    apart = [
        text(pair)
        for pair in missing()
        if all(name in CORE for name, _ in pair) and not pair & SCARCE
    ]
    assert not apart


@pytest.mark.parametrize("listed", [MEANING, NOT_DRAWN], ids=["meaning", "not drawn"])
def test_pairs_said_to_be_missing_do_not_meet(listed: tuple[Together, ...]) -> None:
    said = set(pairs_of(listed))
    wrong = {text(pair): count for pair, count, _, _ in met(table()) if count and pair in said}
    assert not wrong, "take these off the list"


def test_lists_of_missing_pairs_name_what_there_is() -> None:
    for _, first, second in (*MEANING, *NOT_DRAWN):
        for name, values in (*first.items(), *second.items()):
            assert name == "world_size" or {*values} <= {*FEATURES[name].values}, name


def pairs_of(listed: tuple[Together, ...]) -> Iterator[Pair]:
    """All pairs of a value on one side with a value on the other."""
    for _, first, second in listed:
        yield from (frozenset(pair) for pair in product(each(first), each(second)))


def each(values: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Name and value, one by one."""
    return ((name, value) for name, some in values.items() for value in some)


def text(pair: Pair) -> str:
    """``a=1 × b=2``."""
    return " × ".join(f"{name}={value}" for name, value in sorted(pair))


def test_a_pair_that_is_never_drawn_is_noticed() -> None:
    def apart(case: CaseSpec) -> bool:
        found = features_of(case)
        return not (found["precision"] == "on" and found["freeze"] == "some")

    counts = PairCounts()
    for case in filter(apart, everything()):
        counts.add(features_of(case))
    spots = {str(s.first) + str(s.second) for s in counts.table().blind_spots(400)}
    assert {"precision=onfreeze=some", "freeze=someprecision=on"} & spots
