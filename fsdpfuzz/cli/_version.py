"""``fsdpfuzz version``."""

from __future__ import annotations

import typer

import fsdpfuzz


def add(app: typer.Typer) -> None:
    """Registers the command."""
    app.command()(version)


def version() -> None:
    """Print the version of fsdpfuzz and of torch."""
    from fsdpfuzz.loop import installed_torch

    print(f"fsdpfuzz {fsdpfuzz.__version__}, torch {installed_torch() or 'not installed'}")
