# SPDX-License-Identifier: Apache-2.0
"""Calls that take more than one message: the tensor set, and the initial parameters. For session.py."""
from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from .dtypes import Array
from .errors import GaccError
from .layout import Layout
from .link import Link
from .memory import SLOT

PORTION = 10000  # tensors in one RegisterTensors: a message has at most 4 MiB


def declare(link: Link, known: Sequence[Any], timeout: Optional[float]) -> Any:
    """The last RegisterTensorsResponse."""
    if len(known) <= PORTION:
        return link.call("RegisterTensors", timeout, tensors=known)
    for tries in range(3):  # what gaccd has collected goes with it, and is asked for from tensor 0 on
        try:
            for first in range(0, len(known), PORTION):
                answer = link.call("RegisterTensors", timeout, first=first, total=len(known), tensors=known[first:first + PORTION], layout_limit=50000)
            return answer
        except GaccError as e:
            if e.reason != "OUT_OF_ORDER" or tries == 2:
                raise


def put(link: Link, layout: Layout, values: Mapping[str, Array]) -> None:
    """Initial parameters through slot 0, in pieces of its size."""
    slot, total = link.memory.data(SLOT, 0), layout.param_bytes
    room = link.memory.portion(layout.slot_bytes)
    for at in range(0, total, room):
        n = min(room, total - at)
        with link.memory.on_host(slot[:n]) as piece:
            layout.gather(values, at, piece)
        if link.call("PutParameters", None, "upload", slot=0, offset=at, bytes=n, last=at + n == total).ready:
            break
