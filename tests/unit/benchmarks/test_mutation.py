"""Mutants are changes of one line each, and can all be injected."""

from __future__ import annotations

import ast

import pytest

from benchmarks.faults._edit import definition, function_at
from benchmarks.mutation import MODULES, _changes, _described, functions, inject
from benchmarks.mutation import __getattr__ as injection_named

MODULE = MODULES.index("torch.distributed.fsdp._fully_shard._fsdp_common")
WHERE = f"{MODULES[MODULE]}:_chunk_with_empty"


def test_each_mutant_is_another_text_of_the_statement_at_its_line() -> None:
    for where in functions(MODULES[MODULE]):
        start = definition(where).lineno
        for line, before, after in _described(where):
            assert line >= start
            assert before != after


def test_only_what_is_taken_out_is_said_to_be_gone() -> None:
    """Also of a statement so long that what differs is not among its first words."""
    far = 0
    for where in functions("torch.distributed.fsdp._flat_param"):
        passes = passes_in(definition(where))
        for index, (_, before, after) in enumerate(_described(where)):
            node = definition(where)
            next(c for i, (_, c) in enumerate(_changes(node)) if i == index)()
            assert (after == "(gone)") == (passes_in(node) > passes), after
            assert len(before) <= 160
            far += before.startswith("...")
    assert far > 0


def passes_in(function: ast.FunctionDef) -> int:
    return sum(isinstance(node, ast.Pass) for node in ast.walk(function))


def test_all_of_a_module_can_be_injected() -> None:
    injected = 0
    for where in functions(MODULES[MODULE]):
        function = function_at(where)
        code = function.__code__
        for index in range(sum(1 for _ in _changes(definition(where)))):
            try:
                inject(where, index)
                assert function.__code__ != code
            finally:
                function.__code__ = code
            injected += 1
    assert injected > 20


def test_a_mutant_is_injected_by_its_id() -> None:
    function = function_at(WHERE)
    code = function.__code__
    number = functions(MODULES[MODULE]).index(WHERE)
    try:
        injection_named(f"m{MODULE}_{number}_0")(None)
        assert function.__code__ != code
    finally:
        function.__code__ = code
    with pytest.raises(AttributeError):
        injection_named("nonsense")
