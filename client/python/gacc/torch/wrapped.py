# SPDX-License-Identifier: Apache-2.0
"""Models that belong to a process group: what is refused, and what ddp=True does with DistributedDataParallel. Other libraries are known by the names of
their classes; none is imported."""
from __future__ import annotations

from typing import Any, Optional

import torch

from ..environment import identity, named_identity
from ..errors import GaccError

ALREADY_REDUCED = "the wrapper all-reduces gradients inside the window, and gacc would add them again over the ranks"
PLAIN = "give the plain model; start ranks with GACC_RANK and GACC_WORLD_SIZE, without RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR"
WHOLE = "give the plain model, whole in each process: gaccd has the optimizer's state (sharding: full divides it among nodes). A model that one " \
        "process cannot hold is not for gacc"
DDP = "DistributedDataParallel"
SHARDED = {"FullyShardedDataParallel": "FSDP", "FSDPModule": "FSDP", "DeepSpeedEngine": "DeepSpeed"}


def _kinds(of: Any) -> set[str]:
    return {kind.__name__ for kind in type(of).__mro__}


def refuse_wrapped(model: Any, ddp: bool = False) -> None:
    """Raises if the model, or a part of it, is another library's to reduce or to shard."""
    for part in model.modules() if isinstance(model, torch.nn.Module) else [model]:
        kinds, what = _kinds(part), "the model is" if part is model else "a part of the model is"
        if DDP in kinds and not ddp:
            raise GaccError(f"{what} a {type(part).__name__}: {ALREADY_REDUCED}", reason="NOT_SUPPORTED",
                            hint=PLAIN + "; or keep the process group with Optimizer(model, .., ddp=True)")
        for name, library in SHARDED.items():
            if name in kinds:
                raise GaccError(f"{what} a {type(part).__name__} of {library}, which has the gradients and the step itself", reason="NOT_SUPPORTED",
                                hint=WHOLE)


def refuse_sharded(name: str, p: Any) -> None:
    """Raises if a parameter is a part of one, as FSDP, ZeRO and tensor parallelism have it: a job's tensors are whole, and the same on all ranks."""
    library = "FSDP or tensor parallelism: it is a DTensor" if "DTensor" in _kinds(p) else \
        "FSDP: it is a FlatParameter" if getattr(p, "_is_flat_param", False) else \
        "DeepSpeed's ZeRO stage 3" if hasattr(p, "ds_id") else \
        "tensor parallelism" if getattr(p, "tensor_model_parallel", False) else ""
    if library:
        raise GaccError(f"parameter {name} is divided among processes by {library}", reason="NOT_SUPPORTED", hint=WHOLE)


def plain_of(model: torch.nn.Module) -> torch.nn.Module:
    """The model in a DistributedDataParallel, whose names are without "module."."""
    while DDP in _kinds(model):
        model = model.module
    return model


def stop_reducing(model: Any) -> None:
    """DistributedDataParallel leaves gradients as they are, for the daemon to add up: no all-reduce, also outside no_sync(). It does not send buffers to
    the other ranks then."""
    for part in model.modules():
        if DDP in _kinds(part):
            if part.static_graph:
                raise GaccError(f"{DDP}(static_graph=True) reduces gradients by itself", reason="NOT_SUPPORTED", hint="leave static_graph out")
            part.require_backward_grad_sync = False


def group_size() -> int:
    """Processes in torch's process group; 1 without one."""
    d = torch.distributed
    return d.get_world_size() if d.is_available() and d.is_initialized() else 1


def group_identity(job: Any, rank: Optional[int], world: Optional[int]) -> tuple[Any, int, int]:
    """(job, rank, ranks) of a process of torch's process group. The job is rank 0's: given, of the environment, or a new one. All processes call it."""
    d = torch.distributed
    if not (d.is_available() and d.is_initialized()):
        raise GaccError("ddp=True, and there is no process group", reason="INVALID_ARGUMENT",
                        hint="torch.distributed.init_process_group() first; or leave ddp out, as ranks of gacc need no process group")
    mine = d.get_rank(), d.get_world_size()
    for what, given, known in (("rank", rank, mine[0]), ("world", world, mine[1])):
        if given not in (None, known):
            raise GaccError(f"{what} is {given}, and in the process group it is {known}", reason="INVALID_ARGUMENT", hint=f"leave {what} out")
    own = identity(None if job is None else str(getattr(job, "id", job)), *mine).job
    told = [own or named_identity(None, 0, 1).job]
    d.broadcast_object_list(told, src=0)
    if own not in ("", told[0]):
        raise GaccError(f"rank {mine[0]} has the job {own}, and rank 0 of the process group {told[0]}", reason="INVALID_ARGUMENT",
                        hint="the same job= on all ranks, or none")
    return told[0], *mine
