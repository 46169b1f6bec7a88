"""How FSDP wraps the model of a case, as a person would write it."""

from __future__ import annotations

import ast

from fsdpfuzz.case import CaseSpec, Imported, anatomy, lower
from fsdpfuzz.repro.classes import without_options
from fsdpfuzz.repro.fold import Substitute
from fsdpfuzz.repro.functions import makes
from fsdpfuzz.repro.imports import import_lines
from fsdpfuzz.repro.layout import laid_out, source
from fsdpfuzz.repro.source import names_in
from fsdpfuzz.repro.specialise import Specialiser
from fsdpfuzz.repro.statements import Writer
from fsdpfuzz.repro.tidy import CPU, tidied
from fsdpfuzz.repro.trainings import single


def plan_text(case: CaseSpec, backend: str) -> str:
    """The calls of ``fully_shard`` or ``FullyShardedDataParallel``, with the imports for them.

    ``model`` is the plain model, and the device is that of the ``backend``. Empty for a model that
    its own code wraps.
    """
    a = anatomy(case)
    if isinstance(case.model, Imported) and case.model.wrapped:
        return ""
    recipe = lower(a)
    meshes = [statement for statement in recipe.main if makes(statement, "mesh")]
    # FSDP's side alone: there is no plain model beside it.
    writer = Writer(both=False)
    made = [single(s) for s in writer.statements([*meshes[:1], *recipe.procedure("shard").body])]
    device = CPU if backend == "gloo" else ast.parse("torch.device('cuda')", mode="eval").body
    made = [Substitute({"device": device}).visit(statement) for statement in made]
    specialiser = Specialiser(direct=())
    body = specialiser.script(made, {"model", "rank", "device"})
    quoted = specialiser.quoted
    body = tidied(without_options([*quoted.definitions.values(), *body]))
    imports = {"torch": ("torch", ""), **writer.imports, **quoted.imports}
    used = {node.id for statement in body for node in names_in(statement)}
    wanted = {name: what for name, what in imports.items() if name in used}
    return laid_out("\n".join([*import_lines(wanted), "", source(body)])).strip()
