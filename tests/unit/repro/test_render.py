"""A script is sound Python, short, and imports torch and the standard library alone."""

from __future__ import annotations

import ast
import builtins
import sys

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fsdpfuzz.loop import PROPERTIES, Scope
from fsdpfuzz.repro import Ablation, Context, issue_text, render
from fsdpfuzz.seeds import SEEDS, Seed
from fsdpfuzz.spec import CaseSpec, Forward
from fsdpfuzz.verdict import Finding
from tests.unit.repro.examples import every_kind, finding, single_unit

CONTEXT = Context(
    torch="2.13.0",
    backend="gloo",
    environment=("Python 3.11.9",),
    ablation=Ablation(needed=("use_orig_params=True",), absent=("with FSDP2", "at world size 3")),
)
KINDS = [(api, kind) for api in ("fsdp1", "fsdp2") for kind in every_kind(api)]
MAX_LINES = 60
DRAWN = st.one_of([item.strategy(Scope()) for item in PROPERTIES.values()])


def names_of(tree: ast.Module) -> tuple[set[str], set[str]]:
    """What is bound somewhere, and what is read somewhere."""
    bound = {"__name__"} | set(dir(builtins))
    read = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
            case _:
                pass
    return bound, read


def assert_sound(text: str) -> None:
    compile(text, "repro.py", "exec")
    tree = ast.parse(text)
    bound, read = names_of(tree)
    assert read <= bound, read - bound
    for node in ast.walk(tree):
        modules = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        for module in modules:
            top = module.partition(".")[0]
            assert top == "torch" or top in sys.stdlib_module_names
    assert ast.get_docstring(tree)


@pytest.mark.parametrize(("api", "kind"), KINDS)
def test_a_single_unit_finding_is_sound_and_short(api: str, kind: str) -> None:
    case, found = every_kind(api)[kind]
    text = render(case, found, CONTEXT)
    assert_sound(text)
    assert len(text.splitlines()) <= MAX_LINES, text
    assert max(map(len, text.splitlines())) <= 120
    assert "fails only with use_orig_params=True" in " ".join(text.split())
    assert found.invariant in text


@pytest.mark.parametrize("seed", SEEDS[::3], ids=lambda seed: seed.name)
def test_every_seed_can_be_written(seed: Seed) -> None:
    assert_sound(render(seed.case, None, CONTEXT))
    assert_sound(render(seed.case, None, CONTEXT, print_losses=True))


@settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(case=DRAWN, kind=st.sampled_from(["loss_parity", "grad_parity", "param_parity"]))
def test_whatever_is_drawn_can_be_written(case: CaseSpec, kind: str) -> None:
    assume(any(isinstance(op, Forward) for op in case.program))
    odd = finding(kind, where=f"{case.api}:other", message="1.5, but should be 0.5 [somewhere]")
    assert_sound(render(case, odd, CONTEXT))


HOSTILE = 'x=1\\", """; import os #\n\x1b[2J\u202e "" \\N{BULLET} ```\n# heading'


@pytest.mark.parametrize("symptom", ["mismatch", "crash", "hang", "rank_death"])
def test_nothing_breaks_out_of_the_docstring(symptom: str) -> None:
    odd = Finding(
        invariant="grad_parity",
        symptom=symptom,  # type: ignore[arg-type]
        where=f'fsdp2:other"""{HOSTILE}',
        message=HOSTILE,
        observed=HOSTILE,
        expected=HOSTILE,
    )
    context = Context(torch=HOSTILE, backend=HOSTILE, environment=(HOSTILE,), rate=HOSTILE)
    text = render(single_unit("fsdp2"), odd, context)
    assert_sound(text)
    assert "\x1b" not in text
    body = ast.parse(text).body
    assert not any(isinstance(node, ast.Import) and node.names[0].name == "os" for node in body[:1])
    assert ast.dump(body[0]).count("Constant") == 1


def test_issue_text_fences_hold_whatever_the_message_says() -> None:
    case = single_unit("fsdp2")
    odd = finding("no_crash", "crash", "fsdp2:RuntimeError", f"RuntimeError: {HOSTILE}")
    script = render(case, odd, CONTEXT)
    text = issue_text(case, odd, CONTEXT, script)
    lines = text.splitlines()
    fences = [line for line in lines if line.startswith("```")]
    assert len(fences) % 2 == 0
    opening = next(i for i, line in enumerate(lines) if line.endswith("python"))
    closing = lines.index(lines[opening].removesuffix("python"), opening + 1)
    assert "\n".join(lines[opening + 1 : closing]) + "\n" == script
    assert lines[0].startswith("# FSDP2 raises")
    assert "use_orig_params=True" in lines[0]


def test_the_header_says_what_a_report_needs() -> None:
    case, found = every_kind("fsdp1")["grad"]
    text = " ".join(render(case, found, CONTEXT).split())
    for part in (
        "torchrun --nproc-per-node 2 repro.py",
        "torch 2.13.0",
        "gloo",
        "2 ranks",
        "1.5 [0.weight, rank 0, program[1]]",
        "0.5 within 1e-05 (assert_close by default: 1.1e-05), in float64 without FSDP",
        "equal seeds on all ranks",
    ):
        assert part in text, part


def test_a_flaky_finding_says_how_often() -> None:
    case, found = every_kind("fsdp2")["grad"]
    assert "failed 3 of 10 runs" in render(case, found, Context(rate="3 of 10"))
