"""Operators of PyTorch that give the same bits on every machine: they move numbers, compare them, or compute what IEEE
754 rounds once. Operators that write their result into tensors that they are given (`out=`) are the operator and a
copy."""

from __future__ import annotations

import functools
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from roundlog.capture.draws import draws
from roundlog.capture.errors import CaptureError, place_of_call
from roundlog.capture.portable.distributions import DRAWN
from roundlog.capture.portable.own_arithmetic import OWN

_MADE = frozenset(["dtype", "layout", "device", "pin_memory"])
"""Options that an operator has only where it makes its result itself."""


class OutVariants(TorchDispatchMode):
    """While this is active, `op(x, out=y)` is traced as `y.copy_(op(x))`, so that nothing after it has to know of
    results that are written. Raises CaptureError for a result of another shape than `out`, which PyTorch would give
    other memory to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = returning(func) if isinstance(func, OpOverload) else None
        if found is None:
            return func(*args, **kwargs)
        plain, names, made = found
        written = [kwargs[name] for name in names]
        options = {key: value for key, value in kwargs.items() if key not in names}
        # Sums and new tensors are computed in the dtype of the tensor that they are written into.
        if "dtype" in made and options.get("dtype") is None:
            options["dtype"] = written[0].dtype
        if "device" in made:
            options["device"] = written[0].device
        results = plain(*args, **options)
        for target, result in zip(written, [results] if len(written) == 1 else results, strict=True):
            if target.shape != result.shape:
                raise CaptureError(
                    f"the operator {func}{place_of_call()} writes a result of shape {list(result.shape)} into an out= "
                    f"of shape {list(target.shape)}: give it an out= of the result's shape, or take what it returns"
                )
            target.copy_(result)
        return written[0] if len(written) == 1 else tuple(written)


@functools.cache
def returning(func: OpOverload) -> tuple[OpOverload, tuple[str, ...], frozenset[str]] | None:
    """The overload that returns what this one writes into its `out` arguments, the names of these, and the options
    that only the other one has. None for an overload that has no such arguments, or no such counterpart."""
    arguments = func._schema.arguments
    outs = tuple(one.name for one in arguments if one.is_out)
    if not outs:
        return None
    wanted = [(one.name, str(one.type)) for one in arguments if not one.is_out]
    packet = func.overloadpacket
    for overload in packet.overloads():
        plain = getattr(packet, overload)
        if plain._schema.is_mutable or len(plain._schema.returns) != len(outs):
            continue
        own = {one.name: str(one.type) for one in plain._schema.arguments}
        extra = own.keys() - {name for name, _ in wanted}
        if extra <= _MADE and [(name, kind) for name, kind in own.items() if name not in extra] == wanted:
            has_dtype = {"dtype"} & own.keys()
            return plain, outs, frozenset(extra | has_dtype)
    return None


_MOVING = """
    _coalesced _dimI _dimV _indices _nnz _sparse_coo_tensor_unsafe _sparse_coo_tensor_with_dims
    _sparse_coo_tensor_with_dims_and_tensors _to_dense _to_sparse _values col_indices crow_indices dense_dim indices
    is_coalesced sparse_dim values
    _conj _efficientzerotensor _local_scalar_dense _neg_view _reshape_alias _reshape_copy _to_copy _unsafe_index
    _unsafe_index_put _unsafe_view alias as_strided block_diag broadcast_to cat channel_shuffle clone combinations
    complex conj constant_pad_nd copy detach diag diag_embed diagonal diagonal_copy diagonal_scatter embedding empty
    empty_like empty_permuted empty_strided expand expand_copy eye fill flip full full_like gather imag index
    index_copy index_fill index_put index_select lift lift_fresh lift_fresh_copy masked_fill masked_scatter
    masked_select new_empty new_empty_strided new_full new_ones new_zeros nonzero nonzero_static ones ones_like
    permute pixel_shuffle pixel_unshuffle put real reflection_pad1d reflection_pad2d reflection_pad3d repeat
    repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape resize resize_as resolve_conj
    resolve_neg roll rot90 scalar_tensor select select_backward select_scatter set slice slice_backward
    slice_scatter split split_with_sizes squeeze stack swapaxes t take to transpose tril triu unbind unfold
    unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_copy view view_as_complex view_as_real
    view_copy where zero zeros zeros_like
