# SPDX-License-Identifier: Apache-2.0
"""What differs between array libraries: allocation, current streams, types that DLPack does not carry."""

from __future__ import annotations

import sys
from typing import Any, Callable, Optional, Sequence, Tuple

from . import _core

Shape = Tuple[int, ...]

# Names of element types, in NumPy, PyTorch, JAX and here.
_TYPE_NAMES = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float8_e8m0fnu": "e8m0",
    "int8": "int8",
}


def type_name(dtype: Any) -> str:
    """The name of a type here ("fp16") from that, or from a dtype of an array library (torch.float16, numpy.float16)."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return _TYPE_NAMES.get(name.rsplit(".", 1)[-1], name)


def library_of(array: Any) -> str:
    """The top-level module of an array's type, such as "numpy"."""
    return type(array).__module__.partition(".")[0]


def other_export(array: Any) -> Tuple[Any, Optional[str]]:
    """A DLPack capsule for an array whose __dlpack__() fails, and the name of the type if the capsule has only its bits.
    (None, None) if there is none. NumPy marks read-only arrays in versioned capsules alone, and exports no ml_dtypes."""
    name = None
    if library_of(array) == "numpy" and array.dtype.kind == "V":
        name = _TYPE_NAMES.get(array.dtype.name)
        if name is None:
            return None, None
        array = array.view(f"uint{8 * array.dtype.itemsize}")
    try:
        return array.__dlpack__(max_version=(1, 0)), name
    except (BufferError, RuntimeError, TypeError):
        return None, None


def _numpy_empty(like: Any, shape: Shape, float32: bool) -> Any:
    import numpy

    return numpy.empty(shape, numpy.float32 if float32 else like.dtype)


def _torch_empty(like: Any, shape: Shape, float32: bool) -> Any:
    import torch

    return like.new_empty(shape, dtype=torch.float32) if float32 else like.new_empty(shape)


def _cupy_empty(like: Any, shape: Shape, float32: bool) -> Any:
    import cupy

    return cupy.empty(shape, cupy.float32 if float32 else like.dtype)


def _jax_empty(like: Any, shape: Shape, float32: bool) -> Any:
    import jax.numpy

    # JAX's arrays are immutable. This one is new and nobody else has seen it, so it may be written once.
    array = jax.numpy.empty(shape, jax.numpy.float32 if float32 else like.dtype, device=like.device)
    return array.block_until_ready()


_EMPTY: dict[str, Callable[[Any, Shape, bool], Any]] = {
    "numpy": _numpy_empty,
    "torch": _torch_empty,
    "cupy": _cupy_empty,
    "jaxlib": _jax_empty,
    "jax": _jax_empty,
}


def empty(like: Any, shape: Sequence[int], float32: bool = False) -> Any:
    """A new array of the library, the device and the type of `like`, or of float32."""
    make = _EMPTY.get(library_of(like))
    if make is not None:
        return make(like, tuple(shape), float32)
    if not hasattr(like, "__array_namespace__"):
        raise ValueError(
            f"pagoda: there is no way to make an output beside an array of type {type(like).__name__}; allowed: arrays of "
            "NumPy, PyTorch, JAX, CuPy or the array API standard, or out= and lse= of yours"
        )
    namespace = like.__array_namespace__()
    return namespace.empty(tuple(shape), dtype=namespace.float32 if float32 else like.dtype, device=like.device)


def query_rows(who: str, q: Any) -> Shape:
    """The shape of queries, without their dims: (query tokens, q heads). Raises ValueError for what is no such array."""
    shape = getattr(q, "shape", None)
    if shape is None:
        raise ValueError(
            f"{who}: q is an object of type {type(q).__name__}; allowed: an array with __dlpack__ (NumPy, PyTorch, JAX, CuPy)"
        )
    if len(shape) != 3:
        raise ValueError(f"{who}: q has {len(shape)} axes; allowed: 3 (query token, q head, head_dim)")
    return shape[0], shape[1]


