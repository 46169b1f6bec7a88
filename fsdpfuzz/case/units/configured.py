"""What an FSDP configuration of accelerate says, for the options that it speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fsdpfuzz.case.dimension import Api
from fsdpfuzz.case.modules import Imported
from fsdpfuzz.errors import UsageError, one_line

_TRUE = {"true": True, "yes": True, "false": False, "no": False}
_NOTHING = ("", "null", "none", "~")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Names and values of a file, each value as a text, and the model that it is for."""

    where: str
    """The file."""
    top: Mapping[str, str]
    own: Mapping[str, str]
    """Those of ``fsdp_config``."""
    model: Imported
    notes: list[str] = field(default_factory=list)
    """What it asks for, and does not get, in words."""

    @property
    def api(self) -> Api:
        """That of ``fsdp_version``, which is 1 where it is left out."""
        version = self.own.get("fsdp_version", "1")
        if version not in ("1", "2"):
            raise self.wrong("fsdp_version", "1 or 2")
        return "fsdp1" if version == "1" else "fsdp2"

    def wrong(self, name: str, wanted: str, value: str | None = None) -> UsageError:
        """That a value is none of those wanted; ``value`` where it is a part of the text."""
        given = self.own.get(name, self.top.get(name, "")) if value is None else value
        return UsageError(one_line(f"--config: {self.where}: {name}: {given!r}: give {wanted}"))

    def note(self, words: str) -> None:
        """Notes what it does not get."""
        self.notes.append(f"--config: {words}")

    def flag(self, name: str, *, default: bool) -> bool:
        """A truth value as YAML writes it; :class:`UsageError` for any other text."""
        text = self.own.get(name, "").lower()
        if text in _NOTHING:
            return default
        if text not in _TRUE:
            raise self.wrong(name, "true or false")
        return _TRUE[text]

    def one_of(self, name: str, values: Mapping[str, Any], default: str) -> Any:
        """What one of the texts in ``values`` stands for; :class:`UsageError` for any other."""
        text = self.own.get(name, "").removeprefix("FSDP.") or default
        if text not in values:
            raise self.wrong(name, f"one of {', '.join(values)}")
        return values[text]
