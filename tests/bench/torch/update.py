# SPDX-License-Identifier: Apache-2.0
"""C2: PyTorch's AdamW on the CPU. Prints, as JSON, ns per element of its default and of its fused implementation; compare.py starts it.

    update.py ELEMENTS REPEATS
"""
import json
import statistics
import sys
import time

import torch

elements, repeats = map(int, sys.argv[1:])
p = torch.nn.Parameter(torch.rand(elements) + 1)
p.grad = (torch.rand(elements) + 1) * 1e-3  # normal floats, as in bench_kernels
found = {}
for name, options in (("default", {}), ("fused", {"fused": True})):
    optimizer, times = torch.optim.AdamW([p], lr=1e-4, weight_decay=0.01, **options), []
    for _ in range(repeats + 1):  # the first makes the state
        start = time.monotonic()
        optimizer.step()
        times.append(time.monotonic() - start)
    found[name] = 1e9 * statistics.median(times[1:]) / elements
json.dump(found, sys.stdout)
