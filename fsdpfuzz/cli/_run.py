"""``fsdpfuzz run``."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from fsdpfuzz.cli._options import (
    MAX_RANKS,
    apis_of,
    chosen,
    known_file,
    usable_folder,
    whole,
    writable_parent,
)
from fsdpfuzz.errors import UsageError
from fsdpfuzz.loop import (
    OUTPUT,
    Event,
    RunFinished,
    RunSettings,
    SessionSettings,
    profile_named,
    properties_named,
)

MAX_SEED = 2**63 - 1
MAX_EXAMPLES = 100_000_000


def add(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="run")(run_command)


def run_command(
    properties: Annotated[
        list[str] | None, typer.Argument(metavar="PROPERTY", help="Which to run; default all.")
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="P", help="smoke, dev, ci, nightly or soak.")
    ] = "dev",
    max_examples: Annotated[
        int | None,
        typer.Option(
            parser=whole("--max-examples", 1, MAX_EXAMPLES),
            metavar="N",
            help="Cases to generate; default from the profile.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=whole("--seed", 0, MAX_SEED),
            metavar="N",
            help="Seed of the drawing; default random.",
        ),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(
            parser=whole("--world-size", 1, MAX_RANKS),
            metavar="N",
            help="Ranks; default from the profile.",
        ),
    ] = None,
    backend: Annotated[str, typer.Option(metavar="B", help="auto, gloo or nccl.")] = "auto",
    api: Annotated[str, typer.Option(metavar="A", help="fsdp1, fsdp2 or both.")] = "both",
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for cases, corpus and reports.")
    ] = OUTPUT,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Known findings fail, too.")] = False,
    known: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Known findings; else corpus/known.json.")
    ] = None,
    plant: Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION", hidden=True)] = None,
) -> None:
    """Search for FSDP bugs: draw training programs, run them on real ranks, shrink failures."""
    settings = settings_from(
        properties=tuple(properties or ()),
        profile=profile,
        max_examples=max_examples,
        seed=seed,
        world_size=world_size,
        backend=backend,
        api=api,
        output=output,
        strict=strict,
        known=known,
        plant=plant,
    )
    if json is not None:
        writable_parent(json, "--json")
    raise typer.Exit(_run(settings, json))


def settings_from(
    *,
    properties: tuple[str, ...],
    profile: str,
    max_examples: int | None,
    seed: int | None,
    world_size: int | None,
    backend: str,
    api: str,
    output: Path,
    strict: bool,
    known: Path | None,
    plant: str | None,
) -> RunSettings:
    """The settings that the options mean; :class:`UsageError` or :class:`MachineError`.

    Everything that can be checked without the ranks is checked before the machine is probed.
    """
    from fsdpfuzz.loop import resolve_machine

    chosen_profile = profile_named(profile)
    names = tuple(item.name for item in properties_named(properties))
    chosen(backend, ("auto", "gloo", "nccl"), "--backend")
    apis = apis_of(api)
    if plant is not None and plant.count(":") != 1:
        raise UsageError(f"--plant: {plant!r} is not MODULE:FUNCTION")
    known_path = known_file(known)
    usable_folder(output, "--output")
    world_sizes = chosen_profile.world_sizes if world_size is None else (world_size,)
    machine = resolve_machine(backend, world_sizes)
    if seed is None:
        seed = 0 if chosen_profile.derandomize else secrets.randbelow(2**32)
    return RunSettings(
        session=SessionSettings(
            backend=machine.backend,
            profile=chosen_profile,
            output=output,
            known=known_path,
            plant=plant,
            strict=strict,
            torch=machine.torch,
            seed=seed,
        ),
        properties=names,
        max_examples=max_examples or chosen_profile.max_examples,
        world_sizes=machine.world_sizes,
        apis=apis,
        database=None if chosen_profile.derandomize else "directory",
    )


REPORT = "report.html"


def _run(settings: RunSettings, json: Path | None) -> int:
    from fsdpfuzz.cli._progress import progress
    from fsdpfuzz.cli._table import print_summary
    from fsdpfuzz.loop import run, summary_document, write_json, write_script
    from fsdpfuzz.show import Recorder, write_report

    recorder = Recorder(settings.session.known)
    with progress() as show:

        def emit(event: Event) -> None:
            recorder(event)
            # Written first, so that a broken terminal cannot lose the result.
            if isinstance(event, RunFinished):
                if json is not None:
                    write_json(json, summary_document(event.summary))
                write_report(settings.session.output / REPORT, recorder.record())
            show(event)

        summary = run(settings, emit, script=write_script)
    print_summary(summary)
    return summary.exit_code
