# SPDX-License-Identifier: Apache-2.0
"""Optimizer(ddp=True): a loop of DistributedDataParallel in a process group of two processes, beside DDP itself; and what is refused of process groups."""
import contextlib
import copy

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from loops import batch, check, decay, difference, fresh_name, gacc, loss_of, model, refused
from ranks import KEPT, Rank

K = 4


def sgd(p):
    return torch.optim.SGD(p, lr=0.1, momentum=0.9)


def windows_of(counts):
    """For each window, for each rank, its batches."""
    return [[[batch(r, i) for i in range(at, min(at + K, n))] for r, n in enumerate(counts)] for at in range(0, max(counts), K)]


def train(opt, m, mine, rank, shares):
    """DDP's loop. `shares`: "tokens": the true mean over all rows, which the loss is scaled to by what all ranks have; "ranks": the mean of the ranks' own
    means, as DDP gives it to a loop that divides by the number of its batches. Returns the norms before clipping."""
    sched, norms = decay(opt), []
    for ranks in mine:
        rows = sum(len(b[0]) for batches in ranks for b in batches)
        for i, b in enumerate(ranks[rank]):
            is_last = i + 1 == len(ranks[rank])
            with contextlib.nullcontext() if is_last else m.no_sync():
                part = len(b[0]) * len(ranks) / rows if shares == "tokens" else 1 / len(ranks[rank])
                (loss_of(m, b) * part).backward()
        if ranks[rank]:
            clip = getattr(opt, "clip_grad_norm_", None) or (lambda n: torch.nn.utils.clip_grad_norm_(m.parameters(), n))
            norms.append(float(clip(0.7)))
            opt.step()
            opt.zero_grad()
            sched.step()
    return norms


def group(rank, port, world=2):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)


def ddp_beside_gacc(rank, port, counts, shares, given):
    """Parameters by gacc, and by DDP, which needs the same number of windows on all ranks."""
    group(rank, port)
    start, windows, ends, models = model(), windows_of(counts), [], []
    for by in ("gacc", "DDP")[:1 if 0 in [len(r) for w in windows for r in w] else 2]:
        m = DistributedDataParallel(copy.deepcopy(start))
        models.append(m)
        if by == "DDP":
            norms = train(sgd(m.parameters()), m, windows, rank, shares)
        else:
            params = m if given == "module" else m.parameters()
            with gacc.torch.Optimizer(params, "sgd", lr=0.1, momentum=0.9, micro_size=16, boundary="step", clip_norm=0.7, ddp=True) as opt:
                norms = train(opt, m, windows, rank, shares)
                opt.finish()
                assert opt.session.world_size == 2 and opt.session.rank == rank and opt.ddp
                assert given != "module" or all(p.grad is None for p in m.parameters()), "DDP has reduced"
        ends.append(([p.detach().numpy().copy() for p in m.parameters()], norms))
    KEPT.append(models)
    return ends


def as_model(arrays):
    m = model()
    with torch.no_grad():
        for p, a in zip(m.parameters(), arrays):
            p.copy_(torch.from_numpy(a))
    return m


@pytest.mark.parametrize("counts, shares, given", [((10, 10), "ranks", "module"), ((10, 10), "tokens", "module"), ((6, 6), "tokens", "parameters"),
                                                   ((6, 4), "tokens", "module")])
def test_two_processes_with_ddp(node, counts, shares, given):
    """Short last windows, batches of any number of rows, clipping, a scheduler. With 6 and 4 batches the second process joins the last window with
    nothing, which DDP cannot."""
    from harness import free_port
    port = free_port()
    ends = [r.result() for r in [Rank(node, ddp_beside_gacc, r, port, counts, shares, given) for r in range(2)]]
    assert all((a == b).all() for (mine, _), (other, _) in zip(*ends) for a, b in zip(mine, other)), "the ranks differ"
    got = [as_model(arrays) for arrays, _ in ends[0]]
    windows = [[b for batches in w for b in batches] for w in windows_of(counts)]
    how = {} if shares == "tokens" else {"weight": lambda b: 1}
    for m, (_, norms) in zip(got, ends[0]):
        told = check(m, model(), sgd, windows, clip=0.7, scheduler=decay, **how)
        assert norms == [pytest.approx(norm, rel=1e-5) for norm, _, _ in told] and max(norms) > 0.7, "clipping bites"
    assert len(got) == 1 or difference(*got) < 1e-6


