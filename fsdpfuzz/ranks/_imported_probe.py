"""Looks at code of your own, in a process of its own, without FSDP: what it is, what is wrong."""

from __future__ import annotations

import socket
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fsdpfuzz.case import LOWER, CaseSpec, Given, Plan, Tie
from fsdpfuzz.case.mesh import own_mesh
from fsdpfuzz.case.modules import Imported
from fsdpfuzz.case.modules.imported import MAX_CALLS, called_alike
from fsdpfuzz.case.written import written
from fsdpfuzz.ranks._imported import load
from fsdpfuzz.ranks._imported_accelerate import accelerated
from fsdpfuzz.ranks._imported_checks import (
    Trouble,
    check_model,
    check_steady,
    functions_of,
    in_float32,
)
from fsdpfuzz.ranks._imported_dtypes import low_dtypes, not_in_float64
from fsdpfuzz.ranks._imported_hooks import optimized, program_of
from fsdpfuzz.ranks._imported_mistakes import Recomputed, changed_in_forward, own_backward
from fsdpfuzz.ranks._imported_parts import (
    CLOSE,
    close,
    close_all,
    equal,
    fingerprint_of,
    kind,
    modules_of,
    where,
)
from fsdpfuzz.ranks._imported_recomputed import odd_modules
from fsdpfuzz.ranks._imported_watch import Watch, asked_outside, standing_alone, used_outside
from fsdpfuzz.ranks._imported_wrapped import Wrapped, Wrapper
from fsdpfuzz.steps.modules import imported as steps
from fsdpfuzz.wire import Look, Looked

replace = msgspec.structs.replace
STEPS = 3
"""Forwards that are looked at, to see whether each uses the same modules."""


@dataclass(slots=True)
class _Run:
    """One forward and backward without FSDP."""

    model: nn.Module
    loss: Tensor
    grads: dict[str, Tensor | None]
    watch: Watch


def main(given: bytes, channel: socket.socket) -> None:
    """Sends a `Looked` in JSON through the channel."""
    channel.sendall(msgspec.json.encode(look(msgspec.json.decode(given, type=Look))))


