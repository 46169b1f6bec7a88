"""A dimension is known to few source files: adding one is a file a room, no tour of the house."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from fsdpfuzz.case import DIMENSIONS, KINDS, OPERATIONS, OPTIONS
from tests.meta.imports import sources

MOST = 6
OWN_WORDS = ("case", "expect", "invariants", "strategies")
"""Rooms where the name of a kind, as a text, stands for the kind. Elsewhere ``"forward"`` is also
the stage at which a rank is, and ``"linear"`` an attribute."""
RESTATED = "seeds"
"""Cases that restate documents: data, which names what the documents have."""

SPREAD = {
    "forward": (26, "FSDP's promises go from one forward to the next: order, reshards, offloads"),
    "backward": (10, "gradients are there, and units whole or sharded, from a backward on"),
    "step": (7, "parameters change here and nowhere else: rounding and baselines count steps"),
    "state_dict": (17, "saved, loaded and compared apart from training, by each API in its way"),
    "zero_grad": (8, "what a rank may hold of gradients hangs on it"),
    "requires_grad": (8, "whether a unit has gradients can change in mid-program"),
    "linear": (14, "what everything else is reduced to, made of, and drawn around"),
    "sequential": (12, "what chains are made of, in which pairs of linears are cut over ranks"),
    "embedding": (9, "the one kind that takes tokens; inputs depend on it"),
    "switch": (11, "ranks part in it; see flip"),
    "repeat": (9, "one module called several times: each room that counts calls"),
    "branches": (11, "the only kind whose children are not called in a row"),
    "transformer": (8, "brings along inner modules that can be wrapped by class"),
    "lora": (8, "adapters are what is trained where all else is frozen"),
    "norm": (7, "encoder layers hold some"),
    "encoder_layer": (7, "attention, which variants may round otherwise"),
    "residual": (7, "adds up, in which variants round otherwise"),
    "sharding": (11, "how a unit is sharded decides on bytes, reshards and state dicts"),
    "cpu_offload": (7, "needs a GPU, moves gradients, and state dicts have a flag of its name"),
    "ignored": (8, "modules without a unit, which drawings show; parameters go another way"),
    "clip": (7, "a target may have its own, and a program in words"),
    "optimizer": (8, "a target may have its own"),
    "precision": (8, "decides on bytes, and on what the plain model is measured in"),
    "loss": (10, "is also a quantity that is compared, and a function of a target"),
}
"""Dimensions in more source files than that: in how many at most, and why."""


@dataclass(frozen=True)
class Named:
    """A dimension by its name and the name of its class."""

    name: str
    kind: str
    is_field: bool = False
    """Whether units have a field of its name."""


def every() -> list[Named]:
    return [
        *(Named(name, kind.__name__) for name, kind in OPERATIONS.items()),
        *(Named(name, kind.__name__) for name, kind in KINDS.items()),
        *(Named(option.name, type(option).__name__, is_field=True) for option in OPTIONS),
        *(Named(d.name, type(d).__name__) for d in DIMENSIONS if d not in OPTIONS),
    ]


@cache
def words(path: Path) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Identifiers, fields that are read or given, and texts of a source file."""
    identifiers, fields, texts = set(), set(), set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        match node:
            case ast.Name(id=name) | ast.alias(name=name) | ast.ClassDef(name=name):
                identifiers.add(name)
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                fields.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                fields.add(name)
            case ast.Constant(value=str(text)):
                texts.add(text)
            case _:
                pass
    return frozenset(identifiers), frozenset(fields), frozenset(texts)


def naming(dimension: Named, modules: dict[str, Path]) -> list[str]:
    """The source files that name a dimension: its class, its field, its name, or by their own."""
    found = []
    for module, path in modules.items():
        room = module.split(".")[1] if "." in module else ""
        if room == RESTATED:
            continue
        identifiers, fields, texts = words(path)
        if (
            dimension.kind in identifiers
            or (dimension.is_field and dimension.name in fields | texts)
            or (room in OWN_WORDS and dimension.name in texts)
            or module.rpartition(".")[2] == dimension.name
        ):
            found.append(module)
    return found


@pytest.mark.parametrize("dimension", every(), ids=lambda dimension: dimension.name)
def test_a_dimension_is_named_in_few_files(dimension: Named) -> None:
    found = naming(dimension, sources())
    most, why = SPREAD.get(dimension.name, (MOST, ""))
    assert len(found) >= 2, "it is registered somewhere, and drawn"
    assert len(found) <= most, f"{dimension.name} ({why}) is named in {found}"


def test_no_exception_is_for_nothing() -> None:
    modules = sources()
    spread = {dimension.name: len(naming(dimension, modules)) for dimension in every()}
    assert set(SPREAD) <= set(spread)
    assert {name: spread[name] for name in SPREAD if spread[name] <= MOST} == {}
    loose = {name: spread[name] for name, (most, _) in SPREAD.items() if spread[name] < most}
    assert loose == {}, "fewer files name these by now: lower their ceilings"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("fsdpfuzz/expect/x.py", "from fsdpfuzz.case import Clip"),
        ("fsdpfuzz/loop/_x.py", "import fsdpfuzz.case as c\nc = [Clip() for _ in ()]"),
        ("fsdpfuzz/expect/x.py", "wanted = op.kind() == 'clip'"),
        ("fsdpfuzz/show/_x.py", "norm = unit.clip"),
        ("fsdpfuzz/show/_x.py", "unit = Unit(clip=3)"),
        ("strategies/clip.py", ""),
    ],
)
def test_a_file_that_names_a_dimension_is_seen(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert len(naming(Named("clip", "Clip", is_field=True), sources(tmp_path))) == 1


def test_other_words_are_let_through(tmp_path: Path) -> None:
    folder = tmp_path / "fsdpfuzz" / "loop"
    folder.mkdir(parents=True)
    (folder / "_x.py").write_text('"""Clip."""\n# Clip\nstage, clipped = "clip", clip_by(3)')
    assert naming(Named("clip", "Clip"), sources(tmp_path)) == []
