"""What the controller and a process say to each other about code of your own."""

from __future__ import annotations

import msgspec


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Whose code may be run: named on the command line, and nowhere else.

    ``name`` is what cases call it: ``mymodel.py``, or ``package.module``. ``folder`` is where
    Python finds it. ``part`` is the class in it that holds the functions, or some of them; empty
    for the file's own.
    """

    name: str
    folder: str
    part: str = ""

    @property
    def module(self) -> str:
        """The name under which Python imports it."""
        return self.name.removesuffix(".py")

    @property
    def title(self) -> str:
        """As the command line names it: ``mymodel.py:llama``."""
        return f"{self.name}:{self.part}" if self.part else self.name


class Accelerated(msgspec.Struct, frozen=True, kw_only=True):
    """What accelerate's own code makes of a configuration."""

    version: str
    units: tuple[str, ...] = ()
    """FQNs of the modules that it makes units of, but the root."""
    refused: str = ""
    """What it raises, in words."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a process to look at a target as one rank of several."""

    target: Target
    rank: int
    world_size: int
    store: str = ""
    """A file by which the ranks find each other, to look at ``shard(model, mesh)``, too."""
    configuration: dict[str, str] = {}
    """The section ``fsdp_config`` of a configuration of accelerate, to ask that of it."""


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What it found: the model's structure as part of a case, or what is wrong, in words."""

    trouble: str = ""
    trace: str = ""
    """The end of the traceback, of what your code raised."""
    model: msgspec.Raw = msgspec.Raw(b"null")
    plan: msgspec.Raw = msgspec.Raw(b"null")
    """What ``shard(model, mesh)`` makes, as part of a case."""
    mistakes: tuple[str, ...] = ()
    """What your code does wrong, each named, in words."""
    stuck: bool = False
    """Whether a mistake keeps ranks from going on at all."""
    notes: tuple[str, ...] = ()
    """What else there is to say, in words."""
    program: tuple[str, ...] = ()
    """What ``program()`` lists."""
    refused: str = ""
    """What FSDP says against that when the model is called, as documented."""
    functions: tuple[str, ...] = ()
    """Those of the target that are known."""
    fingerprint: str = ""
    """Of all that ``model()`` has set in parameters and buffers."""
    inputs: str = ""
    """Of what ``batch()`` gave."""
    accelerated: Accelerated | None = None
    """None where nothing was asked of accelerate, or it is not installed."""
