"""A look at code of your own before anything is drawn, in processes that are no ranks yet."""

from __future__ import annotations

import signal
import socket
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from fsdpfuzz.case import Fsdp1Plan, Fsdp2Plan, Imported, ImportedModule
from fsdpfuzz.case.modules.imported import called_alike, depends_on_data
from fsdpfuzz.errors import MachineError, PoolError, UsageError, one_line
from fsdpfuzz.forkserver import ForkServer, Interpreter, ServerLostError
from fsdpfuzz.pool._machine import read_to_end
from fsdpfuzz.wire import Accelerated, Look, Looked, Target

_PROBE = "fsdpfuzz.ranks._imported_probe:main"
_END_SECONDS = 10.0
_Plans = Fsdp1Plan | Fsdp2Plan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A target without FSDP, and with its own."""

    model: Imported
    plan: Fsdp1Plan | Fsdp2Plan | None
    """What its ``shard(model, mesh)`` makes, if that was asked."""
    refused: str
    """What FSDP says against that, as documented; empty if nothing."""
    functions: tuple[str, ...]
    program: tuple[str, ...]
    """What its ``program()`` lists."""
    mistakes: tuple[str, ...]
    """What its code does wrong, each named, in words."""
    stuck: bool
    """Whether a mistake keeps ranks from going on at all."""
    notes: tuple[str, ...]
    """What else there is to say of it, in words."""
    accelerated: Accelerated | None
    """What accelerate makes of the configuration, where it was given one and is installed."""


def look_at(
    target: Target,
    world_size: int,
    python: Interpreter | None = None,
    *,
    wrapped: bool = False,
    configuration: Mapping[str, str] | None = None,
) -> Seen:
    """The structure of the model that a target makes; with ``wrapped`` also how its own code
    wraps it, if it does; with a ``configuration`` how accelerate's own code does.

    Its code is run in a process for each rank, without FSDP. Raises :class:`UsageError` in words
    about that code where it cannot be checked.
    """
    found = _ask(target, world_size, python, wrapped, dict(configuration or {}))
    for looked in found:
        if looked.trouble:
            # A rank fails, too, where another one made the mistake.
            raise UsageError(f"{target.title}: {next(iter(_mistakes(found)), looked.trouble)}")
    models = [msgspec.json.decode(looked.model, type=Imported) for looked in found]
    first = models[0]
    for rank, (looked, model) in enumerate(zip(found, models, strict=True)):
        if _fixed(model) != _fixed(first):
            raise UsageError(
                f"{target.title}: ranks build different models: that of rank {rank} has other "
                "modules or parameters than that of rank 0"
            )
        if looked.fingerprint != found[0].fingerprint:
            raise UsageError(
                f"{target.title}: ranks build different models: under the same seed model() gives "
                f"rank {rank} other parameters than rank 0"
            )
    notes = list(dict.fromkeys(note for looked in found for note in looked.notes))
    # A note and no mistake: a model may be tried on one batch.
    if world_size > 1 and len({looked.inputs for looked in found}) == 1:
        notes.append("batch(step, rank) gives all ranks the same, which hides a missing average")
    plans = [msgspec.json.decode(looked.plan, type=_Plans) for looked in found]
    if any(plan != plans[0] for plan in plans):
        raise UsageError(f"{target.title}: shard(model, mesh) wraps other modules on each rank")
    together = _together(target, models)
    return Seen(
        model=together,
        plan=plans[0],
        refused=next((looked.refused for looked in found if looked.refused), ""),
        functions=found[0].functions,
        program=found[0].program,
        mistakes=_mistakes(found),
        stuck=any(looked.stuck for looked in found),
        notes=tuple(notes),
        accelerated=found[0].accelerated,
    )


def _mistakes(found: Iterable[Looked]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words for looked in found for words in looked.mistakes))


def _fixed(model: Imported) -> object:
    """What must be the same on all ranks."""
    return [
        (m.path, m.cls, [(p.name, p.shape, p.frozen, p.tied) for p in m.parameters], m.buffers)
        for m in model.modules
    ]


def _together(target: Target, models: list[Imported]) -> Imported:
    """The first, with units where all of them can have one."""
    first, replace = models[0], msgspec.structs.replace
    counts = [Counter(model.calls) for model in models]
    alike = called_alike(counts, [module.path for module in first.modules])
    modules: list[ImportedModule] = []
    for places in zip(*(model.modules for model in models), strict=True):
        for rank, place in enumerate(places):
            for mine, other in zip(places[0].parameters, place.parameters, strict=True):
                if mine.used != other.used:
                    name = f"{place.path}.{mine.name}".lstrip(".")
                    raise UsageError(f"{target.title}: {depends_on_data(name, f'rank {rank}')}")
        alone = places[0].path in alike and all(place.alone for place in places)
        repeats = all(place.repeats for place in places)
        modules.append(replace(places[0], alone=alone, repeats=repeats))
    lower = tuple(name for name in first.computes_in if all(name in m.computes_in for m in models))
    return replace(first, modules=tuple(modules), computes_in=lower)


def _ask(
    target: Target,
    world_size: int,
    python: Interpreter | None,
    wrapped: bool,
    configuration: dict[str, str],
) -> list[Looked]:
    server = ForkServer.get(python=python)
    if server.worker_failure:
        raise MachineError(f"this torch cannot run FSDP: {server.worker_failure}")
    pairs = [socket.socketpair() for _ in range(world_size)]
    found: list[Looked] = []
    folder = server.make_folder(None)
    with tempfile.TemporaryFile() as output:
        try:
            store = str(folder / "store") if wrapped else ""
            asked = [
                Look(
                    target=target,
                    rank=rank,
                    world_size=world_size,
                    store=store,
                    configuration=configuration,
                )
                for rank in range(world_size)
            ]
            # One file for what all of them print: it is shown where one ends without an answer.
            fds = [fd for _, theirs in pairs for fd in (theirs.fileno(), output.fileno())]
            pids = server.fork(_PROBE, asked, fds)
            for _, theirs in pairs:
                theirs.close()
            for (ours, _), pid in zip(pairs, pids, strict=True):
                # One after the other is enough: what a later one says waits in its socket.
                answer = read_to_end(ours)
                if server.await_end(pid, _END_SECONDS) is None:
                    server.signal([pid], signal.SIGKILL)
                found.append(msgspec.json.decode(answer, type=Looked))
            return found
        except ServerLostError as error:
            raise PoolError(f"the process that looks at {target.name} was lost: {error}") from None
        except TimeoutError:
            server.signal(pids, signal.SIGKILL)
            raise UsageError(
                f"{target.title}: your code did not come to an end within two minutes, without FSDP"
            ) from None
        except msgspec.MsgspecError:
            output.seek(0)
            said = one_line(output.read(4000).decode(errors="replace").strip(), limit=600)
            raise UsageError(
                f"{target.title}: your code ended the process that ran it, without FSDP: {said}"
            ) from None
        finally:
            for ours, theirs in pairs:
                ours.close()
                theirs.close()
            server.remove_folder(folder)
