"""Convolutions whose weights' gradients are computed beside the rest of the backward pass.

The backward pass is a chain: each layer's gradient waits for the one of the layer after it. Only the optimiser needs
the gradients of the weights, so on CUDA they can go to a second stream and fill the gaps that the small kernels of the
chain leave on the GPU. Small ones are computed by kernels of our own, ``fused_weights.py``.

    with WeightGradients(device, network):
        loss = …network(image)…
        loss.backward()
    optimiser.step()
"""

import threading
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from discoseg.kernels import kernels_fit
from discoseg.networks.fused import normalise

_active = threading.local()  # trainings in other threads have streams of their own


class WeightGradients:
    """A context in which forward and backward pass run; its end waits, on the device, for the gradients.

    The gradients are put into the weights' ``grad``, which must be None before; on a CPU it changes nothing. Under
    autocast the network's weights are rounded all at once: a kernel or two instead of one for each convolution.
    """

    def __init__(self, device: torch.device, network: nn.Module) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        kinds = Convolution, TransposedConvolution
        self._weights = [module.weight for module in network.modules() if isinstance(module, kinds)]
        self._rounded: dict[Tensor, Tensor] = {}
        self.counters: Tensor | None = None  # for the kernels of our own, on this one stream
        if any(map(kernels_fit, self._weights)):
            from discoseg.networks.fused_weights import new_counters

            self.counters = new_counters(device)

    def __enter__(self) -> "WeightGradients":
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
            _active.beside = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _active.beside = None
        self._rounded = {}  # the optimiser is about to change the weights
        if self.stream is not None and error is None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def start(
        self, dy: Tensor, x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[Any, ...]
    ) -> None:
        """Begin with the gradients of a convolution's parameters; the arguments are ``parameter_gradients``'."""
        assert self.stream is not None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            weight.grad, db = parameter_gradients(dy, x, kernel, weight, bias, shape, self.counters)
            if bias is not None:
                bias.grad = db
        for tensor in (dy, x):  # not to be given away while the second stream still reads them
            tensor.record_stream(self.stream)

    def round(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a weight in another type."""
        if weight.dtype == dtype:
            return weight
        if not self._rounded:
            rounded = [torch.empty_like(weight, dtype=dtype) for weight in self._weights]
            torch._foreach_copy_(rounded, self._weights)
            self._rounded = dict(zip(self._weights, rounded, strict=True))
        return self._rounded[weight]


class Convolution(nn.Conv2d):
    """torch's Conv2d, its weight's gradient computed beside the others where that is asked for."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H', W')."""
        return self.with_statistics(x)[0]

    def with_statistics(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return (B, outputs, H', W') and, where they came along, its statistics: see ``fused_pointwise.convolve``."""
        beside = _beside(self)
        if beside is None:
            return super().forward(x), None
        y, statistics = _Convolve.apply(x, self.weight, self.bias, self.settings, beside)
        return y, statistics

    @property
    def settings(self) -> tuple[Any, ...]:
        """The last arguments of ``aten::convolution``."""
        return self.stride, self.padding, self.dilation, False, (0, 0), self.groups


class TransposedConvolution(nn.ConvTranspose2d):
    """torch's ConvTranspose2d, its weight's gradient computed beside the others where that is asked for."""

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H', W')."""
        beside = _beside(self)
        if beside is None or output_size is not None:
            return super().forward(x, output_size)
        shape = self.stride, self.padding, self.dilation, True, self.output_padding, self.groups
        result: Tensor = _Convolve.apply(x, self.weight, self.bias, shape, beside)[0]
        return result


def normalise_convolve(
    x: Tensor, norm: nn.Module, activation: nn.Module, convolution: Convolution
) -> tuple[Tensor, Tensor | None]:
    """Return ``convolution.with_statistics`` of activation(norm(x)); a small 1×1 one saves kernels on CUDA."""
    beside = _beside(convolution)
    if beside is not None and kernels_fit(x):
        from discoseg.networks import fused_pointwise

        assert isinstance(norm, nn.BatchNorm2d)
        assert isinstance(activation, nn.PReLU | nn.ReLU)
        weight = beside.round(convolution.weight, x.dtype)
        if fused_pointwise.both_fit(x, weight, convolution.bias, convolution.settings):
            return fused_pointwise.normalise_convolve(x, norm, activation, convolution.weight, weight, beside)
    return convolution.with_statistics(normalise(x, norm, activation))


def _beside(module: nn.Module) -> WeightGradients | None:
    return getattr(_active, "beside", None) if module.training and torch.is_grad_enabled() else None


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[Any, ...], beside: WeightGradients
    ) -> tuple[Tensor, Tensor | None]:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        kernel = beside.round(weight, dtype)
        x, offset = x.to(dtype), None if bias is None else bias.to(dtype)
        ctx.save_for_backward(x, kernel)
        ctx.parameters, ctx.shape, ctx.beside = (weight, bias), shape, beside
        ctx.set_materialize_grads(False)  # or a kernel would make zeros for the statistics
        with torch.autocast("cuda", enabled=False):
            y, statistics = _convolve(x, kernel, offset, shape)
        if statistics is not None:
            ctx.mark_non_differentiable(statistics)
        return y, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, _: None) -> tuple[Tensor | None, ...]:
        x, kernel = ctx.saved_tensors
        ctx.beside.start(dy, x, kernel, *ctx.parameters, ctx.shape)
        dx = None
        if ctx.needs_input_grad[0]:
            dx, _, _ = torch.ops.aten.convolution_backward(dy, x, kernel, None, *ctx.shape, [True, False, False])
        return dx, None, None, None, None


