# SPDX-License-Identifier: Apache-2.0
"""What a rank keeps with its job besides gradients: values in the history, and a state of its own in checkpoints. For session.py."""
from typing import Any, Mapping, Optional

from . import state
from .link import Link
from .scalars import Scalars
from .state import SavedState


class Own:
    """The part of a Session that has these calls."""
    _link: Link
    _scalars: Scalars
    _window: int
    _last_pushed: int  # window of the last push; -1: none yet

    def ready(self, timeout: Optional[float] = None) -> None:
        raise NotImplementedError

    def _check_open(self) -> None:
        raise NotImplementedError

    def _answer_sent(self, timeout: Optional[float] = None) -> None:
        raise NotImplementedError

    def log(self, values: Optional[Mapping[str, Any]] = None, /, *, window: Optional[int] = None, **named: Any) -> None:
        """Keeps numbers under names in the job's history: log(accuracy=0.9), log({"val/loss": x}). Returns at once; what gaccd refuses is told as
        a warning. At most 64 names in a job, of 63 bytes.

        window  that they belong to; None: that of the last push (before the first one: the open window)

        Of one name and window the value of the lowest rank counts, and of that rank the last.
        """
        self._check_open()
        if window is None and self._last_pushed < 0:
            self.ready()
            window = self._window
        self._scalars.add(self._last_pushed if window is None else window, {**(values or {}), **named})

    def save_state(self, data: bytes, timeout: Optional[float] = None) -> None:
        """Random numbers, data position, statistics: bytes of this rank's own, as they are before its first push of the open window (WINDOW_BEGUN after
        it), or after the last one. A checkpoint of this window holds them. At most 4 MiB, and 64 MiB of all ranks (RESOURCE_EXHAUSTED); b"": none any
        more. Jobs of one part."""
        self.ready()
        self._answer_sent(timeout)
        state.put(self._link, self._window, bytes(data), timeout)

    def saved_state(self, timeout: Optional[float] = None) -> Optional[SavedState]:
        """The newest state that this rank has saved, in this process or one before it; else that of the checkpoint that the job began with. It is of
        `window`, which may be an older one than the open window. None: there is none. NOT_SUPPORTED: the checkpoint is of another number of ranks."""
        self.ready()
        return state.get(self._link, timeout)
