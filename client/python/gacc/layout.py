# SPDX-License-Identifier: Apache-2.0
"""The tensor set of a job as a trainer names it, and where each tensor lies in slots and parameters."""
from __future__ import annotations

from typing import Any, Iterable, Mapping, NamedTuple, Sequence, Union

import numpy as np

from .dtypes import NUMPY, Array, as_wire, number_of
from .errors import GaccError


class Tensor(NamedTuple):
    """One parameter. `dtype`: f32, bf16 or f16, as a name, numpy's or torch's. `alias_of`: a tied parameter, the name of the earlier tensor
    whose memory it shares."""
    name: str
    dtype: Any
    shape: Sequence[int] = ()
    alias_of: str = ""


TensorSet = Union[Mapping[str, Any], Iterable[Any]]


def tensors_of(given: TensorSet) -> list[Tensor]:
    """From {name: (dtype, shape)}, {name: array}, or a list of Tensor or (name, dtype, shape[, alias_of]). Arrays: of anything with dtype and shape."""
    items = [(name, *_pair(value)) for name, value in given.items()] if isinstance(given, Mapping) else given
    tensors = [Tensor(*item) for item in items]
    if not tensors:
        raise GaccError("no tensors", reason="INVALID_ARGUMENT")
    return [Tensor(str(t.name), number_of(t.dtype), tuple(int(n) for n in t.shape), t.alias_of or "") for t in tensors]


def _pair(value: Any) -> tuple[Any, Any]:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return value.dtype, value.shape
    dtype, shape = value
    return dtype, shape


class Layout:
    """Offsets and types of the registered tensors. Immutable."""

    def __init__(self, tensors: Sequence[Tensor], parts: Sequence[Any], answer: Any):
        self.tensors, self.parts = tuple(tensors), tuple(parts)
        self.names = [t.name for t in tensors]
        self.slot_bytes, self.param_bytes, self.accum_bytes = answer.slot_bytes, answer.param_bytes, answer.accum_bytes
        self.slots, self.keeps_slot, self.fingerprint = answer.slots, answer.keeps_slot, answer.fingerprint
        self.accumulate_dtype = answer.accumulate_dtype
        self.index = {name: i for i, name in enumerate(self.names)}

    def _views(self, memory: Array, offset: str, dtype: Any, aliases: bool) -> dict[str, Array]:
        views = {}
        for t, part in zip(self.tensors, self.parts):
            if t.alias_of and not aliases:
                continue
            kind = NUMPY[getattr(part, dtype) if isinstance(dtype, str) else int(dtype)]
            at = getattr(part, offset)
            views[t.name] = memory[at:at + part.count * kind.itemsize].view(kind).reshape(t.shape)
        return views

    def gradients(self, slot: Array) -> dict[str, Array]:
        """Views of a slot's bytes, name -> array; tied tensors once."""
        return self._views(slot, "slot_offset", "grad_dtype", False)

    def values(self, parameters: Array) -> dict[str, Array]:
        """Views of the parameters' bytes, name -> array; a tied tensor is its target's memory."""
        return self._views(parameters, "param_offset", "param_dtype", True)

    def sums(self, reduced: Array) -> dict[str, Array]:
        """Views of the reduced gradients (optimizer client)."""
        return self._views(reduced, "accum_offset", self.accumulate_dtype, False)

    def named(self, values: Any, what: str) -> dict[str, Any]:
        """A mapping by name, or a sequence in the order of the tensors (tied ones left out or not), as a mapping."""
        if isinstance(values, Mapping):
            strange = [name for name in values if name not in self.index]
            if strange:
                raise GaccError(f"{what}: no tensor {strange[0]!r} is registered", reason="INVALID_ARGUMENT")
            return dict(values)
        values, own = list(values), [t.name for t in self.tensors if not t.alias_of]
        names = own if len(values) == len(own) else self.names
        if len(values) != len(names):
            raise GaccError(f"{what}: {len(values)} arrays for {len(names)} tensors", reason="INVALID_ARGUMENT")
        return dict(zip(names, values))

    def present(self, names: Iterable[str]) -> bytes:
        """The bitmap of PushRequest: bit t, from the lowest on, is tensor t."""
        bits = np.zeros(len(self.tensors), bool)
        for name in names:
            if name not in self.index:
                raise GaccError(f"present: no tensor {name!r} is registered", reason="INVALID_ARGUMENT")
            bits[self.index[name]] = True
        if not bits.any():
            raise GaccError("present: no tensor was touched", reason="INVALID_ARGUMENT", hint="flush() instead, or push zeros")
        return np.packbits(bits, bitorder="little").tobytes()

    def gather(self, values: Mapping[str, Array], first: int, out: Array) -> None:
        """Bytes [first, first + len(out)) of the parameter layout into `out`; `values`: in the wire's types, contiguous."""
        out[:] = 0
        for t, part in zip(self.tensors, self.parts):
            if t.alias_of:
                continue
            data = values[t.name]
            begin, end = max(part.param_offset, first), min(part.param_offset + data.size, first + out.size)
            if begin < end:
                out[begin - first:end - first] = data[begin - part.param_offset:end - part.param_offset]

    def wire_values(self, values: Any) -> dict[str, Array]:
        """Initial values of all tensors, as bytes."""
        given, out = self.named(values, "upload"), {}
        for t, part in zip(self.tensors, self.parts):
            if t.alias_of:
                continue
            if t.name not in given:
                raise GaccError(f"upload: no value for {t.name!r}", reason="INVALID_ARGUMENT", hint="give all tensors")
            a = np.ascontiguousarray(as_wire(given[t.name], part.param_dtype))
            if a.size != part.count:
                raise GaccError(f"upload: {t.name!r} has {a.size} elements, not {part.count}", reason="INVALID_ARGUMENT")
            out[t.name] = a.reshape(-1).view(np.uint8)
        return out
