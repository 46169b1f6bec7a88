"""What the doctor says of machines that this one is not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fsdpfuzz.show._doctor as doctor
from fsdpfuzz.case import NEWER, CaseSpec, digest
from fsdpfuzz.errors import MachineError, PoolError
from fsdpfuzz.known import Known
from fsdpfuzz.observations import Observation, RankReport
from fsdpfuzz.pool import Machine
from fsdpfuzz.show import Diagnosis, Memory, as_diagnosis, diagnose, memory_limits
from fsdpfuzz.show._limits import in_words
from fsdpfuzz.verdict import Finding, Verdict

ALL = dict.fromkeys((*doctor.FEATURES, *NEWER), True)
CPU = Machine(python="3.11.7", torch="2.13.0+cpu", gloo=True, cores=8, features=ALL)
GPUS = Machine(
    python="3.11.7",
    torch="2.13.0",
    cuda="12.8",
    cuda_available=True,
    nccl="2.27.3",
    gpus=2,
    gpu_names=("NVIDIA H200", "NVIDIA H200"),
    gloo=True,
    features=ALL,
)


class Ranks:
    """A pool that answers what a test wants."""

    fail: str | None = None

    sees: ClassVar[dict[str, int]] = {"nccl": 2}

    def __init__(self, world_size: int, backend: str, **_: Any) -> None:
        self.world_size, self.backend = world_size, backend

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        if self.fail:
            raise PoolError(self.fail)
        self.gpus = self.sees.get(self.backend, 0)

    def run(self, case: CaseSpec) -> Observation:
        name = digest(case)
        reports = tuple(
            RankReport(rank=rank, digest=name, timings={"all-reduce of 4 B": 2e-5 * (rank + 1)})
            for rank in range(self.world_size)
        )
        return Observation(
            digest=name,
            world_size=self.world_size,
            backend=self.backend,
            torch="2.13.0",
            reports=reports,
        )


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "Pool", Ranks)
    monkeypatch.setattr(doctor, "installed_torch", lambda: "2.13.0")
    monkeypatch.setattr(doctor, "probe_machine", lambda _python: CPU)
    monkeypatch.setattr(doctor, "judge", lambda *_: Verdict(status="passed"))
    monkeypatch.setattr(doctor, "memory_limits", lambda: Memory(physical=64 << 30))


def told(**options: Any) -> Diagnosis:
    return as_diagnosis(list(diagnose(**options)))


def device(diagnosis: Diagnosis) -> str:
    return next(check.detail for check in diagnosis.checks if check.name == "device")


def state(diagnosis: Diagnosis) -> dict[str, str]:
    return {check.name: check.state for check in diagnosis.checks}


def test_a_machine_without_gpus() -> None:
    diagnosis = told()
    assert diagnosis.missing == ()
    assert state(diagnosis)["CUDA"] == state(diagnosis)["NCCL"] == "note"
    collective = next(check for check in diagnosis.checks if check.name == "collective")
    assert collective.detail == "40 µs for an all-reduce of 4 B"
    assert [item.what for item in diagnosis.skipped] == ["everything on NCCL"]


def test_a_machine_with_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "probe_machine", lambda _python: GPUS)
    diagnosis = told()
    assert state(diagnosis)["backend"] == "ok"
    assert ("backend", "nccl, 2 ranks") in [(c.name, c.detail) for c in diagnosis.checks]
    whats = [item.what for item in diagnosis.skipped]
    assert whats == [
        "world size 3 and 4 of the profile nightly",
        "world size 3 and 4 of the profile soak",
    ]
    gloo = told(backend="gloo")
    assert [item.why for item in gloo.skipped] == ["gloo was chosen"]
    assert device(diagnosis) == "cuda, one for each rank, of 2"
    assert device(gloo) == "cpu; 2 GPUs hidden from the ranks"
    assert device(told()) == device(diagnosis)


def test_ranks_that_see_gpus_which_they_should_not_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "probe_machine", lambda _python: GPUS)
    monkeypatch.setattr(Ranks, "sees", {"gloo": 1})
    diagnosis = told(backend="gloo")
    assert state(diagnosis)["device"] == "note"
    assert device(diagnosis).startswith("cpu, but the ranks see 1 GPU: ")


@pytest.mark.parametrize(
    ("version", "part"),
    [("", "not installed: pip install"), ("2.6.1", "older than 2.7"), ("1.13", "older than 2.7")],
)
def test_a_torch_that_will_not_do(version: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed_torch", lambda: version)
    monkeypatch.setattr(doctor, "probe_machine", lambda _python: pytest.fail("torch was asked"))
    (missing,) = told().missing
    assert missing.startswith("torch: ")
    assert part in missing


def test_a_torch_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(_python: object) -> Machine:
        raise MachineError("libtorch.so:\nno such file")

    monkeypatch.setattr(doctor, "probe_machine", probe)
    assert told().missing == ("torch loads: libtorch.so:\\nno such file",)


def test_a_backend_that_is_not_there() -> None:
    (missing,) = told(backend="nccl").missing
    assert missing.startswith("backend: nccl cannot run 2 ranks here")


def test_ranks_that_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranks, "fail", "rank 1 did not come")
    assert told().missing == ("ranks: rank 1 did not come",)


def test_a_machine_that_trains_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding(
        invariant="grad_parity", symptom="mismatch", api="fsdp1", observed="2", expected="1"
    )
    monkeypatch.setattr(
        doctor,
        "judge",
        lambda case, _: Verdict(
            status="finding" if case.api == "fsdp1" else "vacuous",
            findings=(finding,) * (case.api == "fsdp1"),
            reason="nothing learnt",
        ),
    )
    diagnosis = told()
    assert diagnosis.missing == ("training, fsdp2: vacuous: nothing learnt",)
    (note,) = [check for check in diagnosis.checks if check.name == "training, fsdp1"]
    assert (note.state, note.detail) == (
        "note",
        "FSDP is wrong here, which is new: grad_parity/mismatch/fsdp1: 2, but should be 1",
    )
    monkeypatch.setattr(Known, "match", lambda *_, **__: "K1")
    (note,) = [check for check in told().checks if check.name == "training, fsdp1"]
    assert note.detail.startswith("FSDP is wrong here, known as K1: grad_parity")


def test_ranks_that_hang_in_training_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding(invariant="no_hang", symptom="hang", api="fsdp1", observed="2", expected="1")
    monkeypatch.setattr(doctor, "judge", lambda *_: Verdict(status="finding", findings=(finding,)))
    assert [text.partition(": ")[0] for text in told().missing] == [
        "training, fsdp1",
        "training, fsdp2",
    ]


def test_a_torch_that_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec

    lacking = msgspec.structs.replace(CPU, features={**ALL, "fsdp2": False, "mem_tracker": False})
    monkeypatch.setattr(doctor, "probe_machine", lambda _python: lacking)
    diagnosis = told()
    assert diagnosis.missing == ()
    assert state(diagnosis)["FSDPMemTracker"] == "note"
    assert "training, fsdp2" not in state(diagnosis)
    assert {item.what for item in diagnosis.skipped} == {
        "everything on NCCL",
        "cases of fsdp2 (use --api fsdp1)",
        "the tracker rules of the property memory",
    }


def test_a_torch_without_what_newer_ones_have(monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec

    name = "FSDPModule.set_keep_unsharded_storage()"
    lacking = msgspec.structs.replace(CPU, features={**ALL, name: False})
    monkeypatch.setattr(doctor, "probe_machine", lambda _python: lacking)
    diagnosis = told()
    assert diagnosis.missing == ()
    assert state(diagnosis)["keep_unsharded_storage"] == "note"
    assert state(diagnosis)["finalization"] == "ok"
    (one,) = (
        item for item in diagnosis.skipped if item.what == "cases with keep_unsharded_storage"
    )
    assert one.why == f"torch 2.13.0+cpu has no {name}"


def test_little_memory_and_few_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "memory_limits", lambda: Memory(physical=64 << 30, cgroup=1 << 30))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    states = state(told(world_size=4))
    assert states["memory"] == "note"
    assert states["cores"] == "note"
    assert state(told(world_size=1))["memory"] == "ok"


def test_small_shared_memory_is_named_on_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "probe_machine", lambda _python: GPUS)
    monkeypatch.setattr(doctor, "memory_limits", lambda: Memory(shared=64 << 20))
    assert state(told())["/dev/shm"] == "note"
    assert "/dev/shm" not in state(told(backend="gloo"))


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, 0),
        ({"sys/fs/cgroup/memory.max": "max\n"}, 0),
        ({"sys/fs/cgroup/memory.max": "1073741824\n"}, 1 << 30),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "3000\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
            },
            3000,
        ),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/memory.max": "9000\n",
                "sys/fs/cgroup/a/memory.max": "3000\n",
                "sys/fs/cgroup/a/b/memory.max": "5000\n",
            },
            3000,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/x\n1:pids:/x\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "5000\n",
            },
            5000,
        ),
        ({"proc/self/cgroup": "0::/../x\n", "sys/fs/x/memory.max": "7\n"}, 0),
    ],
)
def test_limits_of_control_groups(files: dict[str, str], limit: int, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_limits(tmp_path).cgroup == limit


def test_memory_of_this_machine() -> None:
    memory = memory_limits()
    assert 0 < memory.available <= memory.physical
    assert memory.usable <= memory.physical
    assert (in_words(300 << 20), in_words(3 << 29)) == ("300 MiB", "1.5 GiB")
