"""A made-up defect: SHARD_GRAD_OP gives the gradient of a frozen unit's neighbour a wrong sign."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Sequential,
    as_document,
)
from fsdpfuzz.known import Defect, Known, MustNot, Pattern, Predicate
from fsdpfuzz.verdict import Failure, Finding

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "corpus" / "known"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))
TORCH = "2.13.0+cpu"


@cache
def shipped() -> Known:
    return Known.load(FOLDER)


def two_layers(*, sharding: Any = "SHARD_GRAD_OP", frozen: bool = True) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=2, bias=False), Linear(out=2, bias=False))),
        inputs=Dense(width=2),
        plan=Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="0", sharding=sharding))),
        frozen=("0.weight",) if frozen else (),
        program=(Forward(), Backward()),
    )


def wrong_gradient(**changes: Any) -> Finding:
    values: dict[str, Any] = {
        "invariant": "grad_parity",
        "symptom": "mismatch",
        "api": "fsdp1",
        "detail": "negated",
        "op": 1,
        "operation": "backward",
        "quantity": "grad",
        "name": "0.weight",
        "unit": "0",
        "ranks": (0, 1),
        "world_size": 2,
        "observed": "-1.0",
        "expected": "1.0",
        "allowed": 1e-6,
        "baseline": 0.0,
    }
    return Finding(**{**values, **changes})


def crash(**changes: Any) -> Finding:
    failure: dict[str, Any] = {
        "type": "RuntimeError",
        "text": "lost the shard of 0.weight, 4 bytes",
        "place": "torch/distributed/fsdp/_flat_param.py:unshard",
        "stage": "case:forward[0]",
    }
    fields = {name: changes.pop(name) for name in list(changes) if name in failure}
    exitcode = changes.pop("exitcode", None)
    values: dict[str, Any] = {
        "invariant": "no_crash",
        "symptom": "crash",
        "api": "fsdp1",
        "kind": "RuntimeError@torch/distributed/fsdp/_flat_param.py:unshard:lost",
        "op": 0,
        "operation": "forward",
        "ranks": (0, 1),
        "world_size": 2,
        "observed": "RuntimeError",
        "expected": "no exception",
        "failure": Failure(**{**failure, **fields}, exitcode=exitcode),
    }
    return Finding(**{**values, **changes})


def defect(**changes: Any) -> Defect:
    values: dict[str, Any] = {
        "title": "SHARD_GRAD_OP gives a frozen unit a gradient of the wrong sign",
        "reason": "made up, but understood well enough for a test",
        "link": "https://github.com/pytorch/pytorch/issues/1",
        "way_around": "FULL_SHARD.",
        "date": "2026-11-20",
        "seen": {"gloo": ("2.7.1", "2.13.0")},
        "when": Predicate(
            case={"api": ("fsdp1",)}, unit={"sharding": ("SHARD_GRAD_OP",), "freeze": ("all",)}
        ),
        "shows": (
            Pattern(invariant=("grad_parity",), names="parameter", detail=("negated",)),
            Pattern(
                invariant=("no_crash",),
                operation=("forward",),
                exception=("RuntimeError",),
                text=r"^lost the shard",
            ),
        ),
        "case": msgspec.Raw(msgspec.json.encode(as_document(two_layers()))),
        "finding": wrong_gradient(),
        "refuses": (
            MustNot(why="another parameter", finding=wrong_gradient(name="1.weight", unit="")),
            MustNot(why="another crash", finding=crash(text="found two shards")),
        ),
    }
    return Defect(**{**values, **changes})


def document(**changes: Any) -> dict[str, Any]:
    """The JSON of `defect`, with some of its fields replaced or, by None, left out."""
    found: dict[str, Any] = json.loads(msgspec.json.encode(defect()))
    merged = {**found, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def put(folder: Path, name: str = "a-known-one", **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document(**changes)))
    return path
