"""Cases to draw and a run to report."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from fsdpfuzz.case import (
    Activation,
    Backward,
    Branches,
    Buffered,
    CaseSpec,
    Checkpoint,
    Dense,
    Embedding,
    EncoderLayer,
    Flip,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Gain,
    Idle,
    Linear,
    Lora,
    Mode,
    Norm,
    Optimizer,
    Precision,
    Repeat,
    RequiresGrad,
    Residual,
    Sequential,
    StateDict,
    Step,
    Switch,
    Tie,
    Tokens,
    Variant,
    ZeroGrad,
    digest,
    features,
)
from fsdpfuzz.corpus import Entry, write_entry
from fsdpfuzz.loop import (
    CaseDone,
    Counts,
    Event,
    FindingDone,
    FindingMet,
    Found,
    Notice,
    Rate,
    RunFinished,
    RunStarted,
    Script,
    Shrinking,
    Summary,
)
from fsdpfuzz.show import Recorder, RunRecord
from fsdpfuzz.verdict import Failure, Finding

KNOWN, SILENT = "fsdp1-identity-unit", "fsdp2-repeated-reentrant"
"""Two of the known defects on file."""
UNSHARD = "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:unshard"

SMALL = CaseSpec(
    world_size=2,
    model=Sequential(children=(Linear(out=2, bias=False), Linear(out=1, bias=False))),
    inputs=Dense(width=3, batch=1),
    plan=Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0"))),
    frozen=("0.weight",),
    checkpoints=(Checkpoint(path="0", reentrant=True, side="around"),),
    program=(Forward(), Backward(), Step()) * 3,
)

RICH = CaseSpec(
    world_size=4,
    seed=7,
    model=Sequential(
        children=(
            Embedding(rows=12, out=6),
            Residual(body=Sequential(children=(Norm(), Linear(out=6), Activation(fn="tanh")))),
            Repeat(
                body=Sequential(children=(Linear(out=6), Gain(scalar=True))),
                times=3,
                no_grad="first_child",
            ),
            Branches(children=(Lora(out=6, rank=2), Idle()), merge="sum", side=True),
            EncoderLayer(heads=2, hidden=4, causal=True),
            Buffered(persistent=False, updates=True),
            Linear(out=12, bias=False),
        )
    ),
    inputs=Tokens(batch=2, length=5),
    plan=Fsdp1Plan(
        wrap="custom_policy",
        units=(
            Fsdp1Unit(path="", use_orig_params=True, backward_prefetch=None, ignored=("2",)),
            Fsdp1Unit(path="1.body", use_orig_params=True, sharding="NO_SHARD"),
            Fsdp1Unit(
                path="4",
                use_orig_params=True,
                sharding="SHARD_GRAD_OP",
                precision=Precision(param="bfloat16", reduce="float32"),
                cpu_offload=True,
            ),
        ),
    ),
    ties=(Tie(source="0.weight", target="6.weight"),),
    frozen=("1.body.0.weight", "3.branches.0.inner.base.weight"),
    held_out=("1.body.1.bias",),
    checkpoints=(
        Checkpoint(path="4", side="inside"),
        Checkpoint(path="1.body", kind="function", reentrant=True, side="around"),
        Checkpoint(path="3", kind="offload"),
    ),
    optimizer=Optimizer(name="adamw", lr=0.01, foreach=False),
    program=(
        StateDict(form="full", rank0_only=True, cpu_offload=True),
        *((Forward(sync=False), Backward()) * 3),
        Forward(),
        Backward(),
        Step(),
        *((ZeroGrad(), Forward(), Backward(), Step()) * 2),
        Mode(train=False),
        Forward(grad=False),
    ),
    loss="sum",
    debug_level="DETAIL",
    twins=(Variant(name="flat", plan=Fsdp1Plan(units=(Fsdp1Unit(path=""),)), checkpoints=()),),
)

REFUSED = CaseSpec(
    world_size=2,
    model=Sequential(
        children=(Linear(out=4), Switch(children=(Linear(out=4), Sequential(children=()))))
    ),
    inputs=Dense(width=4, length=3, requires_grad=True),
    plan=Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="0"))),
    frozen=("0.bias",),
    optimizer=None,
    program=(
        Forward(target="0"),
        Backward(),
        Flip(path="1", ranks=(1,)),
        RequiresGrad(parameters=("0.weight", "0.bias"), value=True),
        Forward(),
        Backward(),
    ),
)


def many_cases(number: int, seed: int = 1) -> Iterator[CaseSpec]:
    """Small cases of both APIs that differ in a handful of options."""
    pick = random.Random(seed).choice
    for i in range(number):
        paths = pick((("",), ("", "0"), ("", "0", "1"), ("0", "1")))
        if pick((True, False)):
            sharding = pick(("FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"))
            whole = pick((True, False))
            plan: Fsdp1Plan | Fsdp2Plan = Fsdp1Plan(
                units=tuple(
                    Fsdp1Unit(path=path, sharding=sharding, use_orig_params=whole)  # type: ignore[arg-type]
                    for path in paths
                )
            )
        else:
            again = pick((None, True, False))
            plan = Fsdp2Plan(
                units=tuple(Fsdp2Unit(path=path, reshard_after_forward=again) for path in paths)
            )
        side = pick(("inside", "around"))
        checkpoint = Checkpoint(path="0", reentrant=pick((True, False)), side=side)  # type: ignore[arg-type]
        yield CaseSpec(
            world_size=pick((2, 2, 2, 3)),
            seed=i,
            model=Sequential(
                children=(Linear(out=pick((1, 4, 5))), pick((Linear(out=4), Norm(), Idle())))
            ),
            inputs=Dense(width=4),
            plan=plan,
            frozen=pick(((), (), ("0.weight",), ("0.weight", "0.bias"))),
            checkpoints=(checkpoint,) * pick((0, 0, 1)),
            program=(Forward(), Backward(), Step()) * pick((1, 1, 2)),
        )


REPRO = '''"""fsdp1 does not average the gradients of its second unit.

