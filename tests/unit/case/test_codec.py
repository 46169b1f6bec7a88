"""A case survives JSON, says where it is wrong, and has one digest everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsdpfuzz.case import (
    MAX_FILE_BYTES,
    Backward,
    Branches,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Norm,
    Repeat,
    Residual,
    Sequential,
    Step,
    Tie,
    ZeroGrad,
    check,
    decode,
    digest,
    encode,
    load,
    places_of,
    pretty,
)
from fsdpfuzz.errors import CaseError
from tests.unit.case.saved import documents, saved

ROOT = Path(__file__).parents[3]

CASE = CaseSpec(
    world_size=2,
    seed=3,
    model=Sequential(
        children=(
            Linear(out=4, bias=False),
            Branches(children=(Linear(out=4), Residual(body=Norm())), merge="sum"),
            Repeat(body=Linear(out=4, bias=False), times=3, no_grad="body"),
        )
    ),
    inputs=Dense(width=4, requires_grad=True),
    plan=Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="2", use_orig_params=False))),
    ties=(Tie(source="0.weight", target="2.body.weight"),),
    frozen=("1.branches.0.bias",),
    checkpoints=(Checkpoint(path="2", reentrant=True),),
    program=(Forward(sync=False), Backward(), Forward(), Backward(), Step(), ZeroGrad()),
)
DIGEST = "01970c5d8036d7d0"


def document(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(pretty(CASE))
    return data | changes


def refused(data: dict[str, Any]) -> CaseError:
    with pytest.raises(CaseError) as caught:
        decode(json.dumps(data).encode())
    return caught.value


def test_round_trip() -> None:
    assert decode(encode(CASE)) == CASE
    assert decode(pretty(CASE).encode()) == CASE
    assert digest(decode(pretty(CASE).encode())) == digest(CASE)


def test_pretty_starts_with_the_schema_and_leaves_defaults_out() -> None:
    assert pretty(CASE).startswith('{\n  "schema": 1,')
    assert "backward_prefetch" not in pretty(CASE)


def test_the_digest_stays_what_it_is() -> None:
    # Names corpus files; a new field with a default must not change it.
    assert digest(CASE) == DIGEST


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_the_digest_is_the_same_in_another_process(hash_seed: str) -> None:
    program = (
        "import sys; from fsdpfuzz.case import decode, digest;"
        "print(digest(decode(sys.stdin.buffer.read())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pretty(CASE),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.fspath(ROOT)},
    )
    assert done.stdout.strip() == digest(CASE)


def test_the_order_of_keys_does_not_matter() -> None:
    data = document()
    backwards = dict(reversed(data.items()))
    assert digest(decode(json.dumps(backwards).encode())) == digest(CASE)


@pytest.mark.parametrize(
    ("changes", "path", "says"),
    [
        ({"schema": 2}, "$.schema", "Invalid enum value 2; it can be 1"),
        ({"world_size": 0}, "$.world_size", ">= 1"),
        ({"world_size": "2"}, "$.world_size", "int"),
        ({"colour": "red"}, "$", "colour"),
        ({"model": {"kind": "linear", "out": 0}}, "$.model.out", ">= 1"),
        ({"model": {"kind": "conv", "out": 3}}, "$.model.kind", "'conv'; it can be linear, norm, "),
        (
            {"model": {"kind": "linear", "out": 3, "width": 3}},
            "$.model",
            "unknown field `width`; it has kind, out, bias",
        ),
        ({"loss": "mean"}, "$.loss", "'mean'; it can be "),
        (
            {"plan": {"api": "fsdp2", "units": [{"path": "", "use_orig_params": True}]}},
            "$.plan.units[0]",
            "`use_orig_params`; it has path, ",
        ),
        (
            {"plan": {"api": "fsdp1", "units": [{"path": "", "precision": {"param": "int8"}}]}},
            "$.plan.units[0].precision.param",
            "'int8'; it can be bfloat16, float16, float32",
        ),
        ({"frozen": ["rm -rf /"]}, "$.frozen[0]", "regex"),
        ({"program": [{"op": "exec"}]}, "$.program[0].op", "'exec'; it can be "),
        ({"plan": {"api": "fsdp1", "units": []}}, "$.plan.units", "length >= 1"),
    ],
)
def test_decoding_is_strict_and_says_where(changes: dict[str, Any], path: str, says: str) -> None:
    error = refused(document(**changes))
    assert error.path == path
    assert says in error.reason


@pytest.mark.parametrize(
    "data",
    [
        b'{"model": {"kind": "conv"}, "model": 3}',
        b'{"model": {"kind": "conv"}, "seed": "\xff"}',
        b'{"model": {"kind": "conv"}, "seed": ' + b"9" * 5_000 + b"}",
        b'{"model": {"kind": "conv"}, "seed": ' + b"[" * 100_000,
    ],
)
def test_behind_a_mistake_there_may_be_anything(data: bytes) -> None:
    with pytest.raises(CaseError, match=r"^\$\.model\.kind: Invalid value 'conv'$"):
        decode(data)


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_case_is_refused(data: bytes) -> None:
    with pytest.raises(CaseError):
        decode(data)


def test_deep_nesting_is_refused() -> None:
    node: dict[str, Any] = {"kind": "linear", "out": 4}
    for _ in range(60):
        node = {"kind": "residual", "body": node}
    assert "deeper" in refused(document(model=node)).reason


@pytest.mark.parametrize(
    ("changes", "path", "says"),
    [
        ({"frozen": ["3.weight"]}, "$.frozen[0]", "no parameter '3.weight'"),
        ({"frozen": ["0.weight", "0.weight"]}, "$.frozen[1]", "twice"),
        ({"held_out": ["nothing"]}, "$.held_out[0]", "nothing"),
        ({"frozen": ["2.body.weight"]}, "$.ties[0]", "source"),
        ({"ties": [{"source": "0.weight", "target": "1.branches.0.bias"}]}, "$.ties[0]", "shapes"),
        (
            {
                "ties": [
                    {"source": "0.weight", "target": "1.branches.0.weight"},
                    {"source": "1.branches.0.weight", "target": "2.body.weight"},
                ]
            },
            "$.ties[1]",
            "chains",
        ),
        ({"plan": {"api": "fsdp2", "units": [{"path": "9"}]}}, "$.plan.units[0]", "'9'"),
        (
            {"plan": {"api": "fsdp2", "units": [{"path": "", "reshard_after_forward": 3}]}},
            "$.plan.units[0].reshard_after_forward",
            "does not divide",
        ),
        (
            {"plan": {"api": "fsdp1", "units": [{"path": "2"}], "wrap": "custom_policy"}},
            "$.plan",
            "root",
        ),
        (
            {"plan": {"api": "fsdp1", "units": [{"path": ""}], "wrap": "module_classes"}},
            "$.plan",
            "classes",
        ),
        ({"checkpoints": [{"path": "7"}]}, "$.checkpoints[0]", "'7'"),
        (
            {"checkpoints": [{"path": "2", "kind": "offload", "reentrant": True}]},
            "$.checkpoints[0]",
            "reentrant",
        ),
        ({"program": [{"op": "backward"}]}, "$.program[0]", "pending"),
        (
            {"program": [{"op": "forward"}, {"op": "forward", "sync": False}]},
            "$.program[1]",
            "sync",
        ),
        ({"optimizer": None}, "$.program[4]", "optimizer"),
        (
            {"model": {"kind": "embedding", "rows": 3, "out": 3}},
            "$.model",
            "tokens",
        ),
        (
            {"inputs": {"kind": "tokens"}},
            "$.model.children[0]",
            "embedding",
        ),
    ],
)
def test_contradictions_are_refused_with_their_path(
    changes: dict[str, Any], path: str, says: str
) -> None:
    error = refused(document(**changes))
    assert error.path == path
    assert says in error.reason


def test_a_file_is_named_in_the_error(tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps(document(world_size=0)))
    with pytest.raises(CaseError, match=r"case\.json: \$\.world_size"):
        load(file)
    file.write_text(pretty(CASE))
    assert load(file) == CASE


@pytest.mark.parametrize("name", documents())
def test_a_saved_case_comes_out_as_it_went_in(name: str) -> None:
    document = {"schema": 1, **documents()[name]}
    assert json.loads(pretty(saved(name))) == document
    assert decode(encode(saved(name))) == saved(name)


def test_files_that_cannot_be_cases_are_refused(tmp_path: Path) -> None:
    for path, says in ((tmp_path / "none.json", "no such file"), (tmp_path, "not a file")):
        with pytest.raises(CaseError, match=says):
            load(path)
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(CaseError, match="larger"):
        load(large)


def test_places_are_named_as_modules_are() -> None:
    assert [place.path for place in places_of(CASE.model, 4)] == [
        "",
        "0",
        "1",
        "1.branches.0",
        "1.branches.1",
        "1.branches.1.body",
        "2",
        "2.body",
    ]


def test_check_passes_the_case_of_this_file() -> None:
    check(CASE)
