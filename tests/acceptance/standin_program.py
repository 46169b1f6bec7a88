"""The command line with stand-ins for the ranks, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.signals import usual_signals

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
import fsdpfuzz.loop, fsdpfuzz.loop._campaign, fsdpfuzz.loop._session
from fsdpfuzz.errors import ContractError, MachineError
from fsdpfuzz.loop import PROPERTIES, Ports, Resolved
from fsdpfuzz.loop._archive import FileArchive
from tests.unit.loop.standins import Bench, FakeKnown, Toy, finding, outs_of, verdict_of

mode = os.environ.get("MODE", "")
os.environ["FSDPFUZZ_KNOWN"] = "no-known"
Path("no-known").mkdir(exist_ok=True)
bench = Bench(Path("kept"))
lame = []
for name in PROPERTIES:
    PROPERTIES[name] = Toy(name=name, about="")

def judge(case, observation):
    wrong = ["big"] * (mode in ("fault", "known", "two", "stuck", "skip", "dies"))
    wrong += ["after"] * (mode == "two")
    return verdict_of(*(finding(name) for name in wrong if max(outs_of(case)) > 100))

def slow(case):
    if mode == "slow" or (mode == "stuck" and max(outs_of(case)) > 100):
        time.sleep(0.02 if mode == "slow" else 0.5)
    if mode == "one-is-slow" and not lame:
        try:
            Path("lame").touch(exist_ok=False)
            lame.append(True)
        except FileExistsError:
            lame.append(False)
    if lame and lame[0]:
        time.sleep(0.1)
    if mode in ("dies", "breaks") and len(bench.log) > 5:
        try:
            Path("died").touch(exist_ok=False)
        except FileExistsError:
            return
        if mode == "breaks":
            raise ContractError("a promise to itself")
        print("such is life", flush=True)
        os._exit(9)

def machine(backend, sizes, python=None):
    if mode == "no-gpu":
        raise MachineError("nccl needs 2 GPUs, but there are 0")
    backend = "gloo" if backend == "auto" else backend
    return Resolved(backend=backend, world_sizes=sizes, torch="9.9.9")

bench.judge, bench.before = judge, slow
bench.known = FakeKnown(
    lambda case, found: "K1" if mode == "known" else None,
    lambda case: ("K2",) if mode == "skip" and len(outs_of(case)) > 2 else (),
)
fsdpfuzz.loop.resolve_machine = machine
fsdpfuzz.loop._session.real_ports = lambda settings: Ports(
    make_pool=bench.pool,
    judge=judge,
    archive=FileArchive(settings.output, settings.kept),
    known=bench.known if settings.known is not None else FakeKnown(),
)
fsdpfuzz.loop._campaign.job_command = lambda: (sys.executable, __file__, "--job")
fsdpfuzz.loop.jobs_for = lambda backend: 2
if sys.argv[1:2] == ["--job"]:
    import fsdpfuzz.cli._job
    from fsdpfuzz.loop import Script
    script = Script(path=None, confirmed=False, note="none was asked for")
    fsdpfuzz.cli._job.write_script = lambda *_: script
    code = fsdpfuzz.cli._job.job(*sys.argv[2:])
else:
    from fsdpfuzz.cli import main
    code = main()
print("pools closed", [pool.closed for pool in bench.pools])
sys.exit(code)
"""


def call(
    program: list[str], *arguments: str, mode: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program, *arguments],
        cwd=Path(program[1]).parent,
        env={**os.environ, "MODE": mode, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def document(program: list[str]) -> dict[str, Any]:
    loaded = json.loads((Path(program[1]).parent / "result.json").read_text())
    assert isinstance(loaded, dict)
    return loaded


@contextmanager
def started(
    program: list[str], *arguments: str, mode: str = "", **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """The command while it runs, with signals as in a shell's foreground."""
    with subprocess.Popen(
        [*program, *arguments],
        cwd=Path(program[1]).parent,
        env={**os.environ, "MODE": mode, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=usual_signals,  # noqa: PLW1509
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def runs(program: list[str], output: str = ".fsdpfuzz") -> list[Path]:
    """The folders of the runs, the oldest first."""
    folder = Path(program[1]).parent / output / "runs"
    return sorted(path for path in folder.iterdir() if not path.is_symlink())