grad=1.25, but should be 0.625 within 1e-06 [1.weight, rank 0, backward program[1]]

torch 2.13.0, gloo, 2 ranks. Run: torchrun --nproc-per-node 2 repro.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False))
model = FSDP(nn.Sequential(FSDP(model[0]), model[1]), use_orig_params=True)
assert model(torch.ones(1, 3)).item() < 1 & 2 > 0
'''


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def a_run(folder: Path, number: int = 300, known: Path | None = None) -> Recorder:
    """The events of a run with one steady, one flaky and one known finding, all taken."""
    clock = Clock()
    recorder = Recorder(known, clock=clock)
    for event in events(folder, number, clock):
        recorder(event)
    return recorder


def a_record(folder: Path, number: int = 300) -> RunRecord:
    """The record of `a_run`."""
    return a_run(folder, number).record()


def events(folder: Path, number: int, clock: Clock) -> Iterator[Event]:
    """What a run tells, with the clock moved along."""
    started = RunStarted(
        torch="2.13.0",
        backend="gloo",
        world_sizes=(2, 3),
        profile="dev",
        seed=2_184_553_020,
        properties=("parity", "state_dict", "memory"),
        max_examples=number,
        output=folder,
    )
    yield started
    steady, flaky, known = findings(folder)
    restarts = 0
    for i, case in enumerate(many_cases(number), 1):
        clock.now += 0.09 if i < number // 2 else 0.05
        restarts += i % 60 == 0
        yield CaseDone(
            index=i,
            property_name="parity",
            digest=digest(case),
            features=features(case),
            status="finding" if i % 40 == 0 else "rejected" if i % 11 == 0 else "passed",
            seconds=0.05,
            restarts=restarts,
            known=(KNOWN,) if i % 40 == 0 else (),
        )
        for at, found in ((40, known), (80, steady), (200, flaky)):
            if i == at:
                yield FindingMet(found=found)
    for tries in range(20):
        clock.now += 0.2
        restarts += 1
        yield Shrinking(key=steady.finding.key, tries=tries, bytes=400 - tries, restarts=restarts)
    yield FindingDone(found=steady)
    yield FindingDone(found=flaky)
    yield Notice(text=f"known defect {SILENT} did not show; does it still exist?")
    yield RunFinished(
        summary=Summary(
            started=started,
            counts=Counts(examples=number, passed=number, rejected=0, vacuous=0),
            seconds=clock.now - 100.0,
            pool_restarts=restarts,
            findings=(known, steady, flaky),
            silent_known=(SILENT,),
        )
    )


def findings(folder: Path) -> tuple[Found, Found, Found]:
    """A steady finding with a repro, a flaky one, and a known one; their cases on disk."""
    repro = folder / "repros" / "grad_parity.py"
    repro.parent.mkdir(parents=True, exist_ok=True)
    repro.write_text(REPRO)
    paths = []
    for name, case in (("grad", SMALL), ("hang", RICH), ("leak", REFUSED)):
        paths.append(folder / "failures" / f"{name}-{digest(case)}.json")
        write_entry(paths[-1], Entry(case=case))
    steady = Found(
        finding=Finding(
            invariant="grad_parity",
            symptom="mismatch",
            api="fsdp1",
            detail="times-ranks",
            op=1,
            operation="backward",
            quantity="grad",
            name="1.weight",
            ranks=(0,),
            world_size=2,
            observed="1.25",
            expected="0.625",
            allowed=1e-6,
        ),
        property_name="parity",
        case=paths[0],
        digest=digest(SMALL),
        examples_to_find=80,
        script=Script(
            path=repro,
            confirmed=True,
            note="rank 0: reproduced: grad=1.25",
            ablation=(
                "fails only with use_orig_params=True and reentrant checkpointing",
                "not with FSDP2 or at world size 3",
            ),
        ),
        shrink_steps=14,
        shrunk=True,
        seconds=7.2,
    )
    flaky = Found(
        finding=Finding(
            invariant="ranks_agree",
            symptom="rank_divergence",
            api="fsdp2",
            kind=f"RuntimeError@{UNSHARD}:The size of tensor a (#) must match",
            op=0,
            operation="forward",
            ranks=(0,),
            world_size=4,
            observed="RuntimeError",
            expected="no exception",
            failure=Failure(
                type="RuntimeError",
                text="The size of tensor a (3) must match\n"
                "  at <script>alert(1)</script>\n  in \x1b[31m\udc80",
                place=UNSHARD,
                stage="case:forward[0]",
            ),
        ),
        property_name="state_dict",
        case=paths[1],
        digest=digest(RICH),
        examples_to_find=200,
        rate=Rate(failed=3, runs=10),
        seconds=15.0,
    )
    known = Found(
        finding=Finding(
            invariant="resharded_after_backward",
            symptom="leak",
            api="fsdp1",
            op=1,
            operation="backward",
            quantity="units",
            unit="0",
            ranks=(0,),
            world_size=2,
            observed="['0'] unsharded",
            expected="sharded",
        ),
        property_name="memory",
        case=paths[2],
        digest=digest(REFUSED),
        examples_to_find=40,
        known=KNOWN,
        seconds=3.6,
    )
    return steady, flaky, known
