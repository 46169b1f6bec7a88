"""Policies differ between units where what one puts out fits the next."""

from __future__ import annotations

from fsdpfuzz.case import CaseSpec, Precision, within
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal
from tests.unit.strategies.sample import sample


def policies(case: CaseSpec) -> dict[str, Precision | None]:
    return {unit.path: unit.precision for unit in case.plan.units}


def drawn(api: str = "fsdp2") -> list[dict[str, Precision | None]]:
    found = [policies(c) for focus in FOCUSES for c in sample(focus).cases if c.api == api]
    return [given for given in found if any(given.values())]


def test_some_units_compute_in_low_precision_among_others_that_do_not() -> None:
    mixed = [given for given in drawn() if None in given.values()]
    assert len(mixed) >= 20
    for given in mixed:
        low = [path for path, precision in given.items() if precision is not None]
        assert all(given[path].output == "float32" for path in low)  # type: ignore[union-attr]
        assert not any(within(path, unit) for unit in low for path in given if path != unit)


def test_else_only_a_root_has_another_output_and_it_casts_its_inputs() -> None:
    alike = [given for given in drawn() if None not in given.values()]
    outputs, uncast = set(), 0
    for given in alike:
        for path, precision in given.items():
            assert precision is not None
            if path:
                assert precision.output in (None, "float32")
                uncast += precision.cast_inputs is False
            else:
                outputs.add(precision.output)
                assert precision.cast_inputs is None
    assert outputs == {None, "float32", "bfloat16", "float16"}
    assert uncast >= 10


def test_fsdp1_has_its_switches_in_all_units_alike() -> None:
    kept = cast = uncast = 0
    for given in drawn("fsdp1"):
        (precision,) = set(given.values())
        assert precision is not None
        kept += precision.keep_low_grads
        cast += precision.cast_inputs is True
        uncast += not precision.cast_root_inputs
        assert precision.cast_inputs or precision.cast_root_inputs
    assert min(kept, cast - uncast, uncast) >= 10


def test_they_shrink_to_one_policy_for_all() -> None:
    found = minimal(cases(apis=("fsdp2",)), lambda case: any(policies(case).values()))
    assert policies(found) == {"": Precision(param="bfloat16")}
