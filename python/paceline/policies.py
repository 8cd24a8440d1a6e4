"""The policies that come with Paceline, and those that a command line names.

    paceline run -n 4 --policy noise_scale:most=256 -- python train.py
    paceline run -n 4 --policy my_policies:GrowWithNoise -- python train.py

``noise_scale:most=N[,rule=adascale|linear|sqrt][,every=STEPS]``
    batches of up to N samples for each worker, as large as the gradient noise scale, and learning rates that follow
``goodput:most=N[,workers=N][,rule=...][,every=STEPS]``
    the batch (and number of workers, if any may be asked for) with the most samples a second times what they are worth
``schedule:FILE``
    entries ``[[at]]`` of a TOML file with ``step`` and any of ``batch``, ``learning_rate``, ``size``, ``strategy``, ``partition``,
    ``credit``, ``mode``; of several for one step all count, and what is said last holds
``interference[:share=0.8][,window=4][,strategies=ring+double_tree]``
    the next strategy, when most workers find their steps slower than at the beginning
``averaging:at=N[,mode=averaging|pairs|local|asynchronous]``
    gradients are averaged while there are fewer than N workers, models from N on
``spot[:file=PATH]``
    a worker leaves after its step when SIGTERM, or the file, says that its machine will be taken away

What they decide is native code's; here they are called.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping

from paceline import adaptation, world
from paceline._native import VOTE, PacelineError, ShippedPolicy
from paceline.policy import Context, Policy

#: Between policies, in the variable PACELINE_POLICY.
SEPARATOR = ";"


class Shipped(Policy):
    """One that comes with Paceline, from text such as ``noise_scale:most=256``.

    >>> Shipped("interference:share=0.9").metrics
    ('vote',)
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._inner = ShippedPolicy(text)
        self.metrics = (VOTE, *self._inner.metrics())
        #: Its name, without arguments: what it remembers is for one of its kind.
        self.kind = text.partition(":")[0]

    def __repr__(self) -> str:
        return f"Shipped({self._text!r})"

    def before_train(self, ctx: Context) -> None:
        self._call("before_train", ctx)

    def after_train(self, ctx: Context) -> None:
        self._call("after_train", ctx)

    def before_epoch(self, ctx: Context) -> None:
        self._call("before_epoch", ctx)

    def after_epoch(self, ctx: Context) -> None:
        self._call("after_epoch", ctx)

    def before_step(self, ctx: Context) -> None:
        vote = self._inner.vote(ctx.own_seconds)
        if vote is not None:
            ctx.report(VOTE, vote)
        self._call("before_step", ctx)

    def after_step(self, ctx: Context) -> None:
        self._call("after_step", ctx)

    def leaves(self) -> str | None:
        return self._inner.leaves()

    def refused(self, ctx: Context, wish: str, reason: str) -> None:
        # What one worker wants for itself, it alone knows to be refused.
        if ctx.rank == 0 or wish == adaptation.LEAVE:
            print(f"paceline: policy {self._text}: {wish} stays as it is: {reason}", file=sys.stderr, flush=True)

    def state_dict(self) -> dict[str, object]:
        """What it remembers, as text."""
        memory = self._inner.state()
        return {} if memory is None else {"memory": memory}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from there; what cannot be is refused."""
        if "memory" in state:
            self._inner.restore(str(state["memory"]))

    def _call(self, hook: str, ctx: Context) -> None:
        wishes = self._inner.call(hook, ctx._adaptation.talk, ctx._adaptation.worker)
        reason = wishes["reason"]
        if wishes["batch_size"] is not None:
            ctx.set_batch_size(wishes["batch_size"], reason)
        if wishes["learning_rate"] is not None:
            ctx.scale_learning_rate(wishes["learning_rate"], reason)
        if wishes["size"] is not None:
            ctx.resize(wishes["size"], reason)
        if wishes["mode"] is not None:
            ctx.set_mode(wishes["mode"], reason)
        settings = {key: wishes[key] for key in adaptation.SETTINGS if wishes[key] is not None}
        if settings:
            ctx.propose(**settings)
        if reason and ctx.rank == 0:
            wanted = ", ".join(f"{key} {value}" for key, value in wishes.items() if value and key != "reason")
            print(f"paceline: step {ctx.step}, policy {self._text}: {wanted}: {reason}", file=sys.stderr, flush=True)


def load(text: str) -> Policy:
    """A policy by its name, or a class of the program's own as ``module:Class``.

    >>> load("noise_scale:most=64")
    Shipped('noise_scale:most=64')
    """
    name, _, rest = text.partition(":")
    if name in ShippedPolicy.names() or not rest:
        return Shipped(text)
    try:
        policy = getattr(importlib.import_module(name), rest)()
    except (ImportError, AttributeError) as error:
        known = ", ".join(ShippedPolicy.names())
        raise PacelineError(f"policy {text}: {error}; give module:Class, or one of {known}") from error
    if not isinstance(policy, Policy):
        raise PacelineError(f"policy {text}: it is no paceline.Policy")
    return policy


def begin(joined: world.Membership) -> None:
    """Attach what ``paceline run --policy`` named, once."""
    named = os.environ.get("PACELINE_POLICY", "")
    if named and joined.adaptation is None and not joined.named_policies:
        joined.named_policies = True
        policies = [load(text.strip()) for text in named.split(SEPARATOR) if text.strip()]
        joined.adaptation = adaptation.Adaptation(joined.worker, policies)
