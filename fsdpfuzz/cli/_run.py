"""``fsdpfuzz run``."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fsdpfuzz.case import MAX_RANKS
from fsdpfuzz.cli._jobs import Part, jobs_number, parts_of
from fsdpfuzz.cli._options import (
    InjectionName,
    JsonPath,
    JunitPath,
    KnownPath,
    PythonPath,
    apis_of,
    interpreter,
    known_file,
    path_from,
    seconds_from,
    usable_folder,
    whole,
    writable_parent,
)
from fsdpfuzz.cli._progress import ENDLESS
from fsdpfuzz.errors import UsageError
from fsdpfuzz.loop import (
    OUTPUT,
    Event,
    RunSettings,
    SessionSettings,
    Summary,
    profile_named,
    properties_named,
)

More = Callable[[Summary, Path | None], Iterable[str]]
MAX_SEED = 2**63 - 1
MAX_SECONDS = 366 * 86_400.0


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
            parser=whole("--max-examples", 1, ENDLESS),
            metavar="N",
            help="Cases to generate; default from the profile.",
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            parser=seconds_from("--max-seconds", MAX_SECONDS),
            metavar="SECONDS",
            help="Time to generate cases in; without --max-examples as many as fit.",
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
    backend: Annotated[
        str, typer.Option(metavar="B", help="auto, gloo, nccl, or all: both side by side.")
    ] = "auto",
    jobs: Annotated[
        int | None,
        typer.Option(
            parser=jobs_number,
            metavar="N",
            help="Runs side by side, which share the examples; auto: as many as do well here.",
        ),
    ] = None,
    api: Annotated[str, typer.Option(metavar="A", help="fsdp1, fsdp2 or both.")] = "both",
    output: Annotated[
        Path,
        typer.Option(
            parser=path_from("--output"),
            metavar="DIR",
            help="Folder in which each run gets one of its own, in DIR/runs.",
        ),
    ] = OUTPUT,
    json: JsonPath = None,
    junit: JunitPath = None,
    strict: Annotated[bool, typer.Option("--strict", help="Known findings fail, too.")] = False,
    known: KnownPath = None,
    python: PythonPath = None,
    against: Annotated[
        Path | None,
        typer.Option(
            parser=path_from("--against"),
            metavar="PATH",
            help="Python of another torch: report what differs from it, too.",
        ),
    ] = None,
    injection: InjectionName = None,
) -> None:
    """Search for FSDP bugs: draw training programs, run them on real ranks, shrink failures."""
    if json is not None:
        writable_parent(json, "--json")
    if junit is not None:
        writable_parent(junit, "--junit")

    def settings_on(name: str, seed: int | None) -> RunSettings:
        return settings_from(
            properties=tuple(properties or ()),
            profile=profile,
            max_examples=max_examples,
            seed=seed,
            world_size=world_size,
            backend=name,
            api=api,
            output=output,
            strict=strict,
            known=known,
            injection=injection,
            max_seconds=max_seconds,
            python=python,
            against=against,
        )

    raise typer.Exit(run_parts(parts_of(backend, jobs, seed, settings_on), json, junit))


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
    injection: str | None,
    max_seconds: float | None = None,
    python: Path | None = None,
    against: Path | None = None,
) -> RunSettings:
    """The settings that the options mean; :class:`UsageError` or :class:`MachineError`.

    Everything that can be checked without the ranks is checked before the machine is probed.
    """
    from fsdpfuzz.loop import resolve_machine

    chosen_profile = profile_named(profile)
    names = tuple(item.name for item in properties_named(properties))
    apis = apis_of(api)
    if injection is not None and injection.count(":") != 1:
        raise UsageError(f"--inject: {injection!r} is not MODULE:FUNCTION")
    known_path = known_file(known)
    usable_folder(output, "--output")
    world_sizes = chosen_profile.world_sizes if world_size is None else (world_size,)
    ranks_on = interpreter(python)
    machine = resolve_machine(backend, world_sizes, ranks_on)
    offers = machine.offers
    other = interpreter(against, "--against")
    if other is not None:
        there = resolve_machine(machine.backend, machine.world_sizes, other)
        other = msgspec.structs.replace(other, torch=there.torch)
        # What only one of both has is no difference worth a word.
        offers = tuple(name for name in offers if name in there.offers)
    if seed is None:
        seed = 0 if chosen_profile.derandomize else secrets.randbelow(2**32)
    return RunSettings(
        session=SessionSettings(
            backend=machine.backend,
            profile=chosen_profile,
            output=output,
            known=known_path,
            injection=injection,
            strict=strict,
            torch=machine.torch,
            offers=offers,
            seed=seed,
            python=ranks_on,
            against=other,
        ),
        properties=names,
        max_examples=max_examples or (ENDLESS if max_seconds else chosen_profile.max_examples),
        world_sizes=machine.world_sizes,
        apis=apis,
        max_seconds=max_seconds,
    )


def run_parts(
    parts: list[Part], json: Path | None, junit: Path | None, *, more: More | None = None
) -> int:
    """Runs the parts, shows what happens, writes the files; the exit code.

    ``more`` gives further lines to print below the summary.
    """
    from fsdpfuzz.cli._annotations import notes_of, wanted
    from fsdpfuzz.cli._files import Files
    from fsdpfuzz.cli._interrupt import Interrupts
    from fsdpfuzz.cli._progress import progress
    from fsdpfuzz.cli._table import print_summary
    from fsdpfuzz.loop import campaign, make_run_folder, run, write_script
    from fsdpfuzz.show import Recorder

    session = parts[0][0].session
    # After all that can be wrong with the options: a run that does not begin leaves no folder.
    folder = make_run_folder(session.output, session.seed)
    parts = [
        (replace(settings, session=replace(settings.session, kept=folder)), number)
        for settings, number in parts
    ]
    recorder = Recorder(session.known)
    files = Files(folder, recorder, json=json, junit=junit)
    with Interrupts() as interrupts, progress() as show:

        def emit(event: Event) -> None:
            recorder(event)
            # Written first, so that a broken terminal cannot lose the result.
            files(event)
            show(event)

        heeded = interrupts.heeded(emit)
        if sum(number for _, number in parts) == 1:
            summary = run(parts[0][0], heeded, script=write_script)
        else:
            summary = campaign(parts, heeded)
    print_summary(summary, recorder.known_cases, files.report)
    for line in more(summary, session.known) if more is not None else ():
        print(line)
    if wanted():
        print("\n".join(notes_of(summary)))
    for fault in files.faults:
        print(f"fsdpfuzz: {fault}", file=sys.stderr)
    return summary.exit_code or (2 if files.faults else 0)
