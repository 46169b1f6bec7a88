"""Some parameters of fsdp2 say what is gathered of them, beside all that units can be told."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, Linear
from fsdpfuzz.case.extensions import Extension
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import everything, features_of, large


def test_they_are_drawn_in_each_way_and_beside_each_option() -> None:
    found = [case for case in large("parity") if case.api == "fsdp2"]
    told = [features_of(case) for case in found if case.extensions]
    assert 0.04 < len(told) / len(found) < 0.15
    counts = Counter(item["extensions"] for item in told)
    assert min(counts[way] for way in ("split", "wider", "mixed")) >= 10, counts
    for name in ("precision", "cpu_offload", "ignored", "state_dict", "checkpoint"):
        assert len({item[name] for item in told}) > 1, name
    # One in a hundred of these begins on the meta device: too few for one focus.
    begin = {features_of(case)["meta_init"] for case in everything() if case.extensions}
    assert len(begin) > 1


def test_they_shrink_to_one_in_two_parts_and_to_none() -> None:
    strategy = cases(apis=("fsdp2",))

    def simple(case: CaseSpec) -> bool:
        one = case.extensions == (Extension(parameter="weight"),)
        return one and case.model == Linear(out=1, bias=False) and len(case.program) == 3

    shrinks_to(simple, strategy, lambda case: bool(case.extensions))
    assert minimal(strategy).extensions == ()
