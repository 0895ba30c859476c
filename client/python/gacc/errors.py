# SPDX-License-Identifier: Apache-2.0
"""The one exception of this package, and how gRPC's errors become it."""
from __future__ import annotations

from typing import Any, Iterable

# the same request may succeed later (proto/status.h, and a deadline that gave no reason)
RETRYABLE = {"NO_SLOT", "DEADLINE", "PARAMS_CHANGED", "CHECKSUM", "ATTEMPT_FAILED", "ENGINE_DOWN", "DRAINING", "UNAVAILABLE", "STALLED"}
# the window is over, or this rank has nothing left to give to it: wait() says how it ended
LATE = {"WINDOW_CLOSED", "WINDOW_FULL", "WINDOW_FORGOTTEN", "FLUSHED"}


class GaccError(Exception):
    """Something that gacc could not do.

    reason         stable name: of gaccd's status table (docs/integrate.md, section 7), or FORKED, NO_DAEMON, TLS, CLOSED
    hint           what to do next, a sentence; may be empty
    missing_ranks  ranks that the call was waiting for
    code           gRPC's name of the error's kind: "UNAVAILABLE"; empty for errors that were found here
    field          the request's field that is wrong, if it is one
    """

    def __init__(self, message: str, reason: str = "", hint: str = "", missing_ranks: Iterable[int] = (), code: str = "", field: str = ""):
        super().__init__(message)
        self.message, self.reason, self.hint, self.code, self.field = message, reason, hint, code, field
        self.missing_ranks = tuple(missing_ranks)

    def __str__(self) -> str:
        said = f"{self.reason}: {self.message}" if self.reason else self.message
        return f"{said} ({self.hint})" if self.hint else said

    def __reduce__(self) -> Any:
        return GaccError, (self.message, self.reason, self.hint, self.missing_ranks, self.code, self.field)

    @property
    def is_outage(self) -> bool:
        """Nobody answered, or only to say that the answer will come later. CANCELLED that nobody asked for is the last word of a
        server that dies."""
        return self.code == "UNAVAILABLE" or (self.code == "CANCELLED" and not self.reason)

    @property
    def is_retryable(self) -> bool:
        return self.is_outage or self.reason in RETRYABLE or (self.code == "DEADLINE_EXCEEDED" and not self.reason)


def of_rpc(method: str, error: Any) -> GaccError:
    """From a grpc.RpcError that is also a call, or grpc.aio's."""
    from .messages import types
    known = types()
    detail = known.ErrorDetail()
    trailer = {key: value for key, value in error.trailing_metadata() or ()}  # grpc.aio's is no sequence, and no mapping that dict() takes
    if "grpc-status-details-bin" in trailer:
        status = known.named("gacc_rpc.Status").FromString(trailer["grpc-status-details-bin"])
        if status.details:
            detail.ParseFromString(status.details[0].value)
    return GaccError(f"{method}: {error.details() or error.code().name}", reason=detail.reason, hint=detail.hint,
                     missing_ranks=detail.missing_ranks, code=error.code().name, field=detail.field)
