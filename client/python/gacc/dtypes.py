# SPDX-License-Identifier: Apache-2.0
"""Element types: their numbers on the wire, numpy's types for them, and bf16, which numpy does not have."""
from __future__ import annotations

from typing import Any

import numpy as np

from .errors import GaccError

Array = np.ndarray[Any, Any]
F32, F64, F16, BF16 = 1, 2, 3, 4  # gacc.v1.DataType
NUMPY: dict[int, np.dtype[Any]] = {F32: np.dtype(np.float32), F64: np.dtype(np.float64), F16: np.dtype(np.float16),
                                   BF16: np.dtype(np.uint16)}  # its bits
NAMES = {"f32": F32, "f64": F64, "f16": F16, "bf16": BF16, "float32": F32, "float64": F64, "float16": F16, "bfloat16": BF16,
         "float": F32, "half": F16, "double": F64}


def number_of(dtype: Any) -> int:
    """Of "f32", "bfloat16", numpy.float32, numpy.dtype, torch.bfloat16, ml_dtypes.bfloat16, or a number of the wire."""
    if isinstance(dtype, int):
        name = dtype
    elif isinstance(dtype, str):
        name = NAMES.get(dtype.lower(), 0)
    else:
        text = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
        name = NAMES.get(text.rsplit(".", 1)[-1], 0)
    if name not in NUMPY:
        raise GaccError(f"no element type {dtype!r}", reason="INVALID_ARGUMENT", hint="f32, bf16 or f16; f64 for sums alone")
    return name


def short_name(number: int) -> str:
    """f32, bf16, .. of a number of the wire."""
    return next(name for name, n in NAMES.items() if n == number)


def to_bf16(array: Any) -> Array:
    """Bits of the nearest bf16 (ties to even), as uint16, of f32 values."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(np.asarray(array, np.float32)), np.uint32(0x7FC0), rounded).astype(np.uint16)


def from_bf16(bits: Any) -> Array:
    """f32 values of bf16 bits."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def as_wire(array: Any, dtype: int) -> Array:
    """The array in the element type of the wire; for bf16, uint16 is taken as bits and ml_dtypes.bfloat16 as what it is."""
    a: Array = np.asarray(array)
    if dtype != BF16:
        return a.astype(NUMPY[dtype], copy=False)
    if a.dtype.name == "bfloat16":
        return a.view(np.uint16)
    return a if a.dtype == np.uint16 else to_bf16(a)
