# SPDX-License-Identifier: Apache-2.0
"""A round of bench_mailbox: pushes through a mailbox from Python. Prints p50, p99 and the CPU time of one, in seconds.

    mailbox.py MEMORY SUBMIT WAITS SEQ PUSHED MICRO_SIZE WARM_UP PUSHES
"""
import importlib.util
import pathlib
import sys
import time

path = pathlib.Path(__file__).resolve().parents[2] / "client/examples/mailbox.py"
spec = importlib.util.spec_from_file_location("example", path)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)


def main():
    memory, submit, waits, seq, pushed, micro_size, warm_up, pushes = map(int, sys.argv[1:])
    box = example.Mailbox(memory, submit, waits)
    box.seq = seq
    took, clock, cpu = [], time.perf_counter, 0
    for i in range(warm_up + pushes):
        if i == warm_up:
            cpu = time.process_time()
        begin = clock()
        answer = box.push((pushed + i) // micro_size, (pushed + i) % micro_size, 0, 1.0, 0.5, 10)
        took.append(clock() - begin)
        assert (answer.status, answer.result) == (0, example.COUNTED), answer
    cpu = time.process_time() - cpu
    took = sorted(took[warm_up:])
    print(took[pushes // 2], took[pushes * 99 // 100], cpu / pushes)


main()
