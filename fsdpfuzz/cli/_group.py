"""Commands in a list: what each does in a whole sentence."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

_LONG = 10_000


class Group(TyperGroup):
    """A group whose help breaks sentences into lines, where typer cuts them off."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Name and first sentence of each command."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, c.get_short_help_str(_LONG)) for name, c in found if c and not c.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
