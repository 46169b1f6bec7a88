"""``fsdpfuzz check``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from fsdpfuzz.loop import OUTPUT, RunSettings, target_named

if TYPE_CHECKING:
    from fsdpfuzz.case import Imported

EXAMPLES = 100
PROPERTIES = ("parity", "state_dict", "checkpoint", "fine_tune", "memory")
"""All but the order of execution, of which nothing is known in a model of your own."""


def add(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="check")(check_command)


def check_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A Python file, or package.module, with model() and batch()."
        ),
    ],
    init: Annotated[
        bool, typer.Option("--init", help="Write TARGET, a file to fill in, and stop.")
    ] = False,
    anyhow: Annotated[
        bool,
        typer.Option(
            "--anyhow", help="Wrap, freeze, checkpoint and train it in many ways. The default."
        ),
    ] = False,
    as_is: Annotated[
        bool, typer.Option("--as-is", help="Train it as your shard(model, mesh) wraps it.")
    ] = False,
    around: Annotated[
        bool, typer.Option("--around", help="Your shard with small changes: not there yet.")
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
    a file with comments. Your code is run, first without FSDP.

    Exit code 0 if nothing was found, 1 if FSDP trains it differently, 2 if your code cannot be
    checked, with the reason.
    """
    if init:
        write_template(Path(target))
        return
    depths = {"--anyhow": anyhow, "--as-is": as_is, "--around": around}
    depth = [name for name, on in depths.items() if on] or ["--anyhow"]
    if len(depth) > 1:
        raise UsageError(f"{' and '.join(depth)}: give one of them")
    if depth[0] != "--anyhow":
        raise UsageError(f"{depth[0]}: not there yet; --anyhow wraps your model in many ways")
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
    found, notes = looked_at(settings)
    for note in notes:
        print(f"{chosen.name}: {note}", file=sys.stderr)
    raise typer.Exit(run_parts([(replace(settings, model=found), 1)], json, junit))


def looked_at(settings: RunSettings) -> tuple[Imported, tuple[str, ...]]:
    """The model of the target, and what is to be said of it, without FSDP.

    :class:`UsageError` in words about the target's code where that cannot be checked.
    """
    from fsdpfuzz.pool import look_at

    session = settings.session
    if session.target is None:
        raise UsageError("TARGET: nothing was named")
    return look_at(session.target, max(settings.world_sizes), session.python)
