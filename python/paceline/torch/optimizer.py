"""An optimizer whose synchronisation crosses the step.

Each gradient is posted as soon as the backward pass has made it, the parameters that the next forward
pass needs first go first, and that pass waits, module by module, for its own parameters only. So what is
sent hides behind the end of one step and the beginning of the next. How gradients reach other workers is
not known here.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline import policies, tuning, world
from paceline._native import Handle, PacelineError, Squares
from paceline.adaptation import Adaptation
from paceline.torch import hooks, horovod, modes, staging, tracing
from paceline.torch.bundles import bundled
from paceline.torch.following import Followed
from paceline.torch.gradients import Gradient, Order, Step, to_none, to_zero
from paceline.torch.state import from_first
from paceline.torch.switching import Switching

#: Optimizers whose update of one parameter reads others, so that parameters cannot be updated one by one.
_REFUSED = ("LBFGS",)

#: Modules of PyTorch that read gradients between the backward pass and the step.
_READERS = ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler")


class DistributedOptimizer(Followed, Switching, Optimizer):
    """``optimizer``, with the gradients of ``model`` averaged over all workers.

    Use it as you would use ``optimizer``: learning-rate schedulers, ``state_dict`` and ``GradScaler`` take
    it. ``scheduled=False`` sends gradients in the order they come. ``accumulate`` backward passes make one
    step (or use :meth:`no_sync`); with ``accumulate=None`` as many as the plan says, for a program that cuts its
    batches into :attr:`accumulate` parts. Workers begin with the parameters and buffers of worker 0, unless
    ``broadcast=False``. In another ``mode`` than the synchronous one, workers train copies of their own that are kept
    together otherwise (:mod:`paceline.torch.modes`); without one it is ``groups`` where the job's strategy averages in groups
    (``paceline run --strategy shuffle``), and the synchronous one elsewhere.

    >>> world.init()
    >>> model = nn.Linear(2, 1)
    >>> optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    """

    #: Whether ``step()`` waits for all gradients and makes all updates, because nobody knows what the next one needs first.
    _whole_steps = False

    # Not `Optimizer.__init__`: groups, state and defaults are those of the optimizer inside.
    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        *,
        scheduled: bool = True,
        accumulate: int | None = 1,
        broadcast: bool = True,
        mode: modes.Mode | str | None = None,
    ) -> None:
        _refuse(optimizer, accumulate)
        world.init()
        self._inner = optimizer
        self._worker = world.membership().worker
        self._scheduled = scheduled
        self._accumulate = self._worker.accumulate if accumulate is None else accumulate
        self._syncing = True
        self._pending: Step | None = None
        self._order = Order()
        #: Parameters of modules that the first forward pass did not call, once there was one.
        self._unseen: list[int] | None = None
        self._step_of_one = _unwrapped_step(optimizer)
        self._use: Handle | None = None
        #: Whether workers know what any of them used in this step.
        self._agreed = False
        #: Whether somebody waited for all gradients of the last step before it was made.
        self._synchronized = False
        self._said: set[str] = set()
        #: What measures the gradients of this step, and what measured those of the last; nothing where no policy asks.
        self._squares: Squares | None = None
        self._measured: Squares | None = None
        self._gradients = {
            parameter: Gradient(parameter, name, place)
            for place, (name, parameter) in enumerate(model.named_parameters())
            if parameter.requires_grad
        }
        # By number, since a parameter's hash is a call of Python's.
        self._by_place = {gradient.place: gradient for gradient in self._gradients.values()}
        #: Of each place, its number among those that are trained.
        self._positions = {place: position for position, place in enumerate(self._by_place)}
        self._bundles = bundled(self._gradients.values(), self._worker.fusion, self._worker.rank)
        self._check_parameters()
        if self._worker.size > 1:
            descriptions = [gradient.description() for gradient in self._gradients.values()]
            from_first(lambda root: horovod.same_everywhere(descriptions, root))
            if broadcast:
                shared = _parameters_and_buffers(model)
                from_first(lambda root: horovod.broadcast_parameters(shared, root))
        named = [(gradient.name, parameter) for parameter, gradient in self._gradients.items()]
        self._replica = modes.Replica(self._worker, optimizer, named, model)
        # Where steps begin is known better here than from the optimizer inside.
        self._membership = world.membership()
        self._begin_mode(modes.named(self._usual_mode() if mode is None else mode))
        self._attachments = self._attach(model)
        self._membership.counts_steps = True
        self._membership.drains.add(self)
        tuning.begin(self._worker, crosses_step=not self._whole_steps)
        policies.begin(self._membership)

    # What users of optimizers look at.

    @property
    def accumulate(self) -> int:
        """Backward passes that make one step."""
        return self._accumulate

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of the optimizer inside."""
        if sys._getframe(1).f_globals.get("__name__") in _READERS:
            self._say_once("GradScaler", "reads all gradients before the step")
            self.synchronize()
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the optimizer inside, with all updates made."""
        self.drain()
        return self._inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The defaults of the optimizer inside."""
        return self._inner.defaults

    # GradScaler then scales and checks by itself, through `param_groups`.
    _step_supports_amp_scaling = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._inner!r})"

    def __getstate__(self) -> dict[str, Any]:
        raise PacelineError("a DistributedOptimizer cannot be copied or pickled; save its state_dict()")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Groups are those that the optimizer had when it was wrapped."""
        raise PacelineError("add parameter groups before wrapping the optimizer: workers agree on them once")

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer inside, with all updates made."""
        self.drain()
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the optimizer inside, after all updates are made."""
        self.drain()
        self._inner.load_state_dict(state_dict)

    def elastic_state(self) -> dict[str, Any]:
        """For a worker that comes to the job: also in which order gradients go."""
        kept = None if self._mode is None else self._mode.elastic_state()
        mode = {"mode": self._mode, "kept": kept, "switched": self._switched}
        return {"inner": self.state_dict(), "order": self._order.known(), "unseen": self._unseen, **mode}

    def load_elastic_state(self, state: dict[str, Any]) -> None:
        """Go on as the others do."""
        self.adopt_mode(state["mode"])
        if self._mode is not None:
            self._mode.load_elastic_state(state["kept"])
        self._switched = state["switched"]
        self.load_state_dict(state["inner"])
        self._order.adopt(state["order"])
        self._unseen = state["unseen"]

    # What a checkpoint has.

    def checkpoint_state(self) -> dict[str, Any]:
        """The state of the optimizer inside, and how workers stay together."""
        mode = self._mode
        kept = None if mode is None else {"name": mode.name, "numbers": mode.numbers(), "kept": mode.elastic_state()}
        return {"inner": self.state_dict(), "mode": kept, "switched": self._switched}

    def load_checkpoint_state(self, state: dict[str, Any]) -> None:
        """Into the optimizer inside, :meth:`while_restored`."""
        self.load_state_dict(state["inner"])

    @property
    def _hooked(self) -> bool:
        return bool(self._inner._optimizer_step_pre_hooks or self._inner._optimizer_step_post_hooks)

    # The step. `torch.compile` of a whole training step leaves these to Python, as it does PyTorch's own.

    @torch._disable_dynamo
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter as soon as its gradient is there, with the hyper-parameters of now."""
        if closure is not None:
            raise PacelineError("step(closure) runs the model again inside the step; call step() without it")
        self._membership.hand_over()
        self.drain()
        self._membership.check()
        self._membership.stepping = True
        if self._mode is not None:
            self._step_by_itself(self._mode)
        else:
            self._step_with_all()
        self._membership.end_stepping()

    def _step_with_all(self) -> None:
        """A step that all workers make alike."""
        # Whoever waited for all gradients, to look at them or to clip them, has no update left for the next step.
        synchronized = self._synchronized = self._agreed
        hooked = self._hooked
        self._say(step=True, gradients=not synchronized, updates=not (synchronized or hooked))
        if not (synchronized or self._agree_on_use()):
            raise PacelineError(
                "step() without a backward pass since the last one: was it called twice?"
            )
        self._agreed = False
        for bundle in self._bundles:
            bundle.close()
        if self._unseen is None:
            self._unseen = self._order.unseen(self._by_place)
        self._agree_on_order()
        if hooked:
            self._say_once("a step hook", "expects all parameters at once")
        # What nobody used but was zeroed instead of dropped decays like the others.
        due = [gradient for gradient in self._gradients.values() if gradient.parameter.grad is not None]
        adaptation = self._exchange()
        if self._membership.joining is not None:
            self._membership.joining.arrive()
        self._pending = Step(self._inner, due, 1.0 if adaptation is None else adaptation.talk.learning_rate)
        if hooked:
            self._wait_for_all()
            # As the class has it, with the hooks around it.
            self._update(due, lambda: type(self._inner).step(self._inner))
        elif self._whole_steps:
            self._wait_for_all()
            self._update(due)
        else:
            self._update(self._done())
        # Everything of this step is posted; what comes now belongs to the next.
        if adaptation is not None:
            adaptation.after_step()
        self._membership.advance()
        if adaptation is not None:
            self._let_in_before_switching(adaptation)
        self._measured, self._squares = self._squares, None if adaptation is None else adaptation.before_step()
        tracing.step_over(crosses_step=not (hooked or synchronized or self._whole_steps))

    def _exchange(self) -> Adaptation | None:
        """Let policies hear and say what there is."""
        attached = self._membership.adaptation
        if attached is not None:
            self.serve(attached)
            attached.exchange(self._measured)
        return attached

    def serve(self, adaptation: Adaptation) -> None:
        """Do what policies want of an optimizer."""
        adaptation.scales, adaptation.switcher, adaptation.talk.mode = True, self._switch_for, self.mode

    def _let_in_before_switching(self, adaptation: Adaptation) -> None:
        # Whoever listens takes part in the switch.
        if adaptation.talk.switches:
            self._membership.let_in()

    @torch._disable_dynamo
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients; those in flight as soon as their parameters are updated."""
        waiting = self._pending.waiting if self._pending is not None else {}
        # Whoever synchronised and then passed over the step begins anew.
        self._agreed = False
        if self._pending is not None:
            self._pending.afterwards = to_none if set_to_none else to_zero
        for gradient in self._gradients.values():
            if gradient.place not in waiting:
                gradient.finish()
                gradient.reset()
                (to_none if set_to_none else to_zero)(gradient.parameter)

    @torch._disable_dynamo
    def synchronize(self) -> None:
        """Wait until every gradient of this step holds the average; nothing is updated. All workers call it."""
        self._post_the_rest()
        self._wait_for_all()

    @torch._disable_dynamo
    def drain(self) -> None:
        """Wait until every update of the last step is made."""
        if self._mode is not None:
            self._mode.land(self._replica)
        if self._pending is not None:
            due = list(self._pending.waiting.values())
            begin = tracing.begin_wait()
            for gradient in due:
                gradient.finish()
            tracing.end_wait(begin)
            self._update(due)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the gradients of this worker and send nothing."""
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before

    def close(self) -> None:
        """Take the hooks off the model. The optimizer inside can be used by itself then."""
        self.drain()
        for attachment in self._attachments:
            attachment.remove()
        self._attachments = []

    # Inside.

    def _post_the_rest(self) -> None:
        """What only others used is not on its way yet, and they would wait for this worker's part of it."""
        # Updates that are due here may be made elsewhere: all workers must ask alike.
        self.drain()
        if not self._agreed:
            self._say(step=False, gradients=True, updates=False)
            self._agreed = self._agree_on_use()
        self._flush()

    def _wait_for_all(self) -> None:
        begin = tracing.begin_wait()
        for gradient in self._gradients.values():
            gradient.finish()
        tracing.end_wait(begin)

    def _norms(self, norm_type: float) -> list[torch.Tensor]:
        """Of all averages, each taken when it is there, while others are on their way."""
        self._post_the_rest()
        norms: dict[int, torch.Tensor] = {}
        waiting = list(self._gradients.values())
        begin = tracing.begin_wait()
        # Each turn takes one off at least.
        while waiting:
            done = [gradient for gradient in waiting if gradient.is_done()] or waiting[:1]
            for gradient in done:
                gradient.finish()
                if gradient.parameter.grad is not None:
                    norms[gradient.place] = torch.linalg.vector_norm(gradient.parameter.grad, norm_type)
            taken = {gradient.place for gradient in done}
            waiting = [gradient for gradient in waiting if gradient.place not in taken]
        tracing.end_wait(begin)
        # In one order everywhere, so that all workers come to the same sum.
        return [norms[place] for place in sorted(norms)]

    def _check_parameters(self) -> None:
        known = self._gradients
        for number, group in enumerate(self._inner.param_groups):
            for place, parameter in enumerate(group["params"]):
                if parameter not in known and parameter.requires_grad:
                    raise PacelineError(
                        f"parameter {place} of group {number} is not one of the model's: give the model that "
                        "has all parameters of the optimizer"
                    )

    def _attach(self, model: nn.Module) -> list[Any]:
        attachments: list[Any] = [
            gradient.parameter.register_post_accumulate_grad_hook(
                hooks.Weak(self, DistributedOptimizer._on_gradient, gradient.place)
            )
            for gradient in self._gradients.values()
        ]
        unseen = hooks.Weak(self, DistributedOptimizer._before_model)
        attachments.append(model.register_forward_pre_hook(unseen))
        for module in model.modules():
            # Attention multiplies by the weight of its last layer without calling that layer.
            whole = isinstance(module, nn.MultiheadAttention)
            known = [self._gradients.get(parameter) for parameter in module.parameters(recurse=whole)]
            places = [gradient.place for gradient in known if gradient is not None]
            if places:
                hook = hooks.Weak(self, DistributedOptimizer._before_forward, places)
                attachments.append(module.register_forward_pre_hook(hook))
        drain = hooks.Weak(self, DistributedOptimizer._drain_for)
        attachments.append(model.register_state_dict_pre_hook(drain))
        attachments.append(model.register_load_state_dict_pre_hook(drain))
        attachments.append(hooks.before_train(model, drain))
        return attachments

    def _drain_for(self, *_: Any) -> None:
        if self._drains_for_state:
            self.drain()

    def _before_model(self, *_: Any) -> None:
        # Whoever uses these, nobody says when: they must be there from the beginning.
        if self._unseen:
            self._before_forward(self._unseen)

    def _before_forward(self, places: Sequence[int], *_: Any) -> None:
        # Until the first step, the order is to be seen.
        if self._pending is not None or self._unseen is None or self._mode is not None or self._membership.rest is not None:
            self._catch_up(places)

    # A compiled update may round otherwise than the one in `step()`, and which of them is made depends on the network.
    @torch._disable_dynamo
    def _catch_up(self, places: Sequence[int]) -> None:
        # Where nothing is learned, the program may still be busy with what follows the last step.
        if torch.is_grad_enabled():
            self._membership.hand_over()
        self._order.see(places)
        if self._mode is not None:
            self._mode.land(self._replica, (self._positions[place] for place in places))
        if self._pending is None:
            return
        waiting = self._pending.waiting
        needed = [waiting[place] for place in places if place in waiting]
        if not needed:
            return
        begin = tracing.begin_wait()
        for gradient in needed:
            gradient.finish()
        tracing.end_wait_of_layer(begin)
        # Whatever else has arrived by now is updated with them: few large updates cost less than many.
        self._update(self._done())
        tracing.resume()

    def _done(self) -> list[Gradient]:
        assert self._pending is not None
        done = [gradient for gradient in self._pending.waiting.values() if gradient.is_done()]
        for gradient in done:
            gradient.finish()
        return done

    def _on_gradient(self, place: int, _: torch.Tensor) -> None:
        self._membership.hand_over()
        gradient = self._by_place[place]
        gradient.used = True
        if not self._syncing or self._mode is not None:
            return
        gradient.passes += 1
        if gradient.passes < self._accumulate:
            return
        gradient.passes = 0
        if self._pending is not None and place in self._pending.waiting:
            raise PacelineError(
                f"`{gradient.name}` got its next gradient before the last update: it is used outside the "
                "forward() of its module; call synchronize() and drain() after step(), or use DDP"
            )
        if gradient.arrives is not None or gradient.held or self._agreed:
            raise PacelineError(
                f"`{gradient.name}` got a second gradient before step(): to add gradients up, use no_sync() "
                f"for all passes but the last, or accumulate=N"
            )
        gradient.start(self._worker, self._priority(gradient), self._squares)

    def _update(self, due: Sequence[Gradient], how: Callable[[], Any] | None = None) -> None:
        step = self._pending
        if step is None:
            return
        if due:
            begin = tracing.begin_update()
            step.update(self._inner, how or self._step_of_one, due)
            tracing.end_update(begin)
        if not step.waiting:
            self._pending = None

    def _agree_on_use(self) -> bool:
        """A parameter that some worker used is averaged by all; one that nobody used keeps no gradient.

        A worker that used all of them need not wait to hear what others used. False if nobody used any.
        """
        used = [gradient.used for gradient in self._gradients.values()]
        if self._worker.everyone == 1:
            return any(used)
        if self._use is not None:
            self._use.wait()
        anywhere = torch.tensor(used, dtype=torch.uint8, device="cpu")
        # Ahead of everything else, since some worker may wait for it.
        rest = {"reduce": "max", "priority": -1, "everyone": True}
        self._use = staging.post(
            self._worker, None, "gradients in use", "all_reduce", "u8", [len(used)], anywhere, anywhere, rest
        )
        if all(gradient.posted for gradient in self._gradients.values()):
            return True
        begin = tracing.begin_wait()
        self._use.wait()
        tracing.end_wait(begin)
        for gradient, somewhere in zip(self._gradients.values(), anywhere.tolist()):
            if somewhere and not gradient.posted:
                if gradient.parameter.grad is None:
                    gradient.parameter.grad = torch.zeros_like(gradient.parameter)
                gradient.start(self._worker, self._priority(gradient), self._squares)
        self._flush()
        return bool(anywhere.any())

    def _flush(self) -> None:
        """Send what is sent together and not complete: nobody knows whether the rest will come."""
        for bundle in self._bundles:
            bundle.flush(self._worker, self._squares)

    def _priority(self, gradient: Gradient) -> int:
        return self._order.priority(gradient) if self._scheduled else 0

    def _agree_on_order(self) -> None:
        """After the first step: what worker 0's forward pass uses first, goes first everywhere."""
        if self._scheduled and not self._order.agreed:
            self._order.agree(list(self._gradients.values()), self._worker)

    def _say_once(self, who: str, why: str) -> None:
        if who not in self._said and self._worker.rank == 0:
            print(
                f"paceline: {who} {why}, so steps do not overlap the next forward pass", file=sys.stderr
            )
        self._said.add(who)


