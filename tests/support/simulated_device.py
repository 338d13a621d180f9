"""A device that exists only in tests: it computes on the CPU, but behaves like a GPU towards its host.

Its tensors cannot be read by the host except by a copy, cannot be mixed with the host's tensors, and
every operator and every transfer is recorded:

>>> with recording() as log:
...     x = torch.ones(3, device=DEVICE)
...     y = (x + 1).cpu()
>>> log.kernels
['fill_', 'add']
>>> [(transfer.direction, transfer.size, transfer.blocking) for transfer in log.transfers]
[('to host', 12, True)]

What it is strict about, because some device is:

* ``item()``, ``bool()`` and ``numpy()`` raise; ``nonzero``, masks and all other results whose size only
  the device knows are recorded as blocking transfers to the host, which they are on a GPU;
* a copy to the device without blocking reads its source later, so the source has to stay as it is:
  ``Log.lost`` has the copies whose source was freed or overwritten;
* a copy to the host without blocking arrives with the next synchronisation; until then the
  destination has arbitrary values;
* under ``torch.use_deterministic_algorithms(True)``, operators raise that do so on a GPU;
* within ``without_float64()``, it has no float64, like Apple's GPUs.

An operator counts as one kernel, and views and allocations as none. A real device may need several
kernels for an operator, such as a sort.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import backend_registration
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

NAME = "simulated"
_SETUP = "_setup_privateuseone_for_python_backend"  # since torch 2.10, experimental
if not hasattr(backend_registration, _SETUP):
    pytest.skip(f"torch {torch.__version__} lacks {_SETUP}", allow_module_level=True)


@dataclass
class Transfer:
    """A copy between host and device; ``operator`` is what caused it."""

    operator: str
    direction: str  # "to host" or "to device"
    size: int  # in bytes
    blocking: bool
    source: _Source | None = None  # of a copy to the device without blocking


@dataclass(eq=False)
class Log:
    """What the device was asked for, in order."""

    kernels: list[str] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)

    @property
    def waits(self) -> list[Transfer]:
        """The transfers for which the host waits."""
        return [transfer for transfer in self.transfers if transfer.blocking]

    @property
    def to_host(self) -> list[Transfer]:
        return [transfer for transfer in self.transfers if transfer.direction == "to host"]

    @property
    def to_device(self) -> list[Transfer]:
        return [transfer for transfer in self.transfers if transfer.direction == "to device"]

    @property
    def lost(self) -> list[Transfer]:
        """The copies without blocking whose source has been freed or overwritten."""
        return [t for t in self.transfers if t.source is not None and t.source.lost()]


@contextmanager
def recording() -> Iterator[Log]:
    """Record what happens on the device within the block."""
    log = Log()
    _logs.append(log)
    try:
        yield log
    finally:
        _logs.remove(log)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Leave out of all records what happens within the block."""
    logs = _logs.copy()
    _logs.clear()
    try:
        yield
    finally:
        _logs.extend(logs)


@contextmanager
def without_float64() -> Iterator[None]:
    """Let the device have no float64 within the block."""
    _missing_types.add(torch.float64)
    try:
        yield
    finally:
        _missing_types.clear()


def synchronize() -> None:
    """Wait until the device has done everything: what was copied to the host arrives."""
    for destination, values in _arriving:
        destination.copy_(values)
    _arriving.clear()


def on_host(value: torch.Tensor) -> torch.Tensor:
    """Look at a tensor from the outside: nothing is recorded."""
    return value._data.detach().clone() if isinstance(value, SimulatedTensor) else value


_logs: list[Log] = []
_arriving: list[tuple[torch.Tensor, torch.Tensor]] = []
_missing_types: set[torch.dtype] = set()


class _Source:
    """The memory that a copy without blocking will be read from."""

    def __init__(self, tensor: torch.Tensor, *, temporary: bool) -> None:
        self._temporary = temporary
        self._storage = StorageWeakRef(tensor.untyped_storage())
        self._place = (tensor.storage_offset(), tensor.size(), tensor.stride())
        self._values = tensor.detach().clone()

    def lost(self) -> bool:
        if self._temporary:
            return True
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        if storage is None:
            return True
        now = self._values.new_empty(0).set_(storage, *self._place)
        return not torch.equal(_bytes(now), _bytes(self._values))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


class SimulatedTensor(torch.Tensor):
    """A tensor on the device; its values are those of ``_data``."""

    @staticmethod
    def __new__(cls, data: torch.Tensor):
        if data.dtype in _missing_types:
            raise TypeError(f"This device has no {data.dtype}.")
        return torch.Tensor._make_wrapper_subclass(
            cls,
            data.size(),
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            layout=data.layout,
            device=DEVICE,
        )

    def __init__(self, data: torch.Tensor) -> None:
        self._data = data

    def __repr__(self) -> str:
        return f"SimulatedTensor({self._data})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _call(function, args, kwargs or {})


