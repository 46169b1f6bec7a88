"""Tensor parallelism is drawn in every style, over two ranks and over all, and shrinks away."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, Linear, features, is_sound
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import everything


def cut(case: CaseSpec) -> bool:
    return case.tensor_parallel is not None


def test_it_is_drawn_in_every_style() -> None:
    told = Counter[str]()
    for case in everything():
        if case.tensor_parallel is None:
            continue
        assert is_sound(case)
        has = features(case)
        told.update({style for part in case.tensor_parallel.modules for _, style in part.styles()})
        told[f"mesh {has['mesh']}"] += 1
        told[f"sequence parallel {has['sequence_parallel']}"] += 1
        told[f"output {has['cut_output']}"] += 1
        told["on meta"] += case.meta_init is not None
        told["stored"] += has["optim_state"] != "no" or has["transferred"] != "no"
        told["a pair"] += any(part.into for part in case.tensor_parallel.modules)
        told["clipped"] += has["clip"] != "no"
        told["saved"] += has["state_dict"] != "no"
        told["recomputed"] += any(c.recomputes for c in case.checkpoints)
        told["frozen"] += bool(case.frozen)
    assert min(told[style] for style in ("a pair", "colwise", "rowwise")) >= 10, told
    assert min(told[name] for name in ("saved", "recomputed", "frozen")) >= 10, told
    assert told["clipped"] >= 1, told
    assert min(told["mesh no"], told["mesh one shard"]) >= 10, told
    assert min(told["mesh both"] + told["mesh one replica"], told["on meta"]) >= 3, told
    assert min(told["sequence parallel alone"], told["sequence parallel handed on"]) >= 5, told
    assert min(told["output local"], told["output DTensor"], told["stored"]) >= 5, told


def test_it_shrinks_to_one_module() -> None:
    # What a linear takes can be cut, or what it puts out: one of the two is of two elements.
    def simple(case: CaseSpec) -> bool:
        told = case.tensor_parallel
        return (
            told is not None
            and [part.module for part in told.modules] == [""]
            and case.model in (Linear(out=1, bias=False), Linear(out=2, bias=False))
            and len(case.program) <= 3
        )

    shrinks_to(simple, cases(apis=("fsdp2",)), cut)


def test_a_pair_shrinks_to_two_linears() -> None:
    def pair(case: CaseSpec) -> bool:
        told = case.tensor_parallel
        return told is not None and any(part.into is not None for part in told.modules)

    def simple(case: CaseSpec) -> bool:
        told = case.tensor_parallel
        return told is not None and len(told.modules) == 1 and len(case.plan.units) == 1

    shrinks_to(simple, cases(apis=("fsdp2",)), pair, start=1)


def test_rows_handed_on_shrink_to_two_modules() -> None:
    def handed(case: CaseSpec) -> bool:
        return features(case).get("sequence_parallel") == "handed on"

    def simple(case: CaseSpec) -> bool:
        told = case.tensor_parallel
        return (
            told is not None
            and len(told.modules) == 2
            and told.use_local_output
            and told.sequence_dim == 0
            and len(case.plan.units) == 1
        )

    shrinks_to(simple, cases(apis=("fsdp2",)), handed, start=1)


def test_it_shrinks_away() -> None:
    case = minimal(cases(apis=("fsdp2",), world_sizes=(4,)), lambda case: case.world_size == 4)
    assert not cut(case)