def clip_grad_norm_(
    optimizer: DistributedOptimizer,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """:func:`torch.nn.utils.clip_grad_norm_` of the averaged gradients of all parameters.

    The norm of each is taken when it arrives, but their norm needs every gradient, so this step waits for all of
    them and does not overlap the next forward pass.

    >>> world.init()
    >>> model = nn.Linear(1, 1, bias=False)
    >>> optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    >>> model(torch.full((1, 1), 3.0)).sum().backward()
    >>> clip_grad_norm_(optimizer, 1.0).item()
    3.0
    """
    optimizer._say_once("clip_grad_norm_", "needs all gradients before the step")
    norms = optimizer._norms(float(norm_type))
    if not norms:
        return torch.tensor(0.0)
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]), float(norm_type))
    if error_if_nonfinite and not torch.isfinite(total):
        raise PacelineError(f"the norm of all gradients is {total.item()}, so they cannot be clipped to {max_norm}")
    parameters = [gradient.parameter for gradient in optimizer._gradients.values()]
    nn.utils.clip_grads_with_norm_(parameters, max_norm, total, foreach)
    return total


def _refuse(optimizer: Optimizer, accumulate: int | None) -> None:
    if isinstance(optimizer, DistributedOptimizer):
        raise PacelineError("this optimizer is a DistributedOptimizer already")
    if not isinstance(optimizer, Optimizer):
        raise PacelineError(f"DistributedOptimizer takes an optimizer of PyTorch, not {type(optimizer).__name__}")
    for base in type(optimizer).__mro__:
        if base.__name__ in _REFUSED:
            raise PacelineError(
                f"{base.__name__} updates a parameter by reading others, so updates cannot overlap the forward "
                "pass; use it with DDP and the paceline backend"
            )
    if accumulate is not None and accumulate < 1:
        raise PacelineError(f"accumulate must be 1 or more, not {accumulate}")


def _unwrapped_step(optimizer: Optimizer) -> Callable[[], Any]:
    """The optimizer's own step, without what schedulers and profilers put around it."""
    step = type(optimizer).step
    while hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    return torch.no_grad()(lambda: step(optimizer))


def _parameters_and_buffers(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]
