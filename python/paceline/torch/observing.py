"""What a training program does, layer by layer, as hooks of PyTorch tell it: programs need not be changed.

A layer is a module with parameters of its own. How moments become spans of a trace is not known here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from paceline.torch import hooks, tensors
from paceline.torch.moments import DeviceMoments, HostMoments

if TYPE_CHECKING:
    from paceline._native import Recording

#: Activities, as the recording numbers them.
FORWARD, BACKWARD, UPDATE, OTHER, WAIT, POST = range(6)

#: In place of a layer's number.
NO_LAYER = -1


class Layer:
    """What is to be known of a layer, once."""

    def __init__(self, name: str, tensors: list[tuple[str, int, str]]) -> None:
        self.name = name
        self.tensors = tensors
        self.activation_bytes = 0


class Observer:
    """Sees forward, backward and update of the models that this process trains while its hooks are attached. Models and
    layers that are not called in the first step are not met.

    ``moments`` tells when, ``first_layer`` is called when it is known where the model is, and ``step_over`` when an
    optimizer's step ends. Only what the thread that made the
    observer calls is seen, and the backward passes it starts.
    """

    def __init__(self, first_layer: Callable[[], None], step_over: Callable[[], None]) -> None:
        self.layers: list[Layer] = []
        #: None while nobody wants to know.
        self.moments: HostMoments | DeviceMoments | None = None
        #: Where waits go; they are the host's, whatever computes.
        self.recording: Recording | None = None
        #: The device of the first layer.
        self.device = torch.device("cpu")
        self._first_layer = first_layer
        self._step_over = step_over
        self._thread = threading.get_ident()
        self._met: set[nn.Module] = set()
        #: Numbers of modules that are layers.
        self._numbers: dict[nn.Module, int] = {}
        #: Whole models.
        self._wholes: list[nn.Module] = []
        self._names: dict[nn.Module, str] = {}
        self._counted: set[nn.Parameter] = set()
        #: Forward passes of whole models in progress, one inside the other.
        self._depth = 0
        #: Layers in progress, the innermost last, and since when.
        self._inside: list[list[Any]] = []
        self._forward_ended: Any = None
        self._last_gradient: Any = None
        self._in_backward = False
        self._buckets = False
        self._since_step = False
        self._updating: Any = None
        self._meeting: Any = None
        self._attachments: list[Any] = []

    def attach(self) -> None:
        """From now on."""
        # Every call of every module is slower while this is there: it goes after the first step.
        self._meeting = modules.register_module_forward_pre_hook(self._meet)
        self._attachments += [
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]

    def detach(self) -> None:
        """Let PyTorch forget us."""
        self._stop_meeting()
        for attachment in self._attachments:
            attachment.remove()
        self._attachments = []
        self.moments = None

    # Modules, when they are called for the first time.

    def _meet(self, module: nn.Module, inputs: Any) -> None:
        if module in self._met or threading.get_ident() != self._thread:
            return
        self._met.add(module)
        whole = self._depth == 0
        if whole:
            self._meet_whole(module)
        parameters = dict(module.named_parameters(recurse=False))
        if parameters:
            self._meet_layer(module, parameters)
        if whole:
            # After its own layer, which ends before the whole does.
            self._hook(module.register_forward_hook, Observer._after_whole)

    def _meet_whole(self, module: nn.Module) -> None:
        inside = module.module if isinstance(module, DistributedDataParallel) else module
        self._buckets |= inside is not module
        self._wholes.append(inside)
        self._names.update({one: name for name, one in inside.named_modules() if one not in self._names})
        self._hook(module.register_forward_pre_hook, Observer._before_whole, prepend=True)
        self._before_whole()

    def _meet_layer(self, module: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        number, name = len(self.layers), self._names.get(module, "")
        self._numbers[module] = number
        layer = Layer(name or type(module).__name__, [])
        for own, parameter in parameters.items():
            first = not layer.tensors
            if self._count(layer, f"{name}.{own}" if name else own, parameter) and first:
                # One for each layer will do: its gradients come together.
                self._hook(parameter.register_post_accumulate_grad_hook, Observer._on_gradient, number)
        self.layers.append(layer)
        if number == 0:
            self.device = next(iter(parameters.values())).device
            self._first_layer()
        # Before hooks that wait for the layer's parameters: they say when they have.
        self._hook(module.register_forward_pre_hook, Observer._before_layer, number, prepend=True)
        self._hook(module.register_forward_hook, Observer._after_layer, number)
        self._before_layer(number)

    def _count(self, layer: Layer, name: str, parameter: nn.Parameter) -> bool:
        """Whether a parameter is the layer's: one that several use is synchronised once, for the layer that needs it first."""
        if not parameter.requires_grad or parameter in self._counted:
            return False
        self._counted.add(parameter)
        layer.tensors.append((name, parameter.numel(), tensors.element(parameter.dtype) or "u8"))
        return True

    def _adopt(self) -> None:
        """Parameters of modules that nobody calls belong to the layer around them: attention uses its output projection's
        without calling it."""
        for whole in self._wholes:
            around: dict[str, int] = {}
            for path, module in whole.named_modules():
                outer = around.get(path.rpartition(".")[0]) if path else None
                number = self._numbers.get(module, outer)
                if number is None:
                    continue
                around[path] = number
                if module in self._met:
                    continue
                for own, parameter in module.named_parameters(recurse=False):
                    if parameter.grad is not None:
                        self._count(self.layers[number], f"{path}.{own}", parameter)
        self._wholes.clear()

    def _hook(self, register: Callable[..., Any], method: Callable[..., Any], *first: Any, **how: Any) -> None:
        self._attachments.append(register(hooks.Weak(self, method, *first), **how))

    def _stop_meeting(self) -> None:
        meeting, self._meeting = self._meeting, None
        if meeting is not None:
            meeting.remove()

    # Forward.

    def _before_whole(self, *_: Any) -> None:
        if threading.get_ident() == self._thread:
            self._depth += 1

    def _before_layer(self, number: int, *_: Any) -> None:
        moments = self.moments
        if moments is None or threading.get_ident() != self._thread:
            return
        now: Any = moments.now()
        if self._inside:
            # What a layer does around the layers inside it is a span of its own, so that times add up.
            around = self._inside[-1]
            moments.span(FORWARD, around[0], around[1], now)
        self._inside.append([number, now])

    def _after_layer(self, number: int, module: nn.Module, inputs: Any, output: Any) -> None:
        moments = self.moments
        if moments is None or not self._inside or self._inside[-1][0] != number:
            return
        now: Any = moments.now()
        moments.span(FORWARD, number, self._inside.pop()[1], now)
        if self._inside:
            self._inside[-1][1] = now
        layer = self.layers[number]
        if not layer.activation_bytes:
            layer.activation_bytes = sum(one.nbytes for one in _tensors(output) if one.requires_grad)

    def _after_whole(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._depth = max(self._depth - 1, 0)
        if self._depth > 0:
            return
        self._since_step = True
        self._inside.clear()
        if self.moments is not None:
            self._forward_ended = self.moments.now()
            self._last_gradient = None
            for one in _tensors(output):
                if one.requires_grad:
                    # Its gradient is where the loss ends and the model's backward pass begins.
                    one.register_hook(self._on_output_gradient)
                    break

    # Backward.

    def _on_output_gradient(self, gradient: torch.Tensor) -> None:
        moments = self.moments
        if moments is not None and self._forward_ended is not None:
            now = moments.now()
            moments.span(OTHER, NO_LAYER, self._forward_ended, now)
            self._last_gradient, self._forward_ended = now, None

    def _on_gradient(self, number: int, parameter: torch.Tensor) -> None:
        # PyTorch tells when a gradient is there, not when it was begun: a layer's backward pass is taken to last since
        # the gradient before. What has no parameters counts to the layer whose gradient comes next.
        moments = self.moments
        if moments is None:
            return
        now: Any = moments.now()
        since = self._last_gradient or self._forward_ended
        if since is not None:
            moments.span(BACKWARD, number, since, now)
        self._last_gradient, self._forward_ended = now, None
        if self._buckets and not self._in_backward:
            self._in_backward = True
            # Called when all gradients are there, and before DDP's own, which waits for its buckets.
            torch.autograd.Variable._execution_engine.queue_callback(self._on_all_gradients)

    def _on_all_gradients(self) -> None:
        begin = self.begin_wait()

        def on_all_buckets() -> None:
            self._in_backward = False
            self.end_wait(begin)

        torch.autograd.Variable._execution_engine.queue_callback(on_all_buckets)

    # Waits and posts.

    def begin_wait(self) -> int | None:
        """The host may have to wait from now on."""
        return None if self.moments is None else perf_counter_ns()

    def end_wait(self, begin: int | None, layer: int = NO_LAYER) -> None:
        """It has waited."""
        if begin is not None and self.recording is not None:
            self.recording.span(WAIT, layer, begin)

    def end_post(self, begin: int) -> None:
        """It has handed an operation over."""
        if self.recording is not None:
            self.recording.span(POST, NO_LAYER, begin)

    @property
    def layer(self) -> int:
        """The layer whose forward pass is in progress."""
        return self._inside[-1][0] if self._inside else NO_LAYER

    def resume(self) -> None:
        """What happened since the layer in progress was entered was not its own work."""
        if self.moments is not None and self._inside:
            self._inside[-1][1] = self.moments.now()

    # Update.

    def update(self, layer: int, begin: Any) -> None:
        """Parameters were updated since ``begin``."""
        if begin is not None and self.moments is not None:
            self.moments.span(UPDATE, layer, begin, self.moments.now())

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        self._updating = None if self.moments is None else self.moments.now()

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self.update(NO_LAYER, self._updating)
        self._updating = None
        self.step_over()

    def step_over(self) -> None:
        """An optimizer made a step. One that follows another without a forward pass between belongs to the same."""
        if self._since_step:
            self._since_step, self._depth = False, 0
            self._stop_meeting()
            self._adopt()
            self._step_over()


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """The tensors of what a module returned."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for one in output.values():
            yield from _tensors(one)
    elif isinstance(output, (list, tuple)):
        for one in output:
            yield from _tensors(one)