"""
_COMPARING = """
    abs all allclose amax amin aminmax any argmax argmin bucketize clamp clamp_max clamp_min copysign count_nonzero
    cummax cummin eq equal fmax fmin ge gt hardtanh heaviside isfinite isin isinf isnan isneginf isposinf kthvalue
    le leaky_relu logical_and logical_not logical_or logical_xor lt max max_pool2d_with_indices
    max_pool3d_with_indices maximum median min minimum mode nan_to_num nanmedian ne nextafter relu searchsorted sgn
    sign signbit threshold topk
"""
_ROUNDING_ONCE = """
    _unique2 add ceil div floor floor_divide fmod frac frexp ldexp mul neg reciprocal remainder round rsqrt rsub
    sqrt square sub trunc unique_consecutive unique_dim
"""

EXACT = frozenset(" ".join((_MOVING, _COMPARING, _ROUNDING_ONCE)).split())
"""Names without overload, and without the underscore of what writes in place. `add`, `sub` and `rsub` without a factor
alone: with one, some machines round once and others twice. `rsqrt` is a root and a division."""

_OF_COMPLEX = "add all any count_nonzero eq equal isfinite isinf isnan logical_not ne neg rsub sub"

EXACT_OF_COMPLEX = frozenset(f"{_MOVING} {_OF_COMPLEX}".split())
"""Operators of `EXACT` that are exact with complex numbers, too; their products and magnitudes are not."""

BY_PAIRS = frozenset(("mul", "_fft_c2c", "_fft_c2r"))
"""Operators of complex numbers that a program, which has pairs, computes as PyTorch does. Magnitudes and quotients
would overflow there, where PyTorch's do not."""

SUMMING = frozenset(("index_put", "_unsafe_index_put", "put"))
"""Operators of `EXACT` that are exact unless they accumulate fractions, which threads may add in any order."""

INTEGERS = frozenset(("random", "randint", "randint_like"))
"""Operators that draw integers: those of the Mersenne Twister, by integers alone."""


_CPU = torch.device("cpu")