def wrong_uses(rank, port, name):
    """What each refusal says, in a process group of one."""
    group(rank, port, 1)
    m, said = model(), []

    def of(call):
        try:
            call()
            said.append("nothing")
        except gacc.GaccError as e:
            said.append(f"{e.reason} {e}")
    ddp = DistributedDataParallel(m)
    make = lambda params, **how: gacc.torch.Optimizer(params, "sgd", **{"lr": 0.1, "micro_size": 2, **how})  # noqa: E731
    of(lambda: make(ddp))
    of(lambda: make(torch.nn.Sequential(ddp)))
    of(lambda: make(ddp, ddp=True, reduction="mean"))
    of(lambda: make(ddp, ddp=True, spec={"reduction": "mean"}))
    of(lambda: make(ddp, ddp=True, rank=1))
    of(lambda: make(ddp, ddp=True, world=2))
    of(lambda: make(DistributedDataParallel(model(), static_graph=True), ddp=True))
    with make(model(), job=name) as first:
        of(lambda: make(ddp, ddp=True, job=first.session.job_id))
    with make(ddp, ddp=True, boundary="step") as opt:
        of(lambda: opt.micro(scale=4))
    KEPT.append((m, ddp))
    return said


def test_wrong_uses(node, endpoint):
    from harness import free_port
    said = Rank(node, wrong_uses, 0, free_port(), fresh_name()).result()
    wanted = [("NOT_SUPPORTED", "the model is a DistributedDataParallel", "ddp=True"), ("NOT_SUPPORTED", "a part of the model is a Distributed"),
              ("INVALID_ARGUMENT", "leave reduction out"), ("INVALID_ARGUMENT", "leave reduction out"), ("INVALID_ARGUMENT", "rank is 1, and in the process group it is 0"),
              ("INVALID_ARGUMENT", "world is 2, and in the process group it is 1"), ("NOT_SUPPORTED", "static_graph"), ("SPEC_MISMATCH", "reduction"),
              ("INVALID_ARGUMENT", "leave scale out")]
    assert len(said) == len(wanted) and all(s.startswith(w[0]) and all(t in s for t in w[1:]) for s, w in zip(said, wanted)), said
    m = model()
    with refused("INVALID_ARGUMENT", "ddp=True, and there is no process group", "init_process_group"):
        gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2, ddp=True)


def two_jobs(rank, port, jobs):
    group(rank, port)
    try:
        gacc.torch.Optimizer(model(), "sgd", lr=0.1, micro_size=2, ddp=True, job=jobs[rank])
    except gacc.GaccError as e:
        return str(e)


def test_ranks_that_name_other_jobs(node):
    from harness import free_port
    port, jobs = free_port(), (fresh_name(), fresh_name())
    ranks = [Rank(node, two_jobs, r, port, jobs) for r in range(2)]
    assert f"rank 1 has the job {jobs[1]}, and rank 0 of the process group {jobs[0]}" in ranks[1].result()
    ranks[0].process.kill()


def sharded(port):
    """Why FSDP's models, both kinds, and a tensor-parallel one are refused."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import DTensor, Replicate
    group(0, port, 1)
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    one, two, three = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=False), model(), model()
    fully_shard(two, mesh=mesh)
    three[0].weight = torch.nn.Parameter(DTensor.from_local(three[0].weight.detach(), mesh, [Replicate()]))
    said = []
    for params in (one, two, torch.nn.Sequential(one), list(one.parameters()), list(two.parameters()), three):
        for ddp in (False, True):
            try:
                gacc.torch.Optimizer(params, "sgd", lr=0.1, micro_size=2, ddp=ddp)
            except gacc.GaccError as e:
                said.append(f"{e.reason} {e}")
    KEPT.append((one, two, three, mesh))
    return said


def test_sharded_models(node):
    from harness import free_port
    said = Rank(node, sharded, free_port()).result()
    wanted = ["the model is a FullyShardedDataParallel of FSDP", "the model is a FSDPSequential of FSDP", "a part of the model is a FullyShardedDataParallel",
              "it is a FlatParameter", "it is a DTensor", "parameter 0.weight is divided among processes by FSDP or tensor parallelism"]
    assert len(said) == 12 and all(s.startswith("NOT_SUPPORTED") and "give the plain model, whole" in s and wanted[i // 2] in s for i, s in enumerate(said)), said


def test_deepspeed_and_megatron(endpoint):
    """Known by names alone; neither library is here."""
    engine = type("DeepSpeedEngine", (torch.nn.Module,), {})()
    engine.module = model()
    with refused("NOT_SUPPORTED", "the model is a DeepSpeedEngine of DeepSpeed", "plain model"):
        gacc.torch.Optimizer(engine, "sgd", lr=0.1, micro_size=2)
    for attribute, text in (("ds_id", "DeepSpeed's ZeRO stage 3"), ("tensor_model_parallel", "tensor parallelism")):
        m = model()
        setattr(m[0].weight, attribute, True)
        with refused("NOT_SUPPORTED", f"parameter 0.weight is divided among processes by {text}"):
            gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2)
