"""What is known is evaluated, and what cannot be reached is gone."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fsdpfuzz.repro.fold import Fold, constant, plain

EXPRESSIONS = {
    "2 + 3 * 4": "14",
    "i + 2 + 5": "i + 7",
    "seed + 0": "seed",
    "rounding + 0.0": "rounding",
    "7 + i": "i + 7",
    "'a' + 'b'": "'ab'",
    "name + 'b'": "name + 'b'",
    "-(-3)": "3",
    "not True": "False",
    "not x is None": "x is not None",
    "not not x": "not not x",
    "a if not not x else b": "a if x else b",
    "not not not x": "not x",
    "x in ()": "False",
    "x not in []": "True",
    "3 in (1, 2)": "False",
    "x in (1, 2)": "x in (1, 2)",
    "True and x": "x",
    "False and x": "False",
    "x and False and y": "x and False",
    "x or True": "x or True",
    "x and True": "x and True",
    "a if x and True else b": "a if x else b",
    "a if x or y or None else b": "a if x or y else b",
    "[x for x in y if x and True]": "[x for x in y if x]",
    "None or x": "x",
    "a if True else b": "a",
    "a if x else b": "a if x else b",
    "a.to(c) if a.is_floating_point() else a.to(c)": "a.to(c)",
    "a if f(x) else a": "a if f(x) else a",
    "f'{3}{x}'": "f'3{x}'",
    "f'{3}'": "'3'",
    "f'{x:.3g}'": "f'{x:.3g}'",
    "tensor[...]": "tensor",
    "('a', 'b')[1]": "'b'",
    "names[1]": "names[1]",
    "StateDictType['FULL']": "StateDictType.FULL",
    "state['FULL']": "state['FULL']",
    "zip(a, b, strict=True)": "zip(a, b)",
    "tuple(x for x in y)": "tuple([x for x in y])",
    "[x for x in y if True]": "[x for x in y]",
    "[x for x in y if x]": "[x for x in y if x]",
    "getattr(x, 'y')": "x.y",
    "getattr(x, '0')": "x[0]",
    "getattr(x, 'y', None)": "getattr(x, 'y', None)",
    "len((1, 2))": "2",
    "len(x)": "len(x)",
    "str(2)": "'2'",
    "sorted((2, 1))": "[1, 2]",
    "'a.b'.rpartition('.')": "('a', '.', 'b')",
    "'a'.join(x)": "'a'.join(x)",
    "{}.get('a', b)": "b",
}
STATEMENTS = {
    "if True:\n    a()\nelse:\n    b()": "a()",
    "if x and True:\n    a()": "if x:\n    a()",
    "if 1 > 2:\n    a()\nelse:\n    b()": "b()",
    "if 1 > 2:\n    a()": "",
    "if x:\n    a()": "if x:\n    a()",
    "if x:\n    if False:\n        a()\nelse:\n    b()": "if not x:\n    b()",
    "if x:\n    pass": "",
    "return 1\na()": "return 1",
    "if x:\n    return 1\nelse:\n    return 2\na()": "if x:\n    return 1\nelse:\n    return 2",
    "if x:\n    return\na()": "if not x:\n    a()",
    "for i in ():\n    a(i)": "",
    "for i in (y,):\n    a(i)": "a(y)",
    "for i in (y, z):\n    a(i)": "for i in (y, z):\n    a(i)",
    "with x:\n    pass": "with x:\n    pass",
    "def f():\n    'text'": "def f():\n    pass",
}


def folded(text: str) -> str:
    made = Fold().visit(ast.parse(text, mode="eval").body)
    return ast.unparse(ast.fix_missing_locations(made))


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expressions(text: str) -> None:
    assert folded(text) == EXPRESSIONS[text]


@pytest.mark.parametrize("text", STATEMENTS)
def test_statements(text: str) -> None:
    made = ast.Module(plain(ast.parse(f"def _():\n{_indented(text)}").body[0].body), [])  # type: ignore[attr-defined]
    assert ast.unparse(ast.fix_missing_locations(made)) == STATEMENTS[text]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), st.lists))
def test_a_literal_is_its_value(value: Any) -> None:
    made = constant(value)
    assert made is not None
    assert ast.literal_eval(ast.unparse(made)) == value


LEAVES = st.sampled_from(["x", "y", "0", "2", "True", "False", "None", "()", "(1, 2)"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({' '.join(t)})"),
        inner.map(lambda t: f"(not {t})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        st.tuples(inner, st.sampled_from(["==", "is", "is not"]), inner).map(
            lambda t: f"({' '.join(t)})"
        ),
    )


@pytest.mark.filterwarnings("ignore:.*with .*literal")
@settings(deadline=None)
@given(st.recursive(LEAVES, _grown, max_leaves=8), *[st.sampled_from([0, 2, None, True])] * 2)
@example("(x == (not (not x)))", 2, 0)
def test_folding_keeps_the_truth(text: str, x: object, y: object) -> None:
    names = {"x": x, "y": y}
    assert bool(eval(folded(text), names)) == bool(eval(text, names))
