# SPDX-License-Identifier: Apache-2.0
"""gacc: gradient accumulation as a service. docs/python.md is the guide.

    gacc.attach()     this process becomes a rank of a job: a Session
    gacc.connect()    submit, watch and control jobs: a Client
    gacc.aio          gacc.connect() for asyncio
    gacc.history()    how the windows of a job went, for pandas and matplotlib
    gacc.local()      a gaccd of one's own, for as long as it is used
    gacc.torch        an optimizer for PyTorch (needs torch)

Importing this package imports neither grpc nor torch.
"""
from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from .errors import GaccError
from .version import __version__

if TYPE_CHECKING:
    from .client import Client, connect, history
    from .daemon import local
    from .join import attach
    from .layout import Tensor
    from .results import Job, Pushed, Step
    from .session import Session
    from .state import SavedState

__all__ = ["Client", "GaccError", "Job", "Pushed", "SavedState", "Session", "Step", "Tensor", "__version__", "attach", "connect", "history", "local"]

_WHERE = {"attach": "join", "Client": "client", "connect": "client", "history": "client", "Tensor": "layout", "local": "daemon", "Job": "results",
          "Pushed": "results", "Step": "results", "Session": "session", "SavedState": "state"}
_PARTS = ("aio", "torch", "accelerate", "transformers", "lightning", "colossalai", "jax", "mindspore", "dtypes")  # imported when they are first named


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module("." + _WHERE[name], __name__), name)
    elif name in _PARTS and importlib.util.find_spec(f"{__name__}.{name}"):
        value = importlib.import_module("." + name, __name__)
    else:
        raise AttributeError(f"module 'gacc' has no attribute {name!r}")
    globals()[name] = value
    return value
