"""``fsdpfuzz check``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fsdpfuzz.cli._options import (
    MAX_RANKS,
    PythonPath,
    folder_named,
    seconds_from,
    whole,
    writable_parent,
)
from fsdpfuzz.cli._progress import ENDLESS
from fsdpfuzz.cli._run import MAX_SECONDS, MAX_SEED, run_parts, settings_from
from fsdpfuzz.cli._template import write_template
from fsdpfuzz.errors import UsageError
from fsdpfuzz.loop import OUTPUT, Api, RunSettings, Summary, target_named

if TYPE_CHECKING:
    from fsdpfuzz.pool import Seen
    from fsdpfuzz.wire import Target

EXAMPLES = 100
PROPERTIES = ("parity", "state_dict", "checkpoint", "fine_tune", "memory")
"""All but the order of execution, of which nothing is known in a model of your own."""
AS_IS = ("parity", "state_dict", "memory")
AROUND = ("parity", "state_dict", "fine_tune")
Depth = Literal["as_is", "around", "anyhow"]


def add(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="check")(check_command)


def check_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A Python file, or package.module, with model() and batch(). FILE.py:NAME takes "
            "them from `class NAME:` in it, and from the file what that lacks.",
        ),
    ],
    init: Annotated[
        bool, typer.Option("--init", help="Write TARGET, a file to fill in, and stop.")
    ] = False,
    anyhow: Annotated[
        bool,
        typer.Option(
            "--anyhow",
            help="Wrap, freeze, checkpoint and train it in many ways. The default without shard.",
        ),
    ] = False,
    around: Annotated[
        bool,
        typer.Option(
            "--around",
            help="As your shard(model, mesh) wraps it, with one or two things changed: what is "
            "frozen, a checkpoint, a unit, the precision. The default with shard.",
        ),
    ] = False,
    as_is: Annotated[
        bool, typer.Option("--as-is", help="Train it as your shard(model, mesh) wraps it.")
    ] = False,
    max_examples: Annotated[
        int,
        typer.Option(
            parser=whole("--max-examples", 1, ENDLESS),
            metavar="N",
            help=f"In how many ways to train it; default {EXAMPLES}.",
        ),
    ] = EXAMPLES,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            parser=seconds_from("--max-seconds", MAX_SECONDS),
            metavar="SECONDS",
            help="Stop trying new ways after this time.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=whole("--seed", 0, MAX_SEED),
            metavar="N",
            help="The same seed tries the same ways; default random.",
        ),
    ] = None,
    world_size: Annotated[
        int,
        typer.Option(
            parser=whole("--world-size", 1, MAX_RANKS),
            metavar="N",
            help="Processes that train together; default 2.",
        ),
    ] = 2,
    backend: Annotated[
        str, typer.Option(metavar="B", help="gloo (CPU), nccl (a GPU each) or auto.")
    ] = "auto",
    api: Annotated[
        str,
        typer.Option(
            metavar="A",
            help="fsdp1 (FullyShardedDataParallel), fsdp2 (fully_shard) or both.",
        ),
    ] = "both",
    output: Annotated[
        Path,
        typer.Option(
            parser=folder_named("--output"), metavar="DIR", help="Folder for what is found."
        ),
    ] = OUTPUT,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write it as JUnit XML.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Known defects of FSDP fail, too.")
    ] = False,
    known: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Known defects; else corpus/known.")
    ] = None,
    python: PythonPath = None,
    plant: Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION", hidden=True)] = None,
) -> None:
    """Does FSDP train your own model right? Trains it with FSDP and without, and compares.

    TARGET is a Python file with two functions. model() makes your nn.Module, without FSDP.
    batch(step, rank) makes what it is called with. `fsdpfuzz check --init mymodel.py` writes such
    a file with comments, also on what else it may have. Your code is run, first without FSDP.

    Exit code 0 if nothing was found, 1 if FSDP trains it differently or your code has a mistake
    that is named, 2 if it cannot be checked, with the reason.
    """
    if init:
        write_template(Path(target))
        return
    depths: dict[Depth, bool] = {"as_is": as_is, "around": around, "anyhow": anyhow}
    asked = [name for name, given in depths.items() if given]
    if len(asked) > 1:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in asked)
        raise UsageError(f"{options}: give one of them")
    if json is not None:
        writable_parent(json, "--json")
    if junit is not None:
        writable_parent(junit, "--junit")
    chosen = target_named(target)
    settings = settings_from(
        properties=PROPERTIES,
        profile="dev",
        max_examples=max_examples,
        seed=seed,
        world_size=world_size,
        backend=backend,
        api=api,
        output=output,
        strict=strict,
        known=known,
        plant=plant,
        max_seconds=max_seconds,
        python=python,
    )
    settings = replace(settings, session=replace(settings.session, target=chosen))
    seen = _seen(settings, chosen, asked)
    depth: Depth = asked[0] if asked else "anyhow" if seen.plan is None else "around"
    mistakes = (*seen.mistakes, *advice(seen))
    for words in (*seen.notes, *mistakes):
        print(f"{chosen.title}: {words}", file=sys.stderr)
    if seen.stuck:
        print(f"{chosen.title}: nothing can be trained before that is right", file=sys.stderr)
        raise typer.Exit(1)
    if seen.refused:
        raise UsageError(
            f"{chosen.title}: FSDP refuses to train the model as shard(model, mesh) wraps it: "
            f"{seen.refused}"
        )
    settings = replace(settings, model=seen.model, plan=seen.plan, words=seen.program)
    if seen.plan is not None:
        from fsdpfuzz.case import Fsdp1Plan

        own: Api = "fsdp1" if isinstance(seen.plan, Fsdp1Plan) else "fsdp2"
        if own not in settings.apis:
            raise UsageError(f"--api: {api!r}, but shard(model, mesh) uses {own}")
        properties = AROUND if depth == "around" else AS_IS
        settings = replace(settings, apis=(own,), properties=properties, around=depth == "around")

    def more(summary: Summary, known: Path | None) -> Iterator[str]:
        yield from ways_around(summary, known)
        for words in mistakes if summary.findings else ():
            yield f"what is found may come from this: {words}"

    code = run_parts([(settings, 1)], json, junit, more=more)
    raise typer.Exit(code or (1 if mistakes else 0))


def _seen(settings: RunSettings, target: Target, asked: Sequence[Depth]) -> Seen:
    from fsdpfuzz.pool import look_at

    wraps = "anyhow" not in asked
    size = max(settings.world_sizes)
    seen = look_at(target, size, settings.session.python, wrapped=wraps)
    if asked and wraps and "shard" not in seen.functions:
        raise UsageError(
            f"--{asked[0].replace('_', '-')}: there is no function shard() in {target.title}: "
            "shard(model, mesh) wraps the model by fully_shard or FullyShardedDataParallel; "
            "--anyhow does without"
        )
    return seen


def ways_around(summary: Summary, known: Path | None) -> Iterator[str]:
    """What to do about each known defect that showed."""
    from fsdpfuzz.known import Known

    names = sorted({found.known for found in summary.findings if found.known is not None})
    defects = Known.load(known).defects if known is not None and names else {}
    for name in names:
        if name in defects:
            yield f"{name}: {defects[name].title}"
            yield f"  {defects[name].way_around or 'no way around is known'}"


def advice(seen: Seen) -> Iterator[str]:
    """What FSDP's documentation says against the plan of a target."""
    from fsdpfuzz.case import innermost

    paths = [] if seen.plan is None else [unit.path for unit in seen.plan.units]
    for source, target in seen.model.ties if paths else ():
        first, second = (innermost(n.rpartition(".")[0], paths) for n in (source, target))
        if first != second:
            units = " and ".join(_unit(path) for path in (first, second))
            yield (
                f"{source} and {target} are one parameter, but lie in {units}: FSDP needs both in "
                "one unit. Make no unit of the modules that hold them, so that the unit around "
                "both has it"
            )
    for fqn in _unmanaged(seen) if paths else ():
        yield (
            f"{fqn} lies in no unit: FSDP does not average its gradient over ranks. Make the whole "
            "model a unit last"
        )


def _unmanaged(seen: Seen) -> Iterator[str]:
    from fsdpfuzz.case import innermost, join

    paths = [] if seen.plan is None else [unit.path for unit in seen.plan.units]
    for module in seen.model.modules:
        if module.parameters and innermost(module.path, paths) is None:
            yield join(module.path, module.parameters[0].name)
            return


def _unit(path: str | None) -> str:
    if path is None:
        return "no unit"
    return f"unit {path!r}" if path else "the root's unit"
