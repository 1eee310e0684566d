"""A pretended device: its tensors say that they live there, compute on the CPU, and refuse to meet tensors of the CPU.

What a graphics card would refuse is refused here, so that a measurement that mixes devices is found without one:

- an operation between tensors of two devices, except that a number without dimensions may stay on the CPU, and that
  indices in brackets may;
- reading the memory from the CPU (`numpy()`); `.cpu()`, `.item()` and `.tolist()` copy, as they do there;
- random numbers drawn on the device: a card has its own generator, whose numbers no other device has.

A tensor of the device is a `Pretended`, which holds a tensor of the CPU. PyTorch hands every operation to it after
autograd, in forward and backward passes alike, so no mode is active. The devices are called ``lazy:0``, ``lazy:1``, …:
a kind that PyTorch knows, that no build for the CPU has kernels for, and whose backward passes run in the thread that
asks for them, so that nothing has to be registered before a process's first one.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

NAME = "lazy"
aten = torch.ops.aten
# Operations that copy from one device to another.
COPYING = {
    aten._to_copy.default,
    aten.copy_.default,
    aten.copy.default,
    aten._copy_from.default,
}
# Indices in brackets, which a card takes from the CPU; every other operation wants them where the data are.
INDEXING = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
# The kernel for the CPU is taken in place of an implementation of the device, and has this tag without reason.
UNSEEDED = {aten._scaled_dot_product_flash_attention_for_cpu.default}


class MixedDevicesError(RuntimeError):
    """An operation between tensors of different devices, or one that a device does not allow."""


class Pretended(Tensor):
    """A tensor that says it lives on a pretended device, and holds one of the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> "Pretended":
        made = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=device,
            requires_grad=False,
        )
        made.held = held
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if (
            func == _SET_DATA
        ):  # the tensor takes the place of another, and what it holds with it
            args[0].held = args[1].held
        elif func in _INSTEAD:
            return _INSTEAD[func](args[0])
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
        return found

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        device = _device_of(func, args, kwargs)
        if _draws(func):
            raise MixedDevicesError(f"{func} draws random numbers on {device}")
        if kwargs.get("device") is not None:
            device = torch.device(kwargs["device"])
            kwargs["device"] = torch.device("cpu") if device.type == NAME else device
        found = func(
            *map(_held, args), **{name: _held(value) for name, value in kwargs.items()}
        )
        if _watched and _host_waits(func, args, device):
            _note(str(func))
        return _given_back(found, _written(func, args, kwargs), device)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            made = Pretended(self.held.detach().clone(), self.device).requires_grad_(
                self.requires_grad
            )
            memo[id(self)] = (
                torch.nn.Parameter(made, self.requires_grad)
                if _is_parameter(self)
                else made
            )
        return memo[id(self)]


def _refuses(what: str) -> Callable[[Tensor], Any]:
    def refuse(tensor: Tensor) -> Any:
        raise MixedDevicesError(
            f"{what} reads the memory of {tensor.device} from the CPU"
        )

    return refuse


_SET_DATA = Tensor.data.__set__  # pyright: ignore[reportAttributeAccessIssue]
_INSTEAD: dict[Any, Callable[[Any], Any]] = {
    Tensor.tolist: lambda tensor: (_note("tolist"), tensor.held.tolist())[1],
    Tensor.untyped_storage: lambda tensor: (
        tensor.held.untyped_storage()
    ),  # an address, to compare; nothing reads it
    Tensor.numpy: _refuses("numpy()"),
    Tensor.__array__: _refuses("numpy.asarray()"),
    Tensor.data_ptr: lambda tensor: tensor.held.data_ptr(),
}


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter)


def _held(value: Any) -> Any:
    if isinstance(value, Pretended):
        return value.held
    return [_held(part) for part in value] if isinstance(value, list | tuple) else value


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


@cache
def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags and func not in UNSEEDED


def _device_of(func: Any, args: Any, kwargs: Any) -> torch.device:
    """The device where an operation runs; raises an error if its tensors are on several."""
    if (
        func in COPYING
    ):  # copies into the first tensor, and leaves the other where it is
        return args[0].device
    indexing = func in INDEXING
    checked = (args[0], *args[2:]) if indexing else (*args, *kwargs.values())
    device, strange = None, []
    for tensor in _tensors(checked):
        if not isinstance(tensor, Pretended):
            strange += [tuple(tensor.shape)] if tensor.ndim else []
        elif device is None:
            device = tensor.device
        elif tensor.device != device:
            raise MixedDevicesError(
                f"{func} mixes tensors of {device} and of {tensor.device}"
            )
    if device is None:
        raise MixedDevicesError(f"{func} takes indices on {NAME} for data on the CPU")
    if strange:
        raise MixedDevicesError(
            f"{func} mixes tensors of {device} and of the CPU, of shape {strange}"
        )
    if indexing and any(
        isinstance(t, Pretended) and t.device != device for t in _tensors(args[1])
    ):
        raise MixedDevicesError(
            f"{func} takes indices on another device for data on {device}"
        )
    return device


