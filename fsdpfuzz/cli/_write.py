"""``fsdpfuzz schema`` and ``fsdpfuzz new``: for cases that are written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fsdpfuzz.case import MAX_RANKS
from fsdpfuzz.cli._options import chosen, path_from, whole, writable_parent
from fsdpfuzz.errors import UsageError, one_line
from fsdpfuzz.loop import APIS

if TYPE_CHECKING:
    from fsdpfuzz.case import CaseSpec


def add(app: typer.Typer) -> None:
    """Registers the commands."""
    app.command(name="new")(new_command)
    app.command(name="schema")(schema_command)


def schema_command() -> None:
    """Print the JSON Schema of a case, with which an editor checks and completes it.

    In VS Code: "json.schemas": [{"fileMatch": ["*.case.json"], "url": "./case.schema.json"}]
    """
    import json

    print(json.dumps(schema_document(), indent=2))


def new_command(
    to: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            parser=path_from("-o"),
            metavar="FILE",
            help="Write it here, to no file that is.",
        ),
    ] = None,
    api: Annotated[str, typer.Option(metavar="A", help="fsdp1 or fsdp2.")] = "fsdp2",
    world_size: Annotated[
        int, typer.Option(parser=whole("--world-size", 1, MAX_RANKS), metavar="N", help="Ranks.")
    ] = 2,
) -> None:
    """Print a small case to start from: two layers, one of them a unit, two iterations.

    `fsdpfuzz explain` draws it, `fsdpfuzz replay` runs it, `fsdpfuzz minimize` reduces it.
    """
    from fsdpfuzz.case import pretty

    chosen(api, APIS, "--api")
    text = pretty(template(api, world_size))
    if to is None:
        print(text, end="" if text.endswith("\n") else "\n")
        return
    writable_parent(to, "-o")
    try:
        with to.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(one_line(f"-o: {to}: is there already; name another file")) from None
    except OSError as error:
        raise UsageError(one_line(f"-o: {to}: cannot be written: {error.strerror}")) from None


def template(api: str, world_size: int) -> CaseSpec:
    """The case to start from: nothing in it is unusual."""
    from fsdpfuzz.case import ITERATION, chain

    return chain(api, (3, 4, 2), (0,), world_size, ITERATION * 2)


def schema_document() -> dict[str, Any]:
    """The JSON Schema of a file with a case: the case alone, or with where it comes from."""
    import msgspec

    from fsdpfuzz.case import CaseSpec
    from fsdpfuzz.corpus import Found

    (case, found), parts = msgspec.json.schema_components(
        (CaseSpec, Found), ref_template="#/$defs/{name}"
    )
    envelope = {
        "title": "SavedCase",
        "type": "object",
        "properties": {
            "schema": parts["CaseSpec"]["properties"]["schema"],
            "case": case,
            "found": found,
            "origin": {"type": "string", "default": ""},
        },
        "required": ["case"],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fsdpfuzz case",
        # Told apart by one field, an editor completes the fields of the right one.
        "if": {"required": ["case"]},
        "then": envelope,
        "else": case,
        "$defs": parts,
    }
