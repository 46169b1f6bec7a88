"""``fsdpfuzz check``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fsdpfuzz.case import MAX_RANKS
from fsdpfuzz.cli._options import (
    InjectionName,
    JsonPath,
    JunitPath,
    KnownPath,
    PythonPath,
    path_from,
    seconds_from,
    whole,
    writable_parent,
)
from fsdpfuzz.cli._progress import ENDLESS
from fsdpfuzz.cli._run import MAX_SECONDS, MAX_SEED, run_parts, settings_from
from fsdpfuzz.cli._template import write_template
from fsdpfuzz.errors import UsageError
from fsdpfuzz.loop import OUTPUT, Summary
from fsdpfuzz.own import OWN_PROPERTIES, Depth, target_named, task_of

EXAMPLES = 100


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
            "frozen, a checkpoint, a unit, the precision, the mesh. The default with shard.",
        ),
    ] = False,
    as_is: Annotated[
        bool, typer.Option("--as-is", help="Train it as your shard(model, mesh) wraps it.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            parser=path_from("--config"),
            metavar="FILE",
            help="Wrap it as this FSDP configuration of accelerate (YAML) says.",
        ),
    ] = None,
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
        typer.Option(parser=path_from("--output"), metavar="DIR", help="Folder for what is found."),
    ] = OUTPUT,
    json: JsonPath = None,
    junit: JunitPath = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Known defects of FSDP fail, too.")
    ] = False,
    known: KnownPath = None,
    python: PythonPath = None,
    injection: InjectionName = None,
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
        properties=OWN_PROPERTIES["anyhow"],
        profile="dev",
        max_examples=max_examples,
        seed=seed,
        world_size=world_size,
        backend=backend,
        api=api,
        output=output,
        strict=strict,
        known=known,
        injection=injection,
        max_seconds=max_seconds,
        python=python,
    )
    settings = replace(settings, session=replace(settings.session, target=chosen))
    task = task_of(
        chosen,
        max(settings.world_sizes),
        settings.session.python,
        depth=asked[0] if asked else None,
        config=config,
        on_gpus=settings.session.backend == "nccl",
        apis=settings.apis,
    )
    for words in (*task.notes, *task.mistakes):
        print(f"{chosen.title}: {words}", file=sys.stderr)
    if task.stuck:
        print(f"{chosen.title}: nothing can be trained before that is right", file=sys.stderr)
        raise typer.Exit(1)
    settings = replace(
        settings,
        properties=task.properties,
        model=task.model,
        plan=task.plan,
        apis=task.apis,
        around=task.around,
        words=task.words,
    )

    def more(summary: Summary, known: Path | None) -> Iterator[str]:
        yield from ways_around(summary, known)
        for words in task.mistakes if summary.findings else ():
            yield f"what is found may come from this: {words}"

    code = run_parts([(settings, 1)], json, junit, more=more)
    raise typer.Exit(code or (1 if task.mistakes else 0))


def ways_around(summary: Summary, known: Path | None) -> Iterator[str]:
    """What to do about each known defect that showed."""
    from fsdpfuzz.known import Known

    names = sorted({found.known for found in summary.findings if found.known is not None})
    defects = Known.load(known).defects if known is not None and names else {}
    for name in names:
        if name in defects:
            yield f"{name}: {defects[name].title}"
            yield f"  {defects[name].way_around or 'no way around is known'}"
