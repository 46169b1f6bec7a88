"""Meshes with names are drawn with one axis of shards and with two, and shrink away."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import NEWER, CaseSpec, anatomy, features, foreseen_rejections, is_sound
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import drawn

OFFERED = tuple(NEWER)


def two_axes(case: CaseSpec) -> bool:
    return case.spmd_mesh is not None and case.spmd_mesh.inner is not None


def test_it_is_drawn_with_what_goes_with_it() -> None:
    told = Counter[str]()
    for case in drawn(cases(apis=("fsdp2",), world_sizes=(2, 4), offers=OFFERED), 2500).cases:
        if case.spmd_mesh is None:
            continue
        assert is_sound(case)
        has = features(case)
        told[has["spmd_mesh"]] += 1
        told["two axes of several"] += (case.spmd_mesh.inner or 1) > 1
        told["replicas"] += case.mesh is not None
        told["parallelised"] += case.tensor_parallel is not None
        told["refused"] += bool(foreseen_rejections(anatomy(case)))
        told["recomputed"] += any(c.recomputes for c in case.checkpoints)
        told["saved"] += has["state_dict"] != "no"
        told["frozen"] += bool(case.frozen)
    named = told["one axis"] + told["two axes"]
    assert named >= 50, told
    assert min(told["one axis"], told["two axes"]) >= 15, told
    assert min(told[name] for name in ("two axes of several", "replicas", "saved")) >= 3, told
    assert min(told["parallelised"], told["recomputed"], told["frozen"]) >= 3, told
    assert told["refused"] <= named / 10, told


def test_two_axes_shrink_to_the_smallest_case_but_for_them() -> None:
    strategy = cases(apis=("fsdp2",), offers=OFFERED)
    plain = features(minimal(strategy))

    def simple(case: CaseSpec) -> bool:
        found = features(case)
        different = {name for name, value in found.items() if value != plain[name]}
        return two_axes(case) and different <= {"spmd_mesh", "optimizer"}

    shrinks_to(simple, strategy, two_axes)
