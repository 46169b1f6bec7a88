"""The command line and the JSON result are contracts: a change here is a breaking change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import fsdpfuzz.loop
from fsdpfuzz.cli import main
from fsdpfuzz.cli._main import build
from fsdpfuzz.errors import MachineError, PoolError, UsageError
from fsdpfuzz.loop import (
    Counts,
    Found,
    JobDone,
    Rate,
    RunStarted,
    Summary,
    profile_named,
    summary_document,
)
from fsdpfuzz.verdict import Finding

RUN = {
    "properties": ("PROPERTY", ()),
    "profile": ("P", ("--profile",)),
    "max_examples": ("N", ("--max-examples",)),
    "max_seconds": ("SECONDS", ("--max-seconds",)),
    "seed": ("N", ("--seed",)),
    "world_size": ("N", ("--world-size",)),
    "backend": ("B", ("--backend",)),
    "jobs": ("N", ("--jobs",)),
    "api": ("A", ("--api",)),
    "output": ("DIR", ("--output",)),
    "json": ("FILE", ("--json",)),
    "junit": ("FILE", ("--junit",)),
    "strict": (None, ("--strict",)),
    "known": ("PATH", ("--known",)),
    "python": ("PATH", ("--python",)),
    "against": ("PATH", ("--against",)),
    "injection": ("MODULE:FUNCTION", ("--inject", "--plant")),
}

DOCUMENT = {
    "schema": 1,
    "torch": "2.13.0",
    "backend": "gloo",
    "world_size": 4,
    "profile": "dev",
    "seed": 7,
    "examples": 150,
    "passed": 140,
    "rejected": 8,
    "vacuous": 1,
    "failed": 1,
    "skipped": 12,
    "drawn": 162,
    "seconds": 10.0,
    "examples_per_second": 15.0,
    "pool_restarts": 3,
    "output": "out",
    "harness_errors": 0,
    "python": "",
    "against": "",
    "findings": [
        {
            "key": "grad_parity/mismatch/fsdp2",
            "property": "parity",
            "invariant": "grad_parity",
            "symptom": "mismatch",
            "message": "grad=1.0, but should be 0.5 [0.weight, rank 0, backward program[1]] "
            "(failed 3 of 10)",
            "case": "out/failures/a.json",
            "repro": None,
            "known": None,
            "examples_to_find": 12,
            "also": ["param_parity/mismatch/fsdp2"],
            "change": "",
            "begins": [],
            "plan": "",
            "finding": {
                "invariant": "grad_parity",
                "symptom": "mismatch",
                "api": "fsdp2",
                "op": 1,
                "operation": "backward",
                "quantity": "grad",
                "name": "0.weight",
                "unit": "0",
                "ranks": [0],
                "world_size": 2,
                "observed": "1.0",
                "expected": "0.5",
            },
        }
    ],
    "unconfirmed": [],
    "jobs": [
        {
            "job": 1,
            "backend": "gloo",
            "seed": 8,
            "examples": 75,
            "seconds": 9.5,
            "pool_restarts": 1,
            "failure": "",
        }
    ],
}
FROZEN = {
    "schema", "torch", "backend", "world_size", "profile", "seed", "examples", "passed",
    "rejected", "vacuous", "seconds", "examples_per_second", "pool_restarts", "findings",
}  # fmt: skip
FROZEN_OF_A_FINDING = {
    "key", "property", "invariant", "symptom", "message", "case", "repro", "known",
    "examples_to_find",
}  # fmt: skip
"""What the first release had; other fields may only come beside these."""


def a_summary(*findings: Found, strict: bool = False, interrupted: int | None = None) -> Summary:
    started = RunStarted(
        torch="2.13.0",
        backend="gloo",
        world_sizes=(2, 4),
        profile="dev",
        seed=7,
        properties=("parity",),
        max_examples=150,
        output=Path("out"),
    )
    return Summary(
        started=started,
        counts=Counts(examples=150, passed=140, rejected=8, vacuous=1, failed=1, skipped=12),
        seconds=10.0,
        pool_restarts=3,
        findings=findings,
        strict=strict,
        interrupted=interrupted,
        jobs=(JobDone(job=1, backend="gloo", seed=8, examples=75, seconds=9.5, pool_restarts=1),),
    )


def a_finding(known: str | None = None) -> Found:
    return Found(
        finding=Finding(
            invariant="grad_parity",
            symptom="mismatch",
            api="fsdp2",
            op=1,
            operation="backward",
            quantity="grad",
            name="0.weight",
            unit="0",
            ranks=(0,),
            world_size=2,
            observed="1.0",
            expected="0.5",
        ),
        property_name="parity",
        case=Path("out/failures/a.json"),
        digest="0" * 16,
        examples_to_find=12,
        known=known,
        rate=Rate(failed=3, runs=10),
        also=("param_parity/mismatch/fsdp2",),
    )


def test_the_options_of_run() -> None:
    run = typer.main.get_command(build()).commands["run"]  # type: ignore[attr-defined]
    params = {param.name: param for param in run.params}
    options = {
        name: (
            None
            if getattr(param, "is_flag", False)
            else (param.metavar or "").strip("[].") or None,
            tuple(param.opts) if param.param_type_name == "option" else (),
        )
        for name, param in params.items()
    }
    assert options == RUN
    assert params["injection"].hidden
    assert {name: param.default for name, param in params.items()} == {
        "properties": None,
        "profile": "dev",
        "max_examples": None,
        "max_seconds": None,
        "seed": None,
        "world_size": None,
        "backend": "auto",
        "jobs": None,
        "api": "both",
        "output": Path(".fsdpfuzz"),
        "json": None,
        "junit": None,
        "strict": False,
        "known": None,
        "python": None,
        "against": None,
        "injection": None,
    }


def test_the_json_result() -> None:
    document = json.loads(json.dumps(summary_document(a_summary(a_finding()))))
    assert document == DOCUMENT
    assert list(document) == list(DOCUMENT)
    assert list(document["findings"][0]) == list(DOCUMENT["findings"][0])  # type: ignore[index]
    assert set(document) >= FROZEN
    assert set(document["findings"][0]) >= FROZEN_OF_A_FINDING


def test_the_exit_codes_of_a_run() -> None:
    known = a_finding(known="K1")
    assert a_summary().exit_code == 0
    assert a_summary(known).exit_code == 0
    assert a_summary(known, strict=True).exit_code == 1
    assert a_summary(known, a_finding()).exit_code == 1
    assert a_summary(a_finding(), interrupted=2).exit_code == 130
    assert a_summary(interrupted=15).exit_code == 143


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("--seed: 'x' is no number"), 2),
        (MachineError("nccl needs\ntwo GPUs"), 3),
        (PoolError("the ranks do not start"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_codes_of_errors(
    error: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> str:
        raise error

    monkeypatch.setattr(fsdpfuzz.loop, "installed_torch", fail)
    assert main(["version"]) == code
    assert capsys.readouterr().err.strip().count("\n") == 0


@pytest.mark.parametrize(
    ("name", "examples", "world_sizes", "derandomize"),
    [
        ("smoke", 20, (2,), False),
        ("dev", 150, (2,), False),
        ("ci", 150, (2,), True),
        ("nightly", 2_000, (2, 3, 4), False),
        ("soak", 20_000, (2, 3, 4), False),
    ],
)
def test_the_profiles(
    name: str, examples: int, world_sizes: tuple[int, ...], derandomize: bool
) -> None:
    profile = profile_named(f"fsdpfuzz-{name}")
    assert (profile.max_examples, profile.world_sizes, profile.derandomize) == (
        examples,
        world_sizes,
        derandomize,
    )


@pytest.mark.parametrize(
    "code",
    [
        "import fsdpfuzz.cli; fsdpfuzz.cli.main(['--help'])",
        "import fsdpfuzz.cli; fsdpfuzz.cli.main(['run', '--help'])",
        "import fsdpfuzz.cli; assert fsdpfuzz.cli.main(['run', 'tpy']) == 2",
        "import fsdpfuzz.cli; fsdpfuzz.cli.main(['version'])",
        "import fsdpfuzz.loop",
        "import fsdpfuzz.plugin",
    ],
)
def test_what_needs_no_torch_does_not_import_it(code: str) -> None:
    check = "import sys; bad = {'torch', 'hypothesis'} & set(sys.modules); assert not bad, bad"
    subprocess.run([sys.executable, "-c", f"{code}; {check}"], check=True, capture_output=True)
