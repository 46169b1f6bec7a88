"""What ``shard(model, mesh)`` of your own makes, on all ranks together, and what it then does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore
from torch.optim import Optimizer

from fsdpfuzz.case import Anatomy, CaseSpec, Plan, anatomy
from fsdpfuzz.case.modules import Imported
from fsdpfuzz.ranks._imported_checks import Trouble
from fsdpfuzz.ranks._imported_freezing import FIXED, frozen_in, set_by_shard
from fsdpfuzz.ranks._imported_mistakes import (
    PATIENCE,
    Ranks,
    Recomputed,
    clipped_as_plain,
    loaded_apart,
    stale,
    waits_for_ever,
)
from fsdpfuzz.ranks._imported_parts import kind, where
from fsdpfuzz.ranks._imported_plan import UnreadableError, mesh_of, plan_of
from fsdpfuzz.ranks._imported_same import check_same
from fsdpfuzz.ranks._imported_shared import sharded_before, wrapped_once
from fsdpfuzz.ranks._sharded import Shard, Sharded
from fsdpfuzz.steps.modules import imported as steps
from fsdpfuzz.steps.names import parameters
from fsdpfuzz.wire import Look

_CPU = torch.device("cpu")


class Plain(Protocol):
    """A target without FSDP, as far as it is asked for here."""

    asked: Look
    functions: dict[str, Any]
    notes: list[str]

    def attempt(self, what: str, act: Callable[[], Any]) -> Any:
        """What it gives; what it raises in words."""

    @property
    def module_file(self) -> str:
        """The target's own file."""

    def made(self) -> nn.Module:
        """The model as ``model()`` makes it."""

    def froze(self) -> nn.Module:
        """The model as its own code freezes it."""

    def given(self, dtype: torch.dtype, step: int) -> Any:
        """What ``batch`` gives."""

    def loss_of(self, model: nn.Module, given: Any) -> Any:
        """The loss."""

    def case(self, structure: Imported, plan: Plan, words: Sequence[str] = ()) -> CaseSpec:
        """A case of the model."""


@dataclass(slots=True)
class Wrapped:
    """What was seen of a model that its own code wraps."""

    plan: Plan | None = None
    refused: str = ""
    mistakes: tuple[str, ...] = ()
    stuck: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    """What a case says of it."""