def look(asked: Look) -> Looked:
    """What there is to say of a target."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        return _Probe(asked).looked()
    except Trouble as trouble:
        cause = trouble.__cause__
        trace = "" if cause is None else "".join(traceback.format_exception(cause))
        return Looked(trouble=str(trouble), trace=trace[-4000:])


class _Probe:
    def __init__(self, asked: Look) -> None:
        self.asked = asked
        self.name = asked.target.title
        self.module = self.attempt("importing it", lambda: load(asked.target))
        found = functions_of(self.name, self.module, asked.target.part)
        self.functions, self.paths = found.made, found.paths
        self.notes: list[str] = []
        self.rewritten = ""
        """A parameter that a forward changes."""
        self.loss = "function" if "loss" in self.functions else "all"

    def looked(self) -> Looked:
        first = self.made()
        check_model(first)
        # Before it is called: running means of a norm hang on the batch.
        fingerprint = fingerprint_of(first.state_dict().values())
        self._same_again(first)
        given = self._checked_batch()
        if self.loss == "all":
            self.loss = self._loss_kind(first, given)
        run = self._train(torch.float32, 0)
        again = self._train(torch.float32, 0)
        if not close(run.loss, again.loss, CLOSE) or not close_all(run.grads, again.grads):
            raise Trouble(
                "your model is not deterministic without FSDP: two runs with equal seeds and "
                f"inputs gave the losses {float(run.loss)!r} and {float(again.loss)!r}, or other "
                "gradients. Draw random numbers from torch's own generator, which is seeded before "
                "each forward"
            )
        narrow = not_in_float64(self._lowered, run, self.module_file)
        self.notes += [narrow] if narrow else []
        later = [self._train(torch.float32, step) for step in range(1, STEPS)]
        structure = replace(self._structure(run, later), in_float64=not narrow)
        structure, recomputed = optimized(self, structure), self._recomputed()
        structure = replace(structure, recomputes=recomputed.recomputed())
        mistakes = (*self._mistakes(run), *recomputed.mistakes())
        wrapped = Wrapped(mistakes=mistakes, stuck=bool(self.rewritten))
        if not wrapped.stuck and self.asked.store and "shard" in self.functions:
            wrapped = Wrapper(self, structure).wrapped()
            structure = replace(structure, wrapped=True, **wrapped.facts)
        return Looked(
            refused=wrapped.refused,
            mistakes=wrapped.mistakes,
            stuck=wrapped.stuck,
            notes=tuple(self.notes),
            program=program_of(self, structure, wrapped.plan),
            plan=msgspec.Raw(msgspec.json.encode(wrapped.plan)),
            functions=tuple(self.functions),
            model=msgspec.Raw(msgspec.json.encode(structure)),
            fingerprint=fingerprint,
            inputs=fingerprint_of(t for t in tree_leaves(given) if isinstance(t, Tensor)),
            accelerated=accelerated(self.froze(), self.asked.configuration),
        )

    def attempt(self, what: str, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Trouble:
            raise
        # SystemExit too: code of your own may end itself, and the controller is to hear why.
        except BaseException as error:
            said = f"{type(error).__name__}: {error}".strip(": ")
            raise Trouble(f"{what} raised {said[:600]}{where(error, self.module_file)}") from error

    def froze(self) -> nn.Module:
        """The model as its own code freezes it."""
        made = self.made()
        if "freeze" in self.functions:
            self.attempt("freeze(model)", lambda: self.functions["freeze"](made))
        return made

    def _mistakes(self, run: _Run) -> Iterator[str]:
        """What is wrong without a plan, too."""
        if self.rewritten:
            yield changed_in_forward(self.rewritten)
        if run.watch.backwards:
            yield own_backward()

    def _recomputed(self) -> Recomputed:
        model = self.froze()
        found = Recomputed(model)
        with found.following():
            self.loss_of(model, self.given(torch.float32, 0))
        return found

    def case(self, structure: Imported, plan: Plan, words: Sequence[str] = ()) -> CaseSpec:
        """A case of the model, wrapped in this way."""
        return CaseSpec(
            world_size=self.asked.world_size,
            model=structure,
            mesh=own_mesh(structure),
            inputs=Given(),
            plan=plan,
            frozen=structure.own_frozen,
            ties=tuple(Tie(source=source, target=target) for source, target in structure.ties),
            program=written(words, plan, clips="clip" in self.functions) if words else (),
            loss="projection" if structure.loss == "all" else "own",
        )

    @property
    def module_file(self) -> str:
        """The target's own file, of which a line is named where something fails."""
        return self.asked.target.name.removesuffix(".py").replace(".", "/") + ".py"

    def made(self) -> nn.Module:
        torch.manual_seed(0)
        made = self.attempt("model()", self.functions["model"])
        if not isinstance(made, nn.Module):
            raise Trouble(f"model() returned a {type(made).__name__}: return an nn.Module")
        said = self.attempt("model().float()", lambda: in_float32(made))
        if said and said not in self.notes:
            self.notes.append(said)
        return made

    def _same_again(self, first: nn.Module) -> None:
        mine, other = dict(first.state_dict()), self.made().state_dict()
        for name, value in mine.items():
            if name not in other or not torch.equal(value, other[name]):
                raise Trouble(
                    f"model() is not deterministic: {name!r} differs between two calls under "
                    "torch.manual_seed(0). Every rank must build the same model; draw its "
                    "parameters from torch's own generator, or load them from a file"
                )

    def _checked_batch(self) -> Any:
        rank = self.asked.rank
        given = self.given(torch.float32, 0)
        tensors = [t for t in tree_leaves(given) if isinstance(t, Tensor)]
        if not tensors:
            raise Trouble(
                f"batch(0, {rank}) returned {type(given).__name__} without a tensor: return "
                "tensors, in a dict for model(**batch) or a tuple for model(*batch). Those in a "
                "class of your own are seen once torch.utils._pytree knows it, as by "
                "register_dataclass"
            )
        again = [t for t in tree_leaves(self.given(torch.float32, 0)) if isinstance(t, Tensor)]
        if len(again) != len(tensors) or any(
            not equal(a, b) for a, b in zip(tensors, again, strict=True)
        ):
            raise Trouble(
                f"batch(0, {rank}) gave other values when it was called again: it must depend on "
                "step and rank alone"
            )
        return given

    def given(self, dtype: torch.dtype, step: int) -> Any:
        rank = self.asked.rank
        return self.attempt(
            f"batch({step}, {rank})",
            lambda: steps.given(self.functions["batch"], 0, step, rank, torch.device("cpu"), dtype),
        )

    def _loss_kind(self, model: nn.Module, given: Any) -> str:
        """Where the loss comes from, where there is no ``loss(model, batch)``."""
        with torch.no_grad():
            found = self.attempt(
                "calling model() on batch(0, 0)", lambda: steps.called(model, given)
            )
        loss = found.get("loss") if isinstance(found, dict) else getattr(found, "loss", None)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            return "attribute"
        leaves = tree_leaves(vars(found) if hasattr(found, "__dataclass_fields__") else found)
        if not any(isinstance(t, Tensor) and t.is_floating_point() for t in leaves):
            raise Trouble(
                f"your model returned {type(found).__name__} without a floating-point tensor, so "
                "there is nothing to minimise: write loss(model, batch), which returns one number"
            )
        return "all"

    def _train(
        self, dtype: torch.dtype, step: int, *, quiet: bool = False, with_buffers: bool = True
    ) -> _Run:
        """A forward and a backward; ``quiet`` leaves what is raised as it is."""
        model = self.made().requires_grad_(True)
        # Before the cast: ``Module.to`` puts new tensors into the buffers' places.
        kept = {} if with_buffers else dict(model.named_buffers())
        steps.cast(model, torch.device("cpu"), dtype)
        for name, buffer in kept.items():
            path, _, own = name.rpartition(".")
            setattr(model.get_submodule(path), own, buffer)
        given = self.given(dtype, step)
        watch = Watch(model)

        def forward() -> Tensor:
            torch.manual_seed(step)
            with watch.following():
                loss: Tensor = self.loss_of(model, given)
                return loss

        name = str(dtype).removeprefix("torch.")
        attempt = (lambda _, act: act()) if quiet else self.attempt
        loss = attempt(f"training your model without FSDP, in {name},", forward)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            raise Trouble(
                f"loss(model, batch) returned {kind(loss)}: return one floating-point number"
            )
        if not loss.requires_grad:
            raise Trouble(
                "the loss does not require grad although all parameters do: nothing would be "
                "trained. Is something detached, or computed under torch.no_grad()?"
            )
        attempt(f"backward of your loss without FSDP, in {name},", loss.backward)
        grads = {n: p.grad for n, p in model.named_parameters()}
        return _Run(model, loss.detach(), grads, watch)

    def _lowered(self, dtype: torch.dtype, *, with_buffers: bool = True) -> _Run:
        return self._train(dtype, 0, quiet=True, with_buffers=with_buffers)

    def loss_of(self, model: nn.Module, given: Any) -> Any:
        match self.loss:
            case "function":
                return self.functions["loss"](model, given)
            case "attribute":
                return steps.loss_in(model, given)
            case _:
                return steps.returned(model, given).square().mean()

    def _structure(self, run: _Run, later: Sequence[_Run]) -> Imported:
        plain, watches = self.made(), [run.watch, *(other.watch for other in later)]
        steps.cast(plain, torch.device("cpu"), torch.float32)
        own = {n: p.requires_grad for n, p in plain.named_parameters()}
        if "freeze" in self.functions:
            self.attempt("freeze(model)", lambda: self.functions["freeze"](plain))
            own = {n: p.requires_grad for n, p in plain.named_parameters()}
        evaluated = Watch(run.model)
        run.model.eval()
        with torch.no_grad(), evaluated.following():
            given = self.given(torch.float32, 0)
            self.attempt("your model in eval mode", lambda: self.loss_of(run.model, given))
        run.model.train()
        every = [*watches, evaluated]
        outside = used_outside(every)
        if not run.watch.times[""]:
            raise Trouble(
                "loss(model, batch) never calls the model itself: FSDP gathers parameters when "
                "model(...) is called, not for its other methods"
            )
        if outside:
            raise Trouble(
                f"{outside!r} is used while the model is not called: FSDP gathers parameters for "
                "model(...) only, so loss() must not use them"
            )
        if run.watch.calls[:1] != [""] or run.watch.times[""] > 1:
            raise Trouble("loss(model, batch) has to call the model once")
        changed, random, loses = self._effects(plain)
        alone = standing_alone(run.model, every)
        runs = [run, *later]
        check_steady([r.grads for r in runs])
        paths = [name for name, _ in plain.named_modules()]
        # FSDP on ranks that call a unit a different number of times waits for ever.
        alone &= called_alike([r.watch.times for r in runs], paths)
        used = {n for n, g in run.grads.items() if g is not None}
        odd, asked = odd_modules(self, run, alone), asked_outside(run.model, every)
        holds = any(True for _ in plain.buffers())
        lower = (
            () if changed or random else low_dtypes(self._lowered, run, LOWER, with_buffers=True)
        )
        return Imported(
            target=self.asked.target.name,
            modules=modules_of(plain, used, own, alone, changed, odd, asked, run.watch.hidden),
            calls=tuple(run.watch.calls[1 : MAX_CALLS + 1]),
            loss=self.loss,  # type: ignore[arg-type]
            computes_in=lower,
            complex_buffers=any(b.is_complex() for b in plain.buffers()),
            computes_beside=low_dtypes(
                self._lowered, run, lower if holds else (), with_buffers=False
            ),
            random=random,
            loses=loses,
            functions=self.paths,
            layers=tuple(map(str, getattr(plain, "_no_split_modules", None) or ())),
        )

    def _effects(self, model: nn.Module) -> tuple[set[str], bool, bool]:
        """Buffers that a forward changes; whether it draws random numbers, or loses state."""
        given = self.given(torch.float32, 0)
        before = {n: b.clone() for n, b in model.named_buffers()}
        weights = {n: p.detach().clone() for n, p in model.named_parameters()}
        torch.manual_seed(0)
        state = torch.get_rng_state()
        with torch.no_grad():
            self.loss_of(model, given)
        random = not torch.equal(state, torch.get_rng_state())
        self.rewritten = next(
            (n for n, p in model.named_parameters() if not equal(p.detach(), weights[n])), ""
        )
        after = dict(model.named_buffers())
        changed = {n for n, b in after.items() if n not in before or not equal(b, before[n])}
        computed = any(after[n].is_floating_point() for n in changed)
        return changed, random, computed or not changed.issubset(model.state_dict())