def outputs(
    who: str, q: Any, head_dim_v: int, out: Optional[Any], lse: Optional[Any], return_lse: bool
) -> Tuple[Any, Optional[Any]]:
    """out and lse of a decode: those of the caller, or new arrays of q's library."""
    if out is not None:
        writable(who, "out", out)
    new_lse = return_lse and lse is None
    if out is None or new_lse:
        rows = query_rows(who, q)
        if out is None:
            out = empty(q, (*rows, head_dim_v))
        if new_lse:
            lse = empty(q, rows, True)
    return out, lse


def scale(like: Any, value: Any) -> Any:
    """A float as an array of rank 0 beside `like`; arrays as they are."""
    if value is None or hasattr(value, "__dlpack__") or not isinstance(value, (int, float)):
        return value
    library = library_of(like)
    if library == "torch":
        import torch

        return torch.full((), float(value), dtype=torch.float32, device=like.device)
    if library in ("jax", "jaxlib"):
        import jax

        return jax.device_put(jax.numpy.float32(value), like.device)
    namespace = like.__array_namespace__() if hasattr(like, "__array_namespace__") else sys.modules[library]
    return namespace.full((), float(value), dtype=namespace.float32)


def writable(who: str, name: str, array: Any) -> Any:
    """Raises ValueError for arrays that are immutable but whose DLPack description does not say so."""
    if array is not None and library_of(array) in ("jax", "jaxlib"):
        raise ValueError(f"{who}: {name} is a JAX array, which is immutable; allowed: None, and the result is a new array")
    return array


# CUDA's number of the legacy default stream. (0 stands for the default instance of Kokkos here.)
_LEGACY_DEFAULT_STREAM = 1


def _current_stream(library: str) -> Any:
    """The current stream of a library that has one, or else of one that the program has loaded."""
    for name in (library, "torch", "cupy"):
        module = sys.modules.get(name)
        if name == "torch" and module is not None and module.cuda.is_initialized():
            return module.cuda.current_stream()
        if name == "cupy" and module is not None:
            return module.cuda.get_current_stream()
    return None


def stream_number(device: str, array: Any, stream: Any = None) -> int:
    """The stream of a call on this device ("cpu", "cuda:0") as a number: `stream` if it is given (a number, or an object
    of PyTorch, CuPy or the protocol __cuda_stream__), or else the current stream of the library of `array`."""
    if device == "cpu":
        return 0
    library = library_of(array)
    if stream is None and library == "torch" and str(array.device) != device:
        return 0  # the call refuses the array
    if stream is None:
        stream = _current_stream(library)
        if stream is None:
            return 0
        if library == "torch" and stream.device != array.device:
            raise ValueError(f"pagoda: an array is on {array.device}; allowed: {stream.device}, the current device")
    for attribute in ("cuda_stream", "ptr"):
        stream = getattr(stream, attribute, stream)
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    if isinstance(stream, bool) or not isinstance(stream, int) or stream < 0:
        raise TypeError(f"pagoda: stream is {stream!r}; allowed: a number, or a stream of PyTorch or CuPy")
    return stream if stream != 0 else _LEGACY_DEFAULT_STREAM


def device_of(array: Any) -> str:
    """Where an array is: "cpu", or another name."""
    device = getattr(array, "__dlpack_device__", None)
    if device is None:
        return "cpu"  # the call refuses the object
    kind, number = device()
    return {1: "cpu", 2: "cuda", 3: "cpu", 10: "rocm", 11: "cpu", 13: "cuda"}.get(int(kind), "other") + (
        "" if int(kind) in (1, 3, 11) else f":{number}"
    )


_DEVICE_TYPES = {"cpu": 1, "cuda": 2, "rocm": 10}


def device_numbers(who: str, device: Any) -> tuple[int, int]:
    """DLPack's numbers of "cpu", "cuda", "cuda:1" or a torch.device. PyTorch calls AMD's devices cuda, too."""
    kind, _, number = str(device).partition(":")
    if kind not in _DEVICE_TYPES or not (number == "" or number.isdigit()):
        raise ValueError(f'{who}: device is {str(device)!r}; allowed: "cpu", "cuda" or "rocm", with :number')
    return _DEVICE_TYPES[kind], int(number or 0)


def wait_for_jax(array: Any, device: str, stream: int) -> None:
    """JAX has no current stream: it reads results as soon as a call returns, so the call waits for a GPU."""
    if device != "cpu" and library_of(array) in ("jax", "jaxlib"):
        _core.fence(device, stream)
