# SPDX-License-Identifier: Apache-2.0
"""Gradients and parameters in messages, for a session whose gaccd is on another machine. Each function is one attempt."""
from __future__ import annotations

from typing import Any, Iterator, Mapping

import numpy as np

from .dtypes import Array
from .link import SERVICE, Link
from .memory import PARAMETERS, REDUCED, SLOT
from .messages import types

CHUNK = 1 << 20  # bytes of data in one message; 4 MiB at most


def _chunks(total: int) -> Iterator[tuple[int, int]]:
    return ((at, min(CHUNK, total - at)) for at in range(0, total, CHUNK))


def push(link: Link, fields: Mapping[str, Any], timeout: float) -> Any:
    """PushInline of a slot; PushResponse."""
    known, data = types(), link.memory.data(SLOT, fields["slot"])
    header = known.PushRequest(session=link.session, **fields)
    messages = (known.PushInlineRequest(header=header if at == 0 else None, offset=at, data=data[at:at + n].tobytes())
                for at, n in _chunks(link.layout.slot_bytes))
    return link.channel.call(SERVICE, "PushInline", timeout, messages)


def put(link: Link, values: Mapping[str, Array], timeout: float) -> Any:
    """PutParametersInline of all parameters; PutParametersResponse."""
    known, total = types(), link.layout.param_bytes

    def piece(at: int, n: int) -> bytes:
        out = np.empty(n, np.uint8)
        link.layout.gather(values, at, out)
        return out.tobytes()
    messages = (known.PutParametersInlineRequest(session=link.session if at == 0 else None, offset=at, last=at + n == total, data=piece(at, n))
                for at, n in _chunks(total))
    return link.channel.call(SERVICE, "PutParametersInline", timeout, messages)


def fetch(link: Link, reduced: bool, timeout: float) -> None:
    """GetParameters into this process's memory."""
    data = link.memory.data(REDUCED if reduced else PARAMETERS, 0)
    for chunk in link.channel.stream(SERVICE, "GetParameters", timeout, session=link.session, reduced_gradients=reduced):
        data[chunk.offset:chunk.offset + len(chunk.data)] = np.frombuffer(chunk.data, np.uint8)