class PortableNumbers(TorchDispatchMode):
    """While this is active, operators on the CPU give the same bits on every machine, or are noted."""

    def __init__(self, outer: PortableNumbers | None = None) -> None:
        """outer: what this does the same as, in another thread."""
        super().__init__()  # type: ignore[no-untyped-call]
        outer = outer or _active.get()
        self.is_paused = False
        self._outer = outer
        self.unportable: dict[str, str] = {} if outer is None else outer.unportable
        """Operator that PyTorch computed itself, with bits of this machine, or a process that may have computed with
        them -> ` (at net.py:12)`, where it was first."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_off() or not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        if not _is_here(args, kwargs):
            # Tensors without numbers are nobody's; those of a device, or sparse ones, are that machine's.
            if _has_numbers(args, kwargs) and not _is_view(func) and _name(func) not in EXACT | INTEGERS:
                self._note(func)
            return func(*args, **kwargs)
        if _is_composed(func):
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        if not func._schema.is_mutable and not _is_view(func):
            # Under inference mode, again, nothing has done so, and not every kernel does.
            args, kwargs = tree_map_only(torch.Tensor, _resolved, (args, kwargs))
        if (found := returning(func)) is not None:  # op(x, out=y)
            plain, names, options = found
            written = [kwargs[name] for name in names]
            rest = {key: value for key, value in kwargs.items() if key not in names}
            if "dtype" in options and rest.get("dtype") is None:
                rest["dtype"] = written[0].dtype
            own = self._own(plain, args, rest)
            results = [own] if isinstance(own, torch.Tensor) else own
            if results is None or not all(map(_takes, written, results)):
                return func(*args, **kwargs)
            for target, result in zip(written, results, strict=True):
                target.resize_(result.shape).copy_(result)
            return written[0] if len(written) == 1 else tuple(written)
        own = self._own(_without_underscore(func), args, kwargs)
        if own is None or not _is_in_place(func):
            return func(*args, **kwargs) if own is None else own
        if own.shape != args[0].shape or not _takes(args[0], own):
            return func(*args, **kwargs)  # which refuses it
        return args[0].copy_(own)

    def _is_off(self) -> bool:
        return self.is_paused or _is_torchs.get() or (self._outer is not None and self._outer.is_paused)

    def _own(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Result of an operator by our means; None if PyTorch's are as good, or there are no others."""
        base = _name(func)
        if draws(func):
            make = DRAWN.get(base)
            result = None if make is None else make(_bound(func, args, kwargs))
            if result is None and base not in INTEGERS:
                self._note(func)
            return result
        if _is_view(func):
            return None
        is_complex = _has_complex((args, kwargs))
        if not is_complex and (own := OWN.get(base)) is not None:
            result = own(_bound(func, args, kwargs))
            if result is not NotImplemented:
                return result
        is_exact = base in (EXACT_OF_COMPLEX if is_complex else EXACT)
        if base in SUMMING and is_exact and _has_fractions((args, kwargs)):
            is_exact = not _bound(func, args, kwargs)["accumulate"]
        if is_exact or (func._schema.is_mutable and not _has_fractions((args, kwargs))):
            return None
        if not func._schema.is_mutable and (not is_complex or base in BY_PAIRS):
            if not _has_fractions((args, kwargs)) and not _has_fractions(made := func(*args, **kwargs)):
                return made
            from roundlog.capture.portable.one_operator import by_program  # which evaluates constants by this mode

            try:
                with torchs_own():
                    return by_program(func, args, kwargs)
            except NotImplementedError:
                pass
        self._note(func)
        return None

    def _note(self, func: OpOverload) -> None:
        self.unportable.setdefault(str(func).rpartition(".")[0], place_of_call())


_active: ContextVar[PortableNumbers | None] = ContextVar("roundlog.capture.portable", default=None)
_is_torchs: ContextVar[bool] = ContextVar("roundlog.capture.torchs", default=False)


@contextmanager
def portable() -> Iterator[PortableNumbers | None]:
    """While this lasts, tensors that are made in this thread, and in threads that it starts, have the same bits on
    every machine, as a task's should until `Job.from_task`. Random numbers are others than PyTorch's own for the same
    seed. Gives the mode, which notes the operators that computed with this machine's bits; None inside `torchs_own`.
    Can stand before a function, as `@portable()`."""
    if _is_torchs.get():
        yield None
        return
    if (outer := _active.get()) is not None:
        yield outer
        return
    numbers = PortableNumbers()
    token = _active.set(numbers)
    try:
        with numbers, _in_threads_too(numbers):
            yield numbers
    finally:
        numbers.is_paused = True  # threads may last longer
        _active.reset(token)


@contextmanager
def _in_threads_too(numbers: PortableNumbers) -> Iterator[None]:
    """Has threads that are started meanwhile compute as this one: PyTorch's modes are those of one thread. Processes
    that are not forked are noted: nothing of this one is in them."""
    start, start_process = threading.Thread.start, BaseProcess.start

    def started(thread: threading.Thread) -> None:
        run = thread.run

        def run_so() -> None:
            own = PortableNumbers(numbers)
            _active.set(own)
            with own:
                run()

        if not numbers._is_off():
            thread.run = run_so  # type: ignore[method-assign]
        start(thread)

    def started_process(process: BaseProcess) -> None:
        method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
        if method != "fork" and not numbers._is_off():
            numbers.unportable.setdefault(f"a process by {method}", place_of_call())
        start_process(process)

    threading.Thread.start, BaseProcess.start = started, started_process  # type: ignore
    try:
        yield
    finally:
        threading.Thread.start, BaseProcess.start = start, start_process  # type: ignore[method-assign]


