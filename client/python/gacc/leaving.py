# SPDX-License-Identifier: Apache-2.0
"""How an Optimizer leaves its job: gacc.torch's, gacc.mindspore's and gacc.jax's."""
from __future__ import annotations

import sys
import weakref
from typing import Any, Callable, Optional

from .errors import GaccError


def _leave(session: Any, before: Optional[Callable[[], None]]) -> None:
    """At close(), when the Optimizer is collected, and when the process ends: for good, unless an exception ends it."""
    if before is not None:
        before()
    failed = sys.is_finalizing() or getattr(sys, "last_type", None) is not None
    try:
        session.detach(done=not failed)
    except GaccError:
        session.close()  # gaccd is gone, or this is a forked child


class Leaving:
    """The part of an Optimizer that has these calls, once it has called _leaves()."""
    session: Any

    def _leaves(self, before: Optional[Callable[[], None]] = None) -> None:
        """`before` comes before the end of the session, whichever it is; it does not refer to this object."""
        self._before_leaving = before
        self._finalizer = weakref.finalize(self, _leave, self.session, before)

    def close(self) -> None:
        """Leaves the job for good. Also done when the Optimizer is collected, and at the end of a process that no exception ends."""
        self._finalizer()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
        elif self._finalizer.detach():
            if self._before_leaving is not None:
                self._before_leaving()
            self.session.__exit__(kind, value, traceback)
