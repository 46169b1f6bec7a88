"""The drawing of a case, word for word."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from fsdpfuzz.case import (
    DIMENSIONS,
    Backward,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Unit,
    Op,
    Step,
    ZeroGrad,
    anatomy,
    is_sound,
    lower,
    variants,
)
from fsdpfuzz.case.loss import LossDimension
from fsdpfuzz.show import ModuleSketch, _draw, draw, program_lines, sketch
from fsdpfuzz.show._words import unit_words
from fsdpfuzz.strategies import cases
from tests.unit.show.samples import REFUSED, RICH, SMALL

DRAWN_SMALL = """\
model sequential 3→1  [unit]
├── 0 linear 3→2  [checkpoint_wrapper reentrant around the unit]  [unit]  weight 2×3 (frozen)
└── 1 linear 2→1  weight 1×2
program    (forward · backward · step) ×3
inputs     1×3
optimizer  sgd, lr 0.05, momentum 0.9
sharding   fsdp2, 2 units
ranks      2
digest     decad9a0cd5a7408, seed 0
"""

DRAWN_RICH = """\
model sequential  [unit backward_prefetch=None, ignores 2]
├── 0 embedding tokens→6  weight 12×6 (tied to 6.weight)
├── 1 residual
│   └── body sequential  [checkpoint reentrant around the unit]  [unit NO_SHARD]
│       ├── 0 norm 6  weight 6 (frozen), bias 6
│       ├── 1 linear 6  weight 6×6, bias 6 (not in the optimizer)
│       └── 2 activation tanh
├── 2 repeat 3 times, again under no_grad: first_child
│   └── body sequential
│       ├── 0 linear 6  weight 6×6 (in no unit), bias 6 (in no unit)
│       └── 1 gain 6  gain scalar (in no unit)
├── 3 branches sum, side input  [offload_wrapper]
│   ├── branches.0 sided
│   │   └── inner lora 6 rank 2
│   │       ├── base linear 6  weight 6×6 (frozen), bias 6
│   │       ├── down linear 6→2  weight 2×6
│   │       └── up linear 2→6  weight 6×2
│   └── branches.1 sided
│       └── inner idle 6
│           └── idle linear 6  weight 6×6 (unused), bias 6 (unused)
├── 4 encoder layer 2 heads, causal  [unit SHARD_GRAD_OP, cpu_offload, precision(param bfloat16,
│   reduce float32)]  [checkpoint_wrapper inside the unit]
│   ├── layer.self_attn.in_proj_weight 18×6
│   ├── layer.self_attn.in_proj_bias 18
│   ├── layer.self_attn.out_proj.weight 6×6
│   ├── layer.self_attn.out_proj.bias 6
│   ├── layer.linear1.weight 4×6
│   ├── layer.linear1.bias 4
│   ├── layer.linear2.weight 6×4
│   ├── layer.linear2.bias 6
│   ├── layer.norm1.weight 6
│   ├── layer.norm1.bias 6
│   ├── layer.norm2.weight 6
│   └── layer.norm2.bias 6
├── 5 buffered not persistent, updates  buffer scale, calls
└── 6 linear 6→12  weight 12×6 (tied to 0.weight)
program    state_dict full rank 0 only to CPU · (forward no_sync · backward) ×3 · forward · \
backward · step
           (zero_grad · forward · backward · step) ×2
           eval mode · forward no_grad
inputs     tokens 2×5
optimizer  adamw, lr 0.01, eps 0.0001, no foreach
sharding   fsdp1, CustomPolicy, 3 units, all use_orig_params
ranks      4
loss       sum of the output
debug      DETAIL
variant    flat: fsdp1, wrapped one by one, 1 unit: root; checkpoints none
digest     544f3991bad95df0, seed 7
"""

DRAWN_REFUSED = (
    """\
model sequential  [unit]
├── 0 linear 4  [unit]  weight 4×4, bias 4 (frozen)
└── 1 switch one of 2
    ├── branches.0 linear 4  weight 4×4, bias 4
    └── branches.1 sequential
program    forward of 0 · backward · flip 1 on rank 1 · unfreeze 0.weight, 0.bias · """
    """forward · backward
inputs     2×3×4, requires grad
optimizer  none
sharding   fsdp1, wrapped one by one, 2 units
ranks      2
digest     3b25ae2a62d667ee, seed 0
refused    use_orig_params=False needs all parameters of a unit frozen or none \
(fsdp1_mixed_requires_grad)
"""
)


@pytest.mark.parametrize(
    ("case", "drawn"), [(SMALL, DRAWN_SMALL), (RICH, DRAWN_RICH), (REFUSED, DRAWN_REFUSED)]
)
def test_drawings(case: CaseSpec, drawn: str) -> None:
    assert draw(case) == drawn


@pytest.mark.parametrize("case", [SMALL, RICH, REFUSED])
def test_a_case_that_does_something_else_looks_different(case: CaseSpec) -> None:
    def seen(case: CaseSpec) -> str:
        return draw(case).partition("\ndigest ")[0]

    plainer = [s.case for d in DIMENSIONS for s in d.simpler(case) if is_sound(s.case)]
    others = [other for other in plainer if runs(other) != runs(case)]
    assert len(others) > 5
    assert [other for other in others if seen(other) == seen(case)] == []


def runs(case: CaseSpec) -> list[object]:
    """All that is run; a policy gives units some of the root's options whatever is their own."""
    return [lower(anatomy(run)) for run in variants(case).values()]