# Operators that raise under torch.use_deterministic_algorithms(True) on a GPU, for floating point numbers.
_NONDETERMINISTIC = {"cumsum", "histc", "kthvalue", "nll_loss2d_forward", "put_"}
# Operators whose result has a size that only the device knows; the host waits to allocate it.
_SIZE_ON_DEVICE = {
    "bincount",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique_consecutive",
}
_SIZE_ON_DEVICE |= {"_unique", "_unique2", "unique_dim"}
_READ_BY_HOST = {"_local_scalar_dense", "equal", "is_nonzero"}
_NO_KERNEL = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "set_"}
_NO_KERNEL |= {"lift_fresh", "new_empty_strided", "resize_", "record_stream"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


def _call(function, args, kwargs):
    name = function.name().removeprefix("aten::").split(".")[0]
    if name in _READ_BY_HOST:
        raise RuntimeError(
            f"{name} makes the host wait for the device in the middle of whatever it does. Copy "
            "tensors to the host explicitly, with cpu()."
        )
    if name == "copy_":
        return _copy(*args, **kwargs)
    if name == "_to_copy" and _target(kwargs).type == "cpu":
        source, dtype = args[0], kwargs.get("dtype") or args[0].dtype
        destination = torch.empty_like(source._data, dtype=dtype)
        return _copy(destination, source, kwargs.get("non_blocking", False))
    _check_call(name, args, kwargs)
    if name not in _NO_KERNEL and not _is_view(function):
        _record_kernel(name)
    if name in _SIZE_ON_DEVICE:
        _record_transfer(name, "to host", 8, blocking=True)
    on_device = "device" not in kwargs or _target(kwargs).type == NAME
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "cpu"}
    result = function(*tree_map(_unwrapped, args), **tree_map(_unwrapped, kwargs))
    if not on_device:
        return result
    wrapped = tree_map(_wrapped, result)
    if name in _NO_KERNEL:
        return wrapped
    return return_and_correct_aliasing(function, args, kwargs, wrapped)


def _check_call(name, args, kwargs) -> None:
    """Raise where a GPU would, and record what indexing copies on the quiet."""
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    if name in _INDEXING:
        _record_indexing(name, [index for index in args[1] if index is not None])
        tensors = [value for value in (args[0], *args[2:3]) if isinstance(value, torch.Tensor)]
    for tensor in tensors:
        # As on a GPU, a number may be a tensor of the host: it is an argument of the kernel.
        if not isinstance(tensor, SimulatedTensor) and tensor.dim():
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {name} got tensors on "
                f"{DEVICE} and {tensor.device}."
            )
    floats = any(tensor.is_floating_point() for tensor in tensors)
    if floats and name in _NONDETERMINISTIC and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(f"{name} does not have a deterministic implementation.")


def _record_indexing(name, indices) -> None:
    for index in indices:
        if index.dtype in (torch.bool, torch.uint8):
            _record_transfer("nonzero", "to host", 8, blocking=True)
        if not isinstance(index, SimulatedTensor):
            _record_transfer(name, "to device", index.nbytes, blocking=True)


def _copy(destination, source, non_blocking=False):
    to_device = isinstance(destination, SimulatedTensor)
    if to_device and isinstance(source, SimulatedTensor):
        _record_kernel("copy_")
        destination._data.copy_(source._data)
    elif to_device:
        # If the type changes, the host converts it into a temporary that the copy is then made from.
        temporary = source.dtype != destination.dtype or not source.is_contiguous()
        kept = _Source(source, temporary=temporary) if non_blocking else None
        _record_transfer(
            "copy_", "to device", destination._data.nbytes, blocking=not non_blocking, source=kept
        )
        destination._data.copy_(source)
    else:
        _record_transfer("copy_", "to host", source._data.nbytes, blocking=not non_blocking)
        if non_blocking:
            _arriving.append((destination, source._data.detach().clone()))
            destination.fill_(torch.nan if destination.is_floating_point() else 77)
        else:
            synchronize()
            destination.copy_(source._data)
    return destination


def _record_kernel(name: str) -> None:
    for log in _logs:
        log.kernels.append(name)


def _record_transfer(operator, direction, size, *, blocking, source=None) -> None:
    if blocking:
        synchronize()
    for log in _logs:
        log.transfers.append(Transfer(operator, direction, size, blocking, source))


def _is_view(function) -> bool:
    infos = [returned.alias_info for returned in function._schema.returns]
    return any(info is not None and not info.is_write for info in infos)


def _target(kwargs) -> torch.device:
    return torch.device(kwargs.get("device") or DEVICE)


def _unwrapped(value):
    return value._data if isinstance(value, SimulatedTensor) else value


def _wrapped(value):
    return SimulatedTensor(value) if isinstance(value, torch.Tensor) else value


class _Module:
    """``torch.simulated``: to be found by name, but never by those who look for a GPU to use."""

    synchronize = staticmethod(synchronize)

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Do nothing: random numbers come from the host's generator."""


# Registered, it stays for the rest of the process. Whoever asks which accelerator to use, such as
# init_process_group(), gets the same answer as before.
_found = torch._C._get_accelerator()
getattr(backend_registration, _SETUP)(rename=NAME, backend_module=_Module())
torch._C._get_accelerator = lambda check=None: _found
torch.accelerator.current_accelerator = lambda check_available=False: (
    None if _found.type == "cpu" else _found
)
DEVICE = torch.device(NAME, 0)

_library = torch.library.Library("aten", "IMPL")


def _factory(operator: str, *, kernel: bool) -> None:
    """Let an operator without tensors make them on the device."""
    packet, overload = operator.split(".")
    function = getattr(getattr(torch.ops.aten, packet), overload)

    def make(*args, device=None, pin_memory=None, **kwargs):
        if kernel:
            _record_kernel(packet)
        return SimulatedTensor(function(*args, device="cpu", **kwargs))

    name = packet if overload == "default" else operator
    _library.impl(name, make, "PrivateUse1")


for _operator in ("empty.memory_format", "empty_strided.default"):
    _factory(_operator, kernel=False)
for _operator in ("arange.default", "arange.start", "arange.start_step", "randperm.default"):
    _factory(_operator, kernel=True)


def _copy_from(source, destination, non_blocking=False):
    return _copy(destination, source, non_blocking)


_library.impl("_copy_from", _copy_from, "PrivateUse1")  # torch.tensor(…, device=…) takes this way