@cache
def _places_written(func: Any) -> tuple[tuple[int, str], ...]:
    arguments = enumerate(func._schema.arguments)
    return tuple(
        (place, a.name)
        for place, a in arguments
        if a.alias_info is not None and a.alias_info.is_write
    )


def _written(func: Any, args: Any, kwargs: Any) -> dict[int, Tensor]:
    """The tensors that an operation writes to, by what they hold: it returns them, and not others like them."""
    found: dict[int, Tensor] = {}
    for place, name in _places_written(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        found |= {id(_held(tensor)): tensor for tensor in _tensors([value])}
    for tensor in found.values():
        if isinstance(tensor, Pretended) and (
            tensor.held.shape != tensor.shape or tensor.held.stride() != tensor.stride()
        ):
            with torch._C.DisableTorchFunctionSubclass():
                _SET_DATA(
                    tensor, Pretended(tensor.held, tensor.device)
                )  # an empty result got its shape
    return found


def _given_back(part: Any, written: dict[int, Tensor], device: torch.device) -> Any:
    if isinstance(part, list | tuple):
        return type(part)(_given_back(each, written, device) for each in part)
    if not isinstance(part, Tensor) or isinstance(part, Pretended):
        return part
    if id(part) in written:
        return written[id(part)]
    return Pretended(part, device) if device.type == NAME else part


_watched: list[list[str]] = []


@contextmanager
def round_trips() -> Iterator[list[str]]:
    """The list of all times in the body that the host waits for the device: what was asked for, and by which line.

    The host waits for numbers (`.item()`, `bool()`, `.tolist()`, `.cpu()`), and for a shape that depends on numbers
    (`nonzero()`, a mask in brackets). A device is idle in the meantime.
    """
    _watched.append([])
    try:
        yield _watched[-1]
    finally:
        _watched.pop()


def _host_waits(func: Any, args: Any, device: torch.device) -> bool:
    """Whether an operation gives the host something that only the device knows."""
    if func in COPYING:
        return device.type != NAME and any(
            isinstance(tensor, Pretended) for tensor in _tensors(args)
        )
    if func in INDEXING:
        return any(
            t.dtype in (torch.bool, torch.uint8) and isinstance(t, Pretended)
            for t in _tensors(args[1])
        )
    return bool(
        {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
        & set(func.tags)
    )


def _note(what: str) -> None:
    """Add to the lists what was asked for, and the innermost line of squashlens that asked."""
    if not _watched:
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and "/squashlens/" not in frame.f_code.co_filename:
        frame = frame.f_back
    place = f"{frame.f_code.co_filename.rpartition('/squashlens/')[2]}:{frame.f_lineno}"
    for noted in _watched:
        noted.append(f"{what} at {place}")


_library: list[torch.library.Library] = []


def register() -> None:
    """Let `torch.empty` and its kind make tensors there, in this process and for the rest of its life."""
    if _library:
        return
    library = torch.library.Library("aten", "IMPL")
    for name, function in {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "_copy_from": _copy_from,
        "_efficientzerotensor": _on_the_cpu(torch.zeros),
        "triu_indices": _on_the_cpu(torch.triu_indices),
        "tril_indices": _on_the_cpu(torch.tril_indices),
    }.items():
        library.impl(name, function, "Lazy")
    _library.append(library)


def _on_the_cpu(function: Any) -> Any:
    """A factory that PyTorch does not put together from others."""

    def made(
        *args: Any,
        device: Any = None,
        layout: Any = None,
        pin_memory: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        return Pretended(function(*args, **kwargs), _named(device))

    return made


def _named(device: Any) -> torch.device:
    return torch.device(NAME, torch.device(device).index or 0)


def _empty(
    size: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    return Pretended(
        torch.empty(
            size, dtype=dtype, memory_format=memory_format or torch.contiguous_format
        ),
        _named(device),
    )


def _empty_strided(
    size: Any,
    stride: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    return Pretended(torch.empty_strided(size, stride, dtype=dtype), _named(device))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _held(target).copy_(_held(source))
    return target
