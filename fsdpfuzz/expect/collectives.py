"""Which collectives FSDP issues in a forward and in a backward: arithmetic on the case.

A unit is gathered whenever it is called, or backward comes to it, while it is sharded, in the
dtype that it computes in. What happens to it after forward its strategy says (fsdp1), or
``reshard_after_forward``; a root stays whole by default. After backward every unit is sharded
again, but for those of ``SHARD_GRAD_OP`` under ``no_sync``. Where gradients are synchronised, each
unit that has any reduces them once: over its shards, over replicas if there are several, or, where
it is not sharded, over all ranks. Prefetching changes when units are gathered, not how often, and
the next unit in backward is gathered before the present one's gradients are reduced, and the one
after it behind that. For a function that is applied to each module fsdp1 gathers what is sharded,
in its own dtype, and fsdp2 nothing.

Where nothing is promised at all `fsdpfuzz.expect.promised` says, and besides
- where ranks take different paths, and from a call of anything but the root, a forward whose loss
  is thrown away, or a change of ``requires_grad`` while a unit is whole, on;
- from a forward or backward on in which a unit (fsdp2) prefetches what is not called after it;
- from a backward of several forwards on that read different parameters of one unit (fsdp2).

Only bounds hold for units that are called several times before a backward, for those that
backward does not reach, after an exception, and for fsdp1's units in a recomputed region: there
the next forward, and the next backward, may find them whole or sharded. fsdp2 gathers in vain
where its order of calls holds others than those of the present iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from fsdpfuzz.case import Anatomy, Forward, Situation, kept_whole, within
from fsdpfuzz.case.operations import Apply, Op, Reshard, Unshard
from fsdpfuzz.case.units.precision import computed_in, flat_dtype, reduced_in
from fsdpfuzz.case.units.replicas import belongs_to
from fsdpfuzz.case.units.reshard_after_forward import told_ranks
from fsdpfuzz.case.units.sharding import is_replicated, is_whole
from fsdpfuzz.case.wrap import Fsdp1Unit, Fsdp2Unit
from fsdpfuzz.expect.bytes import gathered_in, shard_numel
from fsdpfuzz.expect.calls import Pass, UnitCalls, called_again, calls_of
from fsdpfuzz.expect.order import parting
from fsdpfuzz.expect.prefetches import Turn, backward_order, begun_in_turn, ended_in_turn, gathered
from fsdpfuzz.expect.promised import promises_traffic
from fsdpfuzz.expect.traffic import ANY, EITHER, SHARDED, WHOLE, Bounds, Traffic, collective


def traffic(
    a: Anatomy, rank: int, *, settled: bool = True, own: bool = False
) -> Mapping[int, Traffic]:
    """The collectives of each operation of which anything is promised, by index.

    ``settled`` says that fsdp2 leaves a unit whole that is recomputed in backward, and reshards a
    root after forward if asked to: older versions of torch did neither. ``own`` says that fsdp2
    reduces in the parameters' own dtype unless told another, as newer versions do.
    """
    # Without a switch all ranks are alike, and are worked out once.
    return _traffic(a, rank if a.switches else 0, settled, own and not a.fsdp1)


@lru_cache(maxsize=64)
def _traffic(a: Anatomy, rank: int, settled: bool, own: bool) -> Mapping[int, Traffic]:
    return dict(_Follower(a, settled, own).follow(rank))


class _Follower:
    """Follows the units of a case through its program."""

    def __init__(self, a: Anatomy, settled: bool, own: bool) -> None:
        self._a = self._now = a
        self._settled, self._own = settled, own
        self._part = parting(a)
        self._begin()

    def _begin(self) -> None:
        """With the units of a model that was just wrapped."""
        self._state: dict[str, Bounds] = {}
        self._on_fewer: set[str] = set()
        """Units (fsdp2) left sharded over fewer ranks until a backward reaches their root."""
        self._in_vain: set[str] = set()
        """Units that a backward may have gathered for nothing, and that nobody has finalized."""
        self._pending = Pass()
        self._unreduced: dict[str, set[str]] = {}
        """Parameters (fsdp2) with gradients that wait for their reduction."""
        self._frozen_first: dict[str, bool] = {}
        """For each unit whether it was frozen when it was called first."""
        self._stale: set[str] = set()
        """Roots under which calls were recorded that no backward has followed."""
        self._compared: set[str] = set()
        """Roots (fsdp1) that no longer compare the order of their ranks."""
        self._told: set[str] = set()
        """Roots (fsdp2) that were ever told a number of ranks, and may still be so sharded."""
        self._sync = True
        self._trained: dict[str, bool] = {}

    def follow(self, rank: int) -> Iterator[tuple[int, Traffic]]:
        a = self._a
        for i, op, now in a.situations(rank):
            # Before the plan is taken that holds from here on.
            if op.renews or i == 0:
                self._begin()
            self._now = a.at(i)
            if i == self._part:
                return
            self._told |= told_ranks(self._now).intersection(self._now.roots)
            settled = self._settled or not self._told
            if not promises_traffic(self._now, settled=settled):
                continue
            if isinstance(op, Forward):
                made = None if op.drop or op.target else calls_of(self._now, op, now)
                if made is None or not begun_in_turn(self._now, made.begun):
                    return
                yield i, self._forward(op, now, made)
            elif op.gives_gradients:
                if self._changes_dtype(now) or not ended_in_turn(self._now, self._pending.ended):
                    return
                # fsdp2 reduces what has a gradient each time that a call of the unit is through.
                if not a.fsdp1 and self._pending.apart:
                    return
                yield i, self._backward(twice=op.goes_back_again)
            elif isinstance(op, Unshard | Reshard):
                self._on_fewer.discard(op.unit)
                self._state[op.unit] = WHOLE if isinstance(op, Unshard) else SHARDED
            elif op.starts_over:
                self._started_over(now)
            elif op.interrupts:
                if told_ranks(self._now):
                    return
                # Some are as after a forward, others as before, or whole in the midst of it.
                self._state = dict.fromkeys(self._now.units, EITHER)
                self._stale.update(self._now.roots)
            elif self._on_fewer:
                return  # whoever looks into them may shard them over all ranks
            elif op.changes_units:
                pass  # what the forwards to come do
            elif now.trained != self._trained and set(self._state.values()) - {SHARDED}:
                return  # fsdp2 does not tell units that are whole
            else:
                if isinstance(op, Apply) and (a.fsdp1 or not op.smooth):
                    yield i, self._applied(op)
                self._state = {p: self._after_a_look(p, op, s) for p, s in self._state.items()}
            self._trained = dict(now.trained)

    def _applied(self, op: Apply) -> Traffic:
        """fsdp1 gathers in the parameters' own dtype; fsdp2 has each rank change its shards."""
        a, found = self._now, Traffic()
        for path in a.units if a.fsdp1 else ():
            if a.managed.get(path) and not is_whole(a, path) and within(path, op.module):
                state = self._state.get(path, SHARDED)
                number = SHARDED if self._is_low(path) else state
                if path in self._in_vain:
                    number = Bounds(0, number.most)
                text = collective("all_gather", flat_dtype(a, path), shard_numel(a, path))
                found.add(text, number, path)
        return found

    def _is_low(self, path: str) -> bool:
        """Whether a unit (fsdp1) computes in another dtype than it stores."""
        now = self._now
        return computed_in(now.options[path]) not in (None, flat_dtype(now, path))

    # ``FSDPState._reset_iter_state`` in fsdp/_fully_shard/_fsdp_state.py.
    def _started_over(self, now: Situation) -> None:
        """Nothing is left of the iteration (fsdp2), but that its units may have been called."""
        self._state, self._pending, self._unreduced = {}, Pass(), {}
        for kept in (self._on_fewer, self._in_vain, self._stale):
            kept.clear()
        for path, parameters in self._now.managed.items():
            if path is not None:
                frozen = not any(now.trained[p.fqn] for p in parameters)
                self._frozen_first.setdefault(path, frozen)

    # ``FlatParamHandle._get_padded_unsharded_flat_param`` in fsdp/_flat_param.py frees the lower.
    def _after_a_look(self, path: str, op: Op, state: Bounds) -> Bounds:
        """Who looks into a whole unit may shard it; fsdp1 does so if that is in less precision."""
        lower = self._a.fsdp1 and self._is_low(path)
        return SHARDED if state == SHARDED or (op.looks_whole and lower) else EITHER

    def _changes_dtype(self, now: Situation) -> bool:
        """Whether a unit (fsdp2) in a lower dtype is trained that was frozen at first."""
        a = self._now
        return not a.fsdp1 and any(
            frozen
            and reduced_in(a.options[path]) is not None
            and any(now.trained[p.fqn] for p in a.managed[path])
            for path, frozen in self._frozen_first.items()
        )

    def _forward(self, op: Forward, now: Situation, made: Pass) -> Traffic:
        a, found = self._now, Traffic()
        gathers: dict[str, list[str]] = {}
        certain = all(calls.times == 1 for calls in made.units.values())
        for path in made.begun:
            number = self._state.get(path, SHARDED)
            if path in self._in_vain:
                number = Bounds(0, number.most)
                self._in_vain.discard(path)
            frozen = not any(now.trained[p.fqn] for p in a.managed[path])
            # fsdp2 settles the dtype of a unit's reduction at its first
            # forward, by what requires grad then (pytorch issue 186998).
            self._frozen_first.setdefault(path, frozen)
            if not is_whole(a, path):
                text = self._gather(path)
                found.add(text, number, path)
                gathers[path] = [text] * number.least
                certain &= number.least == number.most
                self._state[path] = self._after_forward(path)
            self._compares(path, 1, found)
        # Two units of one size and dtype cannot be told apart by what they issue.
        order = [text for path in gathered(a, made.begun) for text in gathers.get(path, ())]
        if certain and len(set(order)) == len(order):
            found.order = tuple(order)
        if op.grad:
            self._pending.add(made)
            self._sync = op.sync
        else:
            self._stale.update(map(self._root, made.units))
        return found

    def _after_forward(self, path: str) -> Bounds:
        a, unit = self._now, self._now.options[path]
        self._on_fewer.discard(path)
        if isinstance(unit, Fsdp1Unit):
            return WHOLE if path in a.roots or path in kept_whole(a) else SHARDED
        asked, ranks = unit.reshard_after_forward, a.shards(path)
        if asked is None:
            return WHOLE if path in a.roots else SHARDED
        if not isinstance(asked, bool) and asked not in (1, ranks):
            self._on_fewer.add(path)
        elif path in a.roots and asked is not False and not self._settled:
            return EITHER
        return WHOLE if asked is False or (asked == 1 and asked is not True) else SHARDED

    def _backward(self, *, twice: bool) -> Traffic:
        found, made = Traffic(), self._pending
        self._pending = Pass()
        self._back_through(made, found)
        if twice:
            # Nothing is prefetched: the first one has forgotten the order of the calls.
            self._back_through(made, found)
            found.early = ()
        return found

    def _back_through(self, made: Pass, found: Traffic) -> None:
        a, root = self._now, self._root
        reached = {root(path) for path, calls in made.units.items() if calls.reached} | made.bare
        own = {
            path: self._gathered(path, calls, made, found)
            for path, calls in made.units.items()
            if not is_whole(a, path)
        }
        for path in () if a.fsdp1 else set(a.units) - set(made.units):
            if a.managed.get(path) and self._root(path) in self._stale & reached:
                own[path] = Bounds(0, ANY)  # an older call's turn
                found.add(self._gather(path), own[path], path)
        for path, calls in made.units.items():
            self._compares(path, called_again(self._now, path, calls), found)
        early = list(self._in_time(made, {p for p, number in own.items() if number == SHARDED}))
        for path in a.units:
            if self._root(path) in reached and a.managed.get(path):
                again = path in made.units and made.units[path].times > 1
                self._reduced(path, made.trained.get(path, set()), found, again=again)
        # Only of what is issued once: of two alike nobody knows which came first.
        found.early = tuple(
            pair for pair in early if all(found.numbers[text] == SHARDED for text in pair)
        )
        for path in a.units:
            self._ended(path, made.units.get(path, UnitCalls()), reached)
        self._stale |= {self._root(path) for path in made.units} - reached
        self._stale -= reached
        self._compared |= reached
        self._finalized(reached, {p for p, number in own.items() if number.least < number.most})

    def _finalized(self, reached: set[str], unsure: set[str]) -> None:
        """Forgets the order of calls and what was gathered for nothing, or leaves both.

        ``unsure`` are the units of which nobody knows how often backward gathered them. Without
        synchronisation the program finalizes nothing: until it does, both stay
        (``FSDPState._end_backward_iteration`` in
        torch/distributed/fsdp/_fully_shard/_fsdp_state.py).
        """
        if self._a.case.finalization == "automatic" or self._sync:
            self._in_vain -= {path for path in self._in_vain if self._root(path) in reached}
        else:
            self._in_vain |= unsure
            self._stale |= reached

    def _gathered(self, path: str, calls: UnitCalls, made: Pass, found: Traffic) -> Bounds:
        """How often a backward gathers a unit that was called."""
        a, root, state = self._now, self._root(path), self._state[path]
        again = called_again(self._now, path, calls)
        least, most = state
        if a.fsdp1:
            if not calls.reached or calls.reached < calls.recorded:
                least = 0
            most = most * ((1 if calls.reached else 0) + again)
        else:
            beside = [c for p, c in made.units.items() if self._root(p) == root]
            several = any(c.times > 1 for c in beside)
            if several or root in self._stale or (again and not self._settled):
                most = ANY
            elif not calls.reached:
                most += again
                least = 0
            elif any(c.reentrant for c in a.case.checkpoints):
                most += again
            if calls.reached < calls.times:
                least = 0
        text = self._gather(path)
        found.add(text, Bounds(least, most), path)
        if most == ANY and path in self._on_fewer:
            found.add(self._gather(path, from_all=True), Bounds(0, ANY), path)
        return Bounds(least, most)

    def _compares(self, path: str, times: int, found: Traffic) -> None:
        """In the first iteration fsdp1's ranks may compare which unit each of them calls."""
        a = self._now
        checks = a.fsdp1 and a.case.debug_level == "DETAIL"
        if times and checks and self._root(path) not in self._compared:
            # The indices of units, of type int32 (``_ExecOrderData._check_order`` in
            # torch/distributed/fsdp/_exec_order_utils.py).
            found.add(collective("all_gather", "int32", 1), Bounds(0, 2 * times), path)

    def _in_time(self, made: Pass, once: set[str]) -> Iterator[tuple[str, str]]:
        """What comes before what in a backward; ``once`` are the units that it gathers once."""
        a = self._now
        if any(c.recomputes for c in a.case.checkpoints) or not self._sync:
            return
        for root in a.roots:
            begun = [path for path in made.begun if self._root(path) == root]
            ended = [path for path in made.ended if self._root(path) == root]
            if root in self._stale or any(made.units[p].times > 1 for p in ended):
                continue
            texts = {Turn("gather", path): self._gather(path) for path in once.intersection(ended)}
            for path in ended:
                names = made.trained.get(path)
                if names and not (self._unreduced.get(path) or is_whole(a, path)):
                    texts[Turn("reduce", path)] = self._scatter(path, names)
            for first, then in backward_order(a, begun, ended, made.entered):
                if first in texts and then in texts:
                    yield texts[first], texts[then]

    def _reduced(self, path: str, names: set[str], found: Traffic, *, again: bool) -> None:
        """What a backward reduces of a unit's gradients; ``again`` if it was called repeatedly.

        What waits is then reduced when the last call is done, and the rest with the first one.
        """
        a = self._now
        waits = self._unreduced.pop(path, set())
        if not self._sync:
            if not a.fsdp1:
                self._unreduced[path] = waits | names
            return
        kinds, number = [names | waits], Bounds(1, 1)
        if again and waits:
            kinds, number = [names | waits, names, waits], Bounds(0, ANY)
        for reduced in kinds:
            if not reduced:
                continue
            if is_whole(a, path):
                numel = shard_numel(a, path, reduced)
                text = collective("all_reduce", self._reduces_in(path), numel)
                found.add(text, number, path)
                continue
            found.add(self._scatter(path, reduced), number, path)
            if is_replicated(a, path):
                numel = shard_numel(a, path, reduced)
                found.add(collective("all_reduce", self._reduces_in(path), numel), number, path)

    def _ended(self, path: str, calls: UnitCalls, reached: set[str]) -> None:
        """The state in which a backward leaves a unit."""
        unit, state = self._now.options[path], self._state.get(path, SHARDED)
        again = called_again(self._now, path, calls)
        if self._root(path) not in reached:
            self._state[path] = SHARDED if state == SHARDED and not again else EITHER
        elif not isinstance(unit, Fsdp1Unit):
            self._state[path] = SHARDED
            self._on_fewer.discard(path)
        elif calls.recorded and calls.reached == calls.recorded:
            kept = not self._sync and path in kept_whole(self._now)
            self._state[path] = WHOLE if kept else SHARDED
        elif state != SHARDED or again:
            self._state[path] = EITHER

    def _root(self, path: str) -> str:
        return belongs_to(self._now, path)

    def _gather(self, path: str, *, from_all: bool = False) -> str:
        a, unit = self._now, self._now.options[path]
        name, numel = gathered_in(a, path)
        if path in self._on_fewer and not from_all and isinstance(unit, Fsdp2Unit):
            numel = numel * a.shards(path) // int(unit.reshard_after_forward or 1)
        return collective("all_gather", name, numel)

    def _scatter(self, path: str, names: set[str]) -> str:
        a = self._now
        numel = a.shards(path) * shard_numel(a, path, names)
        return collective("reduce_scatter", self._reduces_in(path), numel)

    def _reduces_in(self, path: str) -> str:
        return reduced_in(self._now.options[path], own=self._own) or "float32"
