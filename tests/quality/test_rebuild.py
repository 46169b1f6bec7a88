"""A training that is saved, rebuilt under another plan and loaded goes on in parity."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    Buffered,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Mode,
    Optimizer,
    Plan,
    Rebuild,
    RequiresGrad,
    Sequential,
    StateDict,
    Step,
    ZeroGrad,
    features,
)
from fsdpfuzz.loop import injection_launcher
from fsdpfuzz.repro import Context, render
from tests.injected.by_hand import judged
from tests.injected.forked import verify_forked

ROOT1 = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
NESTED1 = Fsdp1Plan(
    units=tuple(
        Fsdp1Unit(path=path, use_orig_params=True, sharding="SHARD_GRAD_OP") for path in ("", "1")
    )
)
ROOT2 = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
NESTED2 = Fsdp2Plan(
    units=(
        Fsdp2Unit(path=""),
        Fsdp2Unit(path="0"),
        Fsdp2Unit(path="1", reshard_after_forward=False),
    )
)
TRAIN = (Forward(), Backward(), Step(), ZeroGrad())
CONTEXT = Context(torch="", backend="gloo", environment=())


def case(before: Plan, after: Plan, **fields: object) -> CaseSpec:
    program = (*TRAIN, Rebuild(plan=after), *TRAIN, StateDict(form="sharded"), *TRAIN)
    model = Sequential(children=(Linear(out=4), Linear(out=3)))
    given = {"model": model, "optimizer": Optimizer(), "program": program, **fields}
    return CaseSpec(
        world_size=2,
        inputs=Dense(width=3),
        plan=before,
        **given,  # type: ignore[arg-type]
    )


CASES = {
    "fsdp1 to nested": case(ROOT1, NESTED1),
    "fsdp1 to the root": case(NESTED1, ROOT1, optimizer=Optimizer(name="adam", lr=0.01)),
    "fsdp2 to nested": case(ROOT2, NESTED2, optimizer=Optimizer(name="adamw", lr=0.01)),
    "fsdp2 to the root": case(NESTED2, ROOT2, checkpoints=(Checkpoint(path="1", side="around"),)),
    "fsdp2 in eval mode": case(
        NESTED2,
        ROOT2,
        model=Sequential(children=(Linear(out=4), Linear(out=3), Buffered(updates=True))),
        program=(Mode(train=False), *TRAIN, Rebuild(plan=ROOT2), *TRAIN),
    ),
    "fsdp2 after thawing": case(
        NESTED2,
        NESTED2,
        frozen=("1.weight", "1.bias"),
        program=(
            *TRAIN,
            RequiresGrad(parameters=("1.weight", "1.bias"), value=True),
            *TRAIN,
            Rebuild(plan=ROOT2),
            *TRAIN,
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_goes_on_in_parity(name: str) -> None:
    assert judged(CASES[name]).status == "passed"


def changed(example: CaseSpec, **fields: object) -> CaseSpec:
    """With other options of its rebuild."""
    program = tuple(
        msgspec.structs.replace(op, **fields) if isinstance(op, Rebuild) else op
        for op in example.program
    )
    return msgspec.structs.replace(example, program=program)


@pytest.mark.parametrize("name", ["fsdp2 to nested", "fsdp2 to the root"])
def test_what_changes_while_it_is_saved_is_saved_as_it_was(name: str) -> None:
    example = changed(CASES[name], asynchronous=True)
    assert features(example)["async_save"] == "on"
    assert judged(example).status == "passed"
    # The writer's thread may be done before the change, on a busy machine even with half of it.
    late = "tests.quality.injected_rebuild:stages_nothing_and_writes_late"
    found = judged(example, late).findings
    assert {finding.invariant for finding in found} == {"output_parity"}


INJECTED = (
    ("loses_the_momentum", "fsdp1"),
    ("loses_the_momentum", "fsdp2"),
    # fsdp2's load reads into the very shards of the model, so there is nothing left to set.
    ("loads_stale_weights", "fsdp1"),
    ("halves_what_it_saves", "fsdp2"),
)


@pytest.mark.parametrize(("injection", "api"), INJECTED)
def test_what_is_lost_on_the_way_is_found(injection: str, api: str) -> None:
    example = CASES[f"{api} to nested"]
    if injection == "loses_the_momentum":
        example = case(example.plan, example.plan)
    found = judged(example, f"tests.quality.injected_rebuild:{injection}").findings
    rebuilt = next(i for i, op in enumerate(example.program) if isinstance(op, Rebuild))
    assert found
    assert min(finding.op for finding in found) > rebuilt


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
def test_numbers_beside_tensors_are_found_lost_where_they_are_loaded(
    api: str, tmp_path: Path
) -> None:
    injection = "benchmarks.faults.injections:dcp_values_not_set"
    example = CASES[f"{api} to nested"]
    (finding,) = (f for f in judged(example, injection).findings if f.invariant == "optim_state")
    assert finding.operation == "rebuild"
    assert finding.name.startswith("optim_loaded[group 0].")
    script = tmp_path / "repro.py"
    script.write_text(render(example, finding, CONTEXT))
    shown = verify_forked(script, 2, "gloo", finding, launcher=injection_launcher(injection))
    assert shown.reproduced, shown.output
    assert verify_forked(script, 2, "gloo", finding).outcome == "not reproduced"


def test_a_script_shows_what_a_wrong_plan_of_the_new_model_would_do(tmp_path: Path) -> None:
    """The finding names the unit of the new plan, and the script says that it does not show."""
    example = CASES["fsdp2 to nested"]
    injection = "tests.quality.injected_rebuild:halves_what_it_saves"
    finding = next(f for f in judged(example, injection).findings if f.invariant == "output_parity")
    script = tmp_path / "repro.py"
    script.write_text(render(example, finding, CONTEXT))
    assert "get_optimizer_state_dict" in script.read_text()
    assert verify_forked(script, 2, "gloo", finding).outcome == "not reproduced"


def test_findings_behind_it_name_units_of_the_new_plan() -> None:
    injection = "tests.quality.injected_rebuild:loses_the_momentum"
    found = judged(case(ROOT2, NESTED2), injection).findings
    named = [finding for finding in found if finding.invariant == "param_parity"]
    assert named
    assert {finding.unit for finding in named} <= {"0", "1"}


@pytest.mark.parametrize("name", ["fsdp1 to the root", "fsdp2 to nested"])
@pytest.mark.parametrize(
    "fault", ["loaded_together_but_the_optimizer", "saved_together_without_steps"]
)
def test_what_one_call_loses_is_found_and_nothing_where_there_are_two(
    name: str, fault: str
) -> None:
    example = changed(CASES[name], together=True)
    assert features(example)["rebuilt_together"] == "on"
    assert judged(example).status == "passed"
    injection = f"benchmarks.faults.injections:{fault}"
    assert judged(example, injection).findings
    assert judged(CASES[name], injection).status == "passed"
