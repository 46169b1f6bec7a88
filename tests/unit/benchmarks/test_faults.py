"""The faults of the sensitivity benchmark fit the torch that is installed, and change it."""

from __future__ import annotations

import argparse
import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults import FAULTS, Edit, EditError, Fault, changed_code, inject, injections
from benchmarks.many_injections import Bench
from benchmarks.sensitivity import broken_bounds, ranks_for, summed_up
from tests.fitting import skip_unless_it_fits

HERE = f"{__name__}:"


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fits_this_torch(name: str) -> None:
    skip_unless_it_fits(name)
    changes = changed_code(FAULTS[name])
    assert changes
    for function, code in changes:
        old = function.__code__
        assert (code.co_name, code.co_filename) == (old.co_name, old.co_filename)
        assert code.co_freevars == old.co_freevars
        assert code.co_argcount == old.co_argcount
        assert code != old


def test_there_are_enough_of_all_sorts() -> None:
    assert len(FAULTS) >= 80
    assert sum(item.silent for item in FAULTS.values()) >= len(FAULTS) / 3
    assert len({item.says + item.api + item.area for item in FAULTS.values()}) == len(FAULTS)
    assert min(Counter(item.area for item in FAULTS.values()).values()) >= 3
    assert all(name.isidentifier() for name in FAULTS)


def test_an_injection_is_called_like_its_fault() -> None:
    assert callable(injections.fsdp1_no_shard_not_reduced)
    with pytest.raises(AttributeError, match="there is no fault 'nonsense'"):
        getattr(injections, "nonsense")  # noqa: B009 (an attribute that is not there)


class Base:
    def value(self) -> int:
        return 1


def doubled(function: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(function)
    def twice(*args: Any) -> int:
        return 2 * function(*args)

    return twice


class Derived(Base):
    @doubled
    def value(self) -> int:
        one = 1
        one = 1
        return super().value() + one

    @property
    def fixed(self) -> str:
        return "as it is"


def countdown(number: int) -> int:
    return countdown(number - 1) if number else 0


def test_a_function_that_calls_itself_still_does() -> None:
    code = countdown.__code__
    try:
        inject(fault(Edit(HERE + "countdown", "0", "7")))
        assert countdown(3) == 7
        assert countdown.__code__.co_name == "countdown"
    finally:
        countdown.__code__ = code


def fault(*edits: Edit) -> Fault:
    return Fault(id="f", says="", area="dcp", api="both", silent=True, spellings=(edits,))


@pytest.fixture
def put_back() -> Any:
    functions = [vars(Derived)["value"].__wrapped__, vars(Derived)["fixed"].fget]
    codes = [function.__code__ for function in functions]
    yield
    for function, code in zip(functions, codes, strict=True):
        function.__code__ = code


@pytest.mark.usefixtures("put_back")
def test_whoever_holds_the_function_runs_the_changed_code() -> None:
    held = Derived().value
    assert held() == 4
    where = HERE + "Derived.value"
    inject(fault(Edit(where, "super().value() + one", "super().value() - one + 7")))
    assert held() == 14
    inject(fault(Edit(where, "super().value() + one", "one")))  # closes over its class no longer
    assert held() == 2
    inject(fault(Edit(HERE + "Derived.fixed", "return 'as it is'", "return 'changed'")))
    assert Derived().fixed == "changed"


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (Edit(HERE + "Derived.value", "return 3", "pass"), "stands there 0 times, not 1"),
        (Edit(HERE + "Derived.value", "one = 1", "one = 2"), "stands there 2 times, not 1"),
        (Edit(HERE + "Derived.nothing", "one = 1", "one = 2"), "does not exist"),
        (Edit(HERE + "Derived", "one = 1", "one = 2"), "is no function"),
        (Edit(HERE + "Derived.fixed", "'as it is'", "'as' ' it is'"), "leaves the code as it is"),
    ],
)
def test_a_change_that_does_not_fit_is_an_error(edit: Edit, reason: str) -> None:
    with pytest.raises(EditError, match=reason):
        changed_code(fault(edit))


def test_one_of_several_equal_pieces_is_changed() -> None:
    edit = Edit(HERE + "Derived.value", "one = 1", "one = 2", which=2, among=2)
    ((_, code),) = changed_code(fault(edit))
    assert 2 in code.co_consts


def test_exactly_one_spelling_has_to_fit() -> None:
    one = Edit(HERE + "Derived.fixed", "'as it is'", "'changed'")
    two = Edit(HERE + "Derived.fixed", "'elsewhere'", "'changed'")
    item = Fault(
        id="f", says="", area="dcp", api="both", silent=True, spellings=((two,), (one,), (one,))
    )
    with pytest.raises(EditError, match="2 of its spellings fit"):
        changed_code(item)


def test_bounds() -> None:
    figures = {"hunted": 100, "share": 0.94, "examples": 31.0, "findings": 1.0, "large": ["f"]}
    assert len(broken_bounds(figures)) == 3
    assert not broken_bounds(figures | {"share": 0.95, "examples": 30.0, "large": []})
    assert ranks_for(FAULTS["fsdp2_smaller_mesh_ignored"]) == 4


def test_a_case_may_keep_the_steps_that_its_fault_takes(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "none.jsonl", argparse.Namespace(backend="gloo", seed=1, examples=400))
    faults = [
        FAULTS["fsdp1_order_warns_each_iteration"],
        FAULTS["fsdp1_frozen_unit_resharded_late"],
    ]
    for item in faults:
        bench.records[item.id, "hunt"] = {
            "status": "found", "settings": bench.settings, "script": True, "found_after": 1,
            "found_seconds": 1.0, "findings": 1, "modules": 1, "steps": 3, "operations": 9,
            "tries": 5, "id": item.id,
        }  # fmt: skip
    assert summed_up(faults, bench)["large"] == ["fsdp1_frozen_unit_resharded_late"]
    for item in faults:
        bench.records[item.id, "hunt"] |= {"modules": 4, "steps": 1}
    assert summed_up(faults, bench)["large"] == [item.id for item in faults]