class Weather(LossDimension):
    """A dimension that the drawing has never heard of."""

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        yield "weather", "fair"


def test_a_new_dimension_is_drawn_before_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_draw, "DIMENSIONS", (Weather(), *DIMENSIONS))
    expected = DRAWN_SMALL.replace("\ndigest ", "\nweather    fair\ndigest ")
    assert draw(SMALL) == expected


@pytest.mark.parametrize(
    "variables",
    [
        {"COLUMNS": "20", "TERM": "dumb"},
        {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        {"NO_COLOR": "1", "JUPYTER_COLUMNS": "30"},
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
    ],
)
def test_the_surroundings_do_not_change_a_drawing(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert draw(SMALL) == DRAWN_SMALL


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(case=cases(world_sizes=(2, 3)))
def test_every_mark_is_drawn(case: CaseSpec) -> None:
    a = anatomy(case)
    found = list(_all(sketch(case)))
    marks = [mark.kind for module in found for mark in module.marks]
    parts = [part for module in found for part in module.parameters]
    inner = [mark.kind for part in parts for mark in part.marks]
    assert len(found) == len(a.places)
    assert marks.count("unit") == len(a.units)
    assert marks.count("checkpoint") == len(case.checkpoints)
    assert len(parts) == len(a.parameters)
    assert inner.count("frozen") == len(a.frozen)
    assert inner.count("unused") == sum(not parameter.used for parameter in a.parameters)
    assert inner.count("tied") == len({*a.source, *a.source.values()})
    text = draw(case)
    assert text.count("(frozen") + text.count(", frozen") >= min(1, len(a.frozen))
    assert all(line == line.rstrip() for line in text.splitlines())


def _all(module: ModuleSketch) -> list[ModuleSketch]:
    return [module, *(inner for child in module.children for inner in _all(child))]


F, B, S, Z, N = Forward(), Backward(), Step(), ZeroGrad(), Forward(sync=False)


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ((F, B, S), ("forward · backward · step",)),
        ((F, B, S) * 3, ("(forward · backward · step) ×3",)),
        ((F, F, B, S), ("forward ×2 · backward · step",)),
        ((S, S), ("step ×2",)),
        (
            (F, B, S, Z, F, B, S),
            ("forward · backward · step", "zero_grad · forward · backward · step"),
        ),
        (
            (F, B, S, N, B, S) * 2,
            ("forward · backward · step  ┐", "forward no_sync · backward · step  ┘ ×2"),
        ),
        ((N, B, N, B, F, B), ("(forward no_sync · backward) ×2 · forward · backward",)),
        ((ZeroGrad(set_to_none=False),), ("zero_grad to 0",)),
        ((), ()),
    ],
)
def test_programs(program: tuple[Op, ...], lines: tuple[str, ...]) -> None:
    assert program_lines(program) == lines


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        (Fsdp1Unit(path="0"), "unit"),
        (Fsdp1Unit(path="0", use_orig_params=True), "unit use_orig_params"),
        (Fsdp1Unit(path="0", limit_all_gathers=False), "unit limit_all_gathers=False"),
        (Fsdp1Unit(path="0", backward_prefetch="BACKWARD_POST"), "unit BACKWARD_POST"),
        (Fsdp2Unit(path="0", reshard_after_forward=True), "unit reshard_after_forward=True"),
        (Fsdp2Unit(path="0", reshard_after_forward=2), "unit reshard_after_forward=2"),
        (
            Fsdp2Unit(path="0", ignored=tuple("abcdefgh")),
            "unit ignores a, b, c, d, e, f and 2 more",
        ),
    ],
)
def test_units(unit: Fsdp1Unit | Fsdp2Unit, words: str) -> None:
    assert unit_words(unit) == words


def test_what_units_have_in_common_is_said_once() -> None:
    alike = Fsdp1Plan(
        units=tuple(
            Fsdp1Unit(path=p, sharding="NO_SHARD", forward_prefetch=p == "0") for p in ("", "0")
        )
    )
    text = draw(replace(SMALL, plan=alike))
    assert text.count("NO_SHARD") == 1
    assert "sharding   fsdp1, wrapped one by one, 2 units, both NO_SHARD" in text
    assert (
        "0 linear 3→2  [checkpoint_wrapper reentrant around the unit]  [unit forward_prefetch]"
        in text
    )
