# SPDX-License-Identifier: Apache-2.0
"""A trainer's own state at gaccd, in portions of messages. For session.py."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional

from .errors import LATE, GaccError
from .link import Link

PORTION = 1 << 20
TRIES = 3  # a gaccd that was started meanwhile has none of the portions


class SavedState(NamedTuple):
    """What a rank has saved.

    window   the window before whose first push it was saved
    data     the bytes
    """
    window: int
    data: bytes


def put(link: Link, window: int, data: bytes, timeout: Optional[float]) -> None:
    for tries in range(TRIES):
        try:
            for at in range(0, len(data) or 1, PORTION):
                link.call("PutTrainerState", timeout, "save the state", window=window, total_bytes=len(data), offset=at, data=data[at:at + PORTION])
            return
        except GaccError as e:
            if e.reason in LATE or e.reason == "JOB_ENDED":  # there is nothing any more that it could be saved with
                return
            if e.reason != "OUT_OF_ORDER" or tries == TRIES - 1:
                raise


def get(link: Link, timeout: Optional[float]) -> Optional[SavedState]:
    data, first = b"", _ask(link, 0, timeout)
    answer: Any = first
    while first.found:
        data += answer.data
        if len(data) == first.total_bytes:
            return SavedState(first.window, data)
        answer = _ask(link, len(data), timeout)
        if (answer.window, answer.total_bytes) != (first.window, first.total_bytes) or not answer.data:
            raise GaccError("the saved state is another one by now", reason="PARAMS_CHANGED", hint="call it again")
    return None


def _ask(link: Link, offset: int, timeout: Optional[float]) -> Any:
    return link.call("GetTrainerState", timeout, "get the saved state", offset=offset)
