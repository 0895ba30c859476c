# SPDX-License-Identifier: Apache-2.0
"""What docs/integrate.md says of the protocol, where no other test does."""
import os
import pathlib
import re

import numpy as np
import pytest

from harness import Daemon, GaccError, Rank, wait_until

SGD = {"optimizer": {"type": "sgd", "lr": 1}}
W = [("w", [3])]


def attach(daemon, job="", create=None):
    more = {"create_if_missing": daemon.client.types.spec(**{"ranks": 1, "micro_size": 1, **SGD, **create})} if create else {}
    return daemon.client.gradient.Attach(job=job, rank=0, world_size=1, nonce=os.urandom(16), protocol_min=1, protocol_max=1, **more).job_id


def test_which_name_wins(daemon):
    first = attach(daemon, "a", {"name": "a"})
    assert attach(daemon, "a", {"name": "b", "micro_size": 7}) == first  # `job` is there: nothing else is looked at
    second = attach(daemon, "nonesuch", {"name": "c"})
    assert daemon.get_job(second).spec.name == "c"  # not "nonesuch"
    assert attach(daemon, "", {"name": "c"}) == second
    with pytest.raises(GaccError) as e:
        attach(daemon, "", {"name": "c", "micro_size": 7})
    assert e.value.reason == "ALREADY_EXISTS"


def test_a_loss_scale_of_0_is_1(daemon):
    for scale in (0, 1, 1024):
        job = daemon.submit({**SGD, "ranks": 1, "micro_size": 2, "loss_scale": scale})
        with Rank(daemon, job, 0, W) as r:
            r.start({"w": np.zeros(3)})
            assert r.loss_scale == (scale or 1)
            for said in (0.0, 1.0):
                if scale < 2:
                    assert r.push([np.ones(3, np.float32)], loss_scale=said).result == 1
                    continue
                with pytest.raises(GaccError) as e:
                    r.push([np.ones(3, np.float32)], loss_scale=said)
                assert e.value.reason == "LOSS_SCALE_MISMATCH"


def test_what_lies_in_the_gaps_counts_for_nothing(daemon):
    digests = set()
    for filling in (0, 0x5a):
        job = daemon.submit({**SGD, "ranks": 1, "micro_size": 1})
        with Rank(daemon, job, 0, [("a", [3]), ("b", [2, 2])], inline=True) as r:
            layout = r.register()
            assert layout.param_bytes > 4 * 7
            data = bytearray([filling]) * layout.param_bytes
            for k, t in enumerate(layout.layout):
                data[t.param_offset:t.param_offset + 4 * t.count] = np.full(t.count, k + 1, np.float32).tobytes()
            message = daemon.client.types.PutParametersInlineRequest
            daemon.client.gradient.PutParametersInline(lambda: iter([message(session=r.session, data=bytes(data), last=True)]))
            wait_until("it runs", lambda: daemon.state(job) == "RUNNING")
            r.client.gradient.WaitReady(session=r.session)
            digests.add([e for e in daemon.log().splitlines() if f"ParamsReady job={job}:" in e][0].rpartition(" ")[2])
    assert len(digests) == 1


def test_the_table_of_divisors(daemon):
    """Each cell of section 5: g = 6 with weight 2 and g = 9 with weight 4; of one element, so that the norm is the gradient."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs/integrate.md").read_text()
    rows = re.findall(r"^\| (weighted_mean|mean|sum|fixed_divisor: 8) \| .* = ([\d.]+) \| (?:.* = ([\d.]+)|the same) \|$", text, re.M)
    assert len(rows) == 4
    for name, of_mean, of_sum in rows:
        reduction, _, divisor = name.partition(": ")
        for grad_of, wanted in (("mean", of_mean), ("sum", of_sum or of_mean)):
            job = daemon.submit({**SGD, "ranks": 1, "micro_size": 2, "reduction": reduction, "fixed_divisor": float(divisor or 0),
                                 "grad_of": grad_of})
            with Rank(daemon, job, 0, [("w", [1])]) as r:
                r.start({"w": np.zeros(1)})
                for g, weight in ((6, 2), (9, 4)):
                    r.push([np.full(1, g, np.float32)], weight=weight)
                assert r.wait_step().result.grad_norm == float(wanted), (name, grad_of)
                r.detach()