class Wrapper:
    """Wraps the model as its own code does, loads, trains a step, and clips, in this order."""

    def __init__(self, plain: Plain, structure: Imported) -> None:
        self._plain, self._structure = plain, structure
        asked = plain.asked
        store = FileStore(asked.store, asked.world_size)
        self._ranks = Ranks(store, asked.rank, asked.world_size)
        dist.init_process_group(
            "gloo",
            store=store,
            rank=asked.rank,
            world_size=asked.world_size,
            # Longer than a rank listens for the others, so that
            # each mistake is named before gloo gives up.
            timeout=timedelta(seconds=2 * PATIENCE),
        )

    def wrapped(self) -> Wrapped:
        """All that there is to say; :class:`Trouble` where it cannot be trained at all."""
        plain = self._plain
        model = plain.froze()
        # Before the wrapping, which moves parameters: mistakes
        # are told by the names of the plain model.
        recomputed, names = Recomputed(model), {id(p): n for n, p in model.named_parameters()}
        right = {name: value.clone() for name, value in model.state_dict().items()}
        wrapped, optimizer = self._sharded(model)
        try:
            plan, mesh = plan_of(wrapped), mesh_of(wrapped)
        except UnreadableError as error:
            raise Trouble(f"shard(model, mesh) {error}") from None
        loads = "load" in plain.functions
        found = Wrapped(plan=plan)
        self._structure = replace(self._structure, wrapped=True, mesh=mesh)
        a, shards = self._shards(wrapped, plan)
        check_same(a, shards)
        frozen = frozen_in(a, shards)
        left = frozen if self._decides(a, frozen) else None
        found.facts = {"loads": loads, "optimizes": optimizer is not None, "mesh": mesh}
        if left is not None:
            same = set(left) == set(self._structure.own_frozen)
            plain.notes.append(FIXED if same else set_by_shard(left))
            recomputed.forget(left)
            found.facts["leaves_frozen"] = left
        # Before the first forward: where fsdp2 is whole it registers other parameters.
        mistakes = [] if optimizer is None else list(stale(optimizer, wrapped, names))
        if loads:
            right = steps.weights(plain.froze())
            waits = self._loaded(wrapped, right)
            if waits:
                found.mistakes, found.stuck = (*mistakes, waits), True
                return found
        # After the loading and before the training, which changes the values.
        mistakes += self._apart(wrapped, plan, right, loads=loads)
        bare = list(wrapped_once(wrapped))
        with recomputed.following():
            found.refused, trained = self._trained(wrapped)
        mistakes += [*bare, *recomputed.mistakes()]
        own = self._structure.recomputes
        added = tuple(path for path in recomputed.recomputed() if path not in own)
        found.facts["shard_recomputes"] = added
        found.stuck = bool(bare) and not trained
        # Last: clipping needs gradients, and issues collectives that
        # a refused training leaves no rank for.
        if "clip" in plain.functions and trained and not found.refused:
            mistakes += self._clipped(wrapped)
        found.mistakes = tuple(mistakes)
        return found

    def _sharded(self, model: nn.Module) -> tuple[nn.Module, Optimizer | None]:
        made: list[Any] = []

        def shard(given: nn.Module, mesh: Any) -> Any:
            made.append(self._plain.functions["shard"](given, mesh))
            return made[0]

        try:
            # Through the step that a case calls, so that both
            # mean the same by "it returned a tuple".
            wrapped = steps.sharded(model, shard, _CPU)
        except Exception as error:
            said = _of_shard(error, self._plain.module_file) + sharded_before(model)
            raise Trouble(said) from error
        if not isinstance(wrapped, nn.Module):
            raise Trouble(f"shard(model, mesh) returned {kind(wrapped)}: return the model, or None")
        if not isinstance(made[0], tuple):
            return wrapped, None
        if len(made[0]) != 2 or not isinstance(made[0][1], Optimizer):
            raise Trouble(
                f"shard(model, mesh) returned a tuple of {len(made[0])}: return the model, or the "
                "model and its optimizer"
            )
        if "optimizer" not in self._plain.functions:
            raise Trouble(
                "shard(model, mesh) returns an optimizer: write optimizer(parameters), too, which "
                "makes the same one for the model without FSDP"
            )
        return wrapped, made[0][1]

    def _decides(self, a: Anatomy, frozen: tuple[str, ...]) -> bool:
        """Whether ``shard`` leaves this frozen whatever was before, or does not run otherwise."""
        own = self._structure.own_frozen
        if set(frozen) != set(own):
            return True
        # It may freeze the same as freeze() does, train all, or not run with what is frozen
        # otherwise, as where it registers hooks of gradients.
        every = {p.fqn for p in a.distinct}
        for trained in (True, False) if own else (False,):
            try:
                model, _ = self._sharded(self._plain.made().requires_grad_(trained))
                left = set(frozen_in(*self._shards(model, plan_of(model))))
            except (Trouble, UnreadableError):
                return True
            if left != (set() if trained else every):
                return True
        return False

    def _shards(self, wrapped: nn.Module, plan: Plan) -> tuple[Anatomy, tuple[Shard, ...]]:
        a = anatomy(self._plain.case(self._structure, plan))
        return a, Sharded(a, wrapped, parameters(wrapped, True)).shards

    def _loaded(self, model: nn.Module, state: dict[str, Tensor]) -> str:
        """Has its own code load; the mistake where ranks wait for others in it."""
        try:
            # A copy: torch puts its own tensors into what it is given.
            self._plain.functions["load"](model, state.copy())
        except Exception as error:
            waits = waits_for_ever(self._ranks)
            if waits:
                return waits
            said = f"{type(error).__name__}: {error}"[:600]
            file = self._plain.module_file
            raise Trouble(f"load(model, state) raised {said}{where(error, file)}") from error
        self._ranks.tell("loaded")
        return waits_for_ever(self._ranks)

    def _apart(
        self, model: nn.Module, plan: Plan, right: dict[str, Tensor], *, loads: bool
    ) -> list[str]:
        """Where shards are not those of the model, or of what was loaded."""
        # Once more: what is loaded may have come with parameters of its own.
        _, shards = self._shards(model, plan)
        said = loaded_apart(self._ranks, shards, right, loads=loads)
        return [said] if said else []

    def _trained(self, wrapped: nn.Module) -> tuple[str, bool]:
        """What FSDP says against it when it is called, as documented, and whether it trained."""
        plain = self._plain
        try:
            plain.loss_of(wrapped, plain.given(torch.float32, 0)).backward()
        except (ValueError, NotImplementedError) as error:
            return f"{type(error).__name__}: {error}", False
        except Exception:  # which training it will show, and make a finding of
            return "", False
        return "", True

    def _clipped(self, wrapped: nn.Module) -> list[str]:
        clip, file = self._plain.functions["clip"], self._plain.module_file
        try:
            return list(clipped_as_plain(wrapped, clip))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"[:600]
            raise Trouble(f"clip(model) raised {said}{where(error, file)}") from error


def _of_shard(error: Exception, file: str) -> str:
    said = f"shard(model, mesh) raised {type(error).__name__}: {error}{where(error, file)}"
    if "non-CPU accelerator" in str(error):
        said += ". To run here, too, give FullyShardedDataParallel device_id=torch.device("
        said += "mesh.device_type)"
    return said
