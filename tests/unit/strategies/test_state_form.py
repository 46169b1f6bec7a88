"""What state dicts are drawn with: of fsdp1 a form for those that follow, of fsdp2 no frozen."""

from __future__ import annotations

from fsdpfuzz.case import CaseSpec, StateDict, anatomy, is_sound
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import shrinks_to
from tests.unit.strategies.sample import sample


def taken(case: CaseSpec, *given: str) -> list[StateDict]:
    return [op for op in case.program if isinstance(op, StateDict) and op.given in given]


def test_some_are_set_and_some_of_these_kept() -> None:
    found = [case for case in sample("state_dict").cases if case.api == "fsdp1"]
    for given in ("set", "kept"):
        having = [case for case in found if taken(case, given)]
        assert 0.05 < len(having) / len(found) < 0.45
        assert all(map(is_sound, having))
        assert {op.form for case in having for op in taken(case, given)} > {"full", "sharded"}
    assert not any(taken(case, "set") for case in sample("state_dict").cases if case.api == "fsdp2")


def test_one_that_is_kept_shrinks_to_a_full_one() -> None:
    strategy = cases(focus="state_dict", apis=("fsdp1",))
    kept = StateDict(given="kept")
    shrinks_to(lambda c: taken(c, "kept") == [kept], strategy, lambda c: taken(c, "kept"))


def test_some_are_without_what_is_frozen() -> None:
    found = [case for case in sample("state_dict").cases if case.api == "fsdp2" and case.frozen]
    taken_so = [op for case in found for op in taken(case, "context") if op.ignore_frozen]
    assert 0.1 < len(taken_so) / len(found) < 0.6
    assert {op.form for op in taken_so} == {"full", "sharded"}


def test_one_without_what_is_frozen_shrinks_to_itself_alone() -> None:
    def having(case: CaseSpec) -> list[StateDict]:
        return [op for op in taken(case, "context") if op.ignore_frozen]

    less = StateDict(ignore_frozen=True)
    strategy = cases(focus="state_dict", apis=("fsdp2",))
    shrinks_to(lambda c: c.program == (less,) and len(c.frozen) == 1, strategy, having, start=5)


def of_one(case: CaseSpec) -> list[StateDict]:
    return [op for op in taken(case, "context") if op.submodule]


def test_some_are_of_one_module() -> None:
    found = [case for case in sample("state_dict").cases if case.api == "fsdp2"]
    having = [case for case in found if of_one(case)]
    assert 0.05 < len(having) / len(found) < 0.4
    assert {op.prefix for case in having for op in of_one(case)} == {"kept", "dropped"}
    assert {op.form for case in having for op in of_one(case)} == {"full", "sharded"}
    assert any(op.ignore_frozen for case in having for op in of_one(case))
    assert not any(of_one(case) for case in sample("state_dict").cases if case.api == "fsdp1")


def test_one_of_a_module_shrinks_to_itself_alone() -> None:
    def having(case: CaseSpec) -> list[StateDict]:
        return [op for op in of_one(case) if op.prefix == "dropped"]

    def plainest(case: CaseSpec) -> bool:
        (asked,) = having(case)[:1]
        alone = StateDict(submodule=asked.submodule, prefix="dropped")
        return case.program == (alone,) and len(anatomy(case).distinct) == 1

    shrinks_to(plainest, cases(focus="state_dict", apis=("fsdp2",)), having)


def twice(case: CaseSpec) -> list[StateDict]:
    return [op for op in case.program if isinstance(op, StateDict) and op.again]


def test_some_are_loaded_twice() -> None:
    for api in ("fsdp1", "fsdp2"):
        found = [case for case in sample("state_dict").cases if case.api == api]
        having = [case for case in found if twice(case)]
        assert 0.03 < len(having) / len(found) < 0.5
        assert {op.form for case in having for op in twice(case)} >= {"full", "sharded"}
        assert any(op.on_rank0(anatomy(case)) for case in having for op in twice(case))
        assert any(op.submodule for case in having for op in twice(case)) == (api == "fsdp2")


def test_one_that_is_loaded_twice_shrinks_to_itself_alone() -> None:
    def plainest(case: CaseSpec) -> bool:
        return case.program == (StateDict(again=True),)

    for api, start in (("fsdp1", 1), ("fsdp2", 2)):
        shrinks_to(plainest, cases(focus="state_dict", apis=(api,)), twice, start=start)