@contextmanager
def torchs_own() -> Iterator[None]:
    """While this lasts, `portable` does nothing: tensors have the bits that PyTorch's kernels give on this machine."""
    token = _is_torchs.set(True)
    try:
        yield
    finally:
        _is_torchs.reset(token)


@contextmanager
def paused() -> Iterator[None]:
    """While this lasts, a `portable` around it does nothing: a step is traced, or run as its user would run it."""
    outer = _active.get()
    if outer is None:
        yield
        return
    was_paused, outer.is_paused = outer.is_paused, True
    try:
        yield
    finally:
        outer.is_paused = was_paused


def _name(func: OpOverload) -> str:
    """Name without overload, and without the underscore of what writes in place."""
    return str(func).removeprefix("aten.").partition(".")[0].removesuffix("_")


def _is_here(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operator computes with plain tensors on the CPU."""
    return _device(kwargs) == "cpu" and all(
        not isinstance(x, FakeTensor) and x.device == _CPU and x.layout == torch.strided and not x.is_nested
        for x in _tensors((args, kwargs))
    )


def _has_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operator computes with tensors that are neither fake nor on the meta device."""
    tensors = _tensors((args, kwargs))
    return _device(kwargs) != "meta" and not any(isinstance(x, FakeTensor) or x.is_meta for x in tensors)


def _device(kwargs: dict[str, Any]) -> str:
    """Kind of the device that a result is asked for on."""
    device = kwargs.get("device")
    return "cpu" if device is None else torch.device(device).type


def _tensors(things: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(things) if isinstance(leaf, torch.Tensor)]


def _resolved(x: torch.Tensor) -> torch.Tensor:
    """A tensor whose memory holds its numbers, not their conjugates or negatives."""
    return x.resolve_conj().resolve_neg() if x.is_conj() or x.is_neg() else x


def _has_fractions(things: Any) -> bool:
    """Whether tensors of floating point are among them."""
    return any(x.is_floating_point() or x.is_complex() for x in _tensors(things))


def _has_complex(things: Any) -> bool:
    """Whether complex numbers are among them, in tensors or not."""
    leaves = tree_leaves(things)
    return any(leaf.is_complex() if isinstance(leaf, torch.Tensor) else type(leaf) is complex for leaf in leaves)


def _takes(target: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether PyTorch writes numbers of the result's dtype into a tensor."""
    return torch.can_cast(result.dtype, target.dtype)


def _is_composed(func: OpOverload) -> bool:
    """Whether an operator only calls others: under `torch.inference_mode`, nothing has done so yet."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _is_view(func: OpOverload) -> bool:
    """Whether an operator gives the memory of what it is given, which nothing else may stand for."""
    infos = (one.alias_info for one in func._schema.returns)
    return any(info is not None and not info.is_write for info in infos)


def _is_in_place(func: OpOverload) -> bool:
    name = func._schema.name.removeprefix("aten::")
    return func._schema.is_mutable and name.endswith("_") and not name.startswith("_")


def _without_underscore(func: OpOverload) -> OpOverload:
    """The overload that returns what this one writes into its first argument; itself for any other."""
    if not _is_in_place(func):
        return func
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::")[:-1], None)
    overload = func._overloadname
    if packet is None or overload not in packet.overloads():
        return func
    found: OpOverload = getattr(packet, overload)
    return found


def _bound(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Argument name -> what a call gives for it, or its default."""
    bound = {}
    for position, argument in enumerate(func._schema.arguments):
        # The default of randperm's dtype is a number.
        default = argument.default_value if argument.has_default_value() and argument.name != "dtype" else None
        bound[argument.name] = args[position] if position < len(args) else kwargs.get(argument.name, default)
    return bound
