# SPDX-License-Identifier: Apache-2.0
"""Optimizer(parameters="view"): parameters of a model that are the daemon's own memory, which this process can only read. A write there is SIGSEGV, so
what torch can be seen to write is refused before."""
from __future__ import annotations

from typing import Any, Sequence

import torch

from ..device import DeviceArray
from ..errors import GaccError

HARMLESS = ("requires_grad_",)  # of the functions whose names end in _


def _writes_to(name: str, args: Sequence[Any], kwargs: Any) -> list[Any]:
    """What a function of torch with this name changes in place."""
    targets = [kwargs[k] for k in ("out", "tensor", "self", "input") if k in kwargs and (k == "out" or not args)]
    is_operator = name.startswith("__i") and name.endswith("__") and name not in ("__index__", "__int__", "__invert__")
    is_inplace = name.endswith("_") and not name.endswith("__") and name not in HARMLESS
    if args and (is_inplace or name == "__setitem__" or is_operator):
        targets.append(args[0])
    elif not is_inplace:
        targets = [kwargs["out"]] if "out" in kwargs else []
    return [t for one in targets for t in (one if isinstance(one, (list, tuple)) else [one])]


class ViewParameter(torch.nn.Parameter):
    """A Parameter of read-only memory. Functions of torch that would change it raise; what is done to its .data, to state_dict()'s tensors, or in C++, is
    not seen."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if any(isinstance(t, ViewParameter) for t in _writes_to(name, args, kwargs)):
            raise GaccError(f'{name} of a parameter that the Optimizer has with parameters="view": it is the daemon\'s memory, which cannot be written to',
                            reason="PARAMETER_CHANGED", hint='load or change parameters before the Optimizer is made, or leave parameters="copy"')
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> torch.nn.Parameter:
        """A plain one, with memory of its own."""
        copied = torch.nn.Parameter(self.detach().clone(), self.requires_grad)
        memo[id(self)] = copied
        return copied


def check_viewable(session: Any, names: Sequence[str], params: Sequence[torch.Tensor]) -> None:
    """Raises if parameters of this job cannot be views."""
    hint = 'parameters="copy", the default'
    if session.is_inline:
        raise GaccError('parameters="view" needs the memory of a gaccd on this node, and this session has messages', reason="NOT_SUPPORTED", hint=hint)
    if any(isinstance(a, DeviceArray) for a in session.parameters.values()):
        raise GaccError('parameters="view" with slots_on: device', reason="NOT_SUPPORTED", hint=hint)
    for name, p in zip(names, params):
        if type(p) is not torch.nn.Parameter or p.device.type != "cpu":
            raise GaccError(f'parameters="view": {name} is a {type(p).__name__} on {p.device}, and not a torch.nn.Parameter on the CPU',
                            reason="NOT_SUPPORTED", hint=hint)


def show(p: Any, value: torch.Tensor) -> None:
    """The parameter is this memory from now on."""
    p.data = value
    p.__class__ = ViewParameter


def release(p: Any) -> None:
    """It has memory of its own again, with the values of now."""
    p.__class__ = torch.nn.Parameter
    p.data = p.detach().clone()
