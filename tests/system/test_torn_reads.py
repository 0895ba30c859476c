# SPDX-License-Identifier: Apache-2.0
"""Parameters that are read by messages while a step changes them: a whole set, or an error that says so, never half of each."""
import numpy as np
import pytest
from grpc import RpcError

from harness import Rank

TENSORS = [("w", [4 << 20])]  # 16 MiB: more than a connection takes on before its reader reads
SPEC = {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}, "reduction": "sum"}


def ones():
    return [np.ones(4 << 20, np.float32)]


def test_a_read_that_crosses_a_step_says_so(daemon):
    job = daemon.submit(SPEC)
    with Rank(daemon, job, 0, TENSORS) as r:
        r.start({"w": np.zeros(4 << 20)})
        chunks = r.gacc.GetParameters.stream(session=r.session)
        first = next(chunks)
        assert first.offset == 0 and first.window == 0 and not any(first.data)
        r.push(ones(), weight=1)
        r.wait_step()
        got = [first.data]
        with pytest.raises(RpcError) as e:
            got.extend(chunk.data for chunk in chunks)
        error = daemon.client.error_of("GetParameters", e.value)
        assert error.reason == "PARAMS_CHANGED", error
        assert len(b"".join(got)) < 16 << 20 and not any(b"".join(got)), "bytes of two steps"
        assert np.all(np.frombuffer(r.get_bytes(), np.float32)[:4 << 20] == -1)