def _convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, shape: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
    """Convolve, by a kernel of our own where that brings the statistics of the result along."""
    if kernels_fit(x):
        from discoseg.networks import fused_pointwise

        if fused_pointwise.convolution_fits(x, kernel, bias, shape):
            return fused_pointwise.convolve(x, kernel)
    return torch.ops.aten.convolution(x, kernel, bias, *shape), None


def parameter_gradients(
    dy: Tensor,
    x: Tensor,
    kernel: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shape: tuple[Any, ...],
    counters: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of weight and bias in their type and memory layout.

    ``kernel`` is the weight in x's type; without ``counters`` the kernels of our own are not used.
    """
    small = None if counters is None else _small_gradient(dy, x, weight, shape, counters)
    wanted = [False, small is None, bias is not None]
    if small is not None and bias is None:
        return small, None
    sizes = None if bias is None else list(bias.shape)
    _, dw, db = torch.ops.aten.convolution_backward(dy, x, kernel, sizes, *shape, wanted)
    return _like(dw, weight) if small is None else small, None if bias is None else _like(db, bias)


def _small_gradient(dy: Tensor, x: Tensor, weight: Tensor, shape: tuple[Any, ...], counters: Tensor) -> Tensor | None:
    """Return the weight's gradient where the kernels of our own are quicker than torch's."""
    if not kernels_fit(x):
        return None
    from discoseg.networks import fused_weights

    stride, padding, dilation, transposed, _, groups = shape
    large, small = (dy, x) if transposed else (x, dy)  # a transposed convolution goes back the way of a plain one
    if not fused_weights.weight_gradient_fits(small, large, weight, groups):
        return None
    return fused_weights.weight_gradient(
        small, large, weight, counters, stride=tuple(stride), padding=tuple(padding), dilation=tuple(dilation)
    )


def _like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient in its parameter's type and memory layout, which the fused optimiser insists on."""
    if gradient.dtype == parameter.dtype:
        if gradient.stride() == parameter.stride():
            return gradient
        if parameter.shape[2:] == (1, 1):  # the same memory under other names
            return gradient.as_strided(parameter.shape, parameter.stride())
    return torch.empty_like(parameter).copy_(gradient)
