# SPDX-License-Identifier: Apache-2.0
"""client/examples/mailbox.py, the trainer's side of a mailbox in pure Python, against the engine's side and against a trainer in C."""
import importlib.util
import os
import pathlib
import random
import socket
import subprocess
import sys
import time

import pytest

from harness import build_dir

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER = build_dir() / "bin/box_server"
EXAMPLE = ROOT / "client/examples/mailbox.py"
MICRO, TENSORS = 4, 70


def load():
    spec = importlib.util.spec_from_file_location("mailbox", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mailbox = load()


def serve(what):
    """Runs a function of this file in a process of its own, with a mailbox that is served."""
    command = [SERVER, "serve", str(MICRO), str(TENSORS), sys.executable, __file__, what]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "tests/system"), "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr


# ---- in that process

def windows(box):
    """Three windows, with pushes that wait for one another, repeats, and a WAIT that comes first."""
    for window in range(3):
        wait_cell = box.free_cell()
        wait = box.publish(wait_cell, mailbox.WAIT, window)
        box.ring()
        assert box.answer(wait_cell, wait) is None
        for micro in range(MICRO):
            present = b"" if micro % 2 else bytes([255] * 8 + [0x3f])
            answer = box.push(window, micro, micro % 2, weight=1.5 + micro, loss=0.5, timeout_s=20, present=present)
            assert (answer.status, answer.result, answer.window, answer.counted, answer.micro_size) == (0, mailbox.COUNTED, window, micro + 1, MICRO)
            again = box.push(window, micro, 0, weight=1.5 + micro, loss=0.5, timeout_s=20)
            assert (again.status, again.result) == (0, mailbox.ALREADY_COMMITTED if micro == MICRO - 1 else mailbox.DUPLICATE)
        answer = box.wait(wait_cell, wait, 20)
        assert (answer.status, answer.result, answer.window) == (0, 1, window)
        step = box.step(window)
        assert (step.applied_step, step.total_weight, step.next_micro_size) == (window + 1, sum(1.5 + m for m in range(MICRO)), MICRO)
        assert box.step(window + 1) is None


def refusals(box):
    """Not OK is a number, and the mailbox goes on."""
    for wrong in ({"weight": 0.0}, {"slot": box.slots}, {"flags": 8}, {"lr": -1.0}, {"present": b"\1"}, {"window": 7}, {"micro": MICRO},
                  {"present": bytes([255] * 8 + [0x40])}):
        answer = box.push(**{"window": 0, "micro": 0, "slot": 0, "weight": 1.0, "loss": 0.0, "timeout_s": 20, **wrong})
        assert answer.status != 0 and answer.result == 0, wrong
    assert box.push(0, 0, 0, 1.0, 0.0, 20).result == mailbox.COUNTED


def all_cells(box):
    """Eight cells are eight requests, taken in the order of their numbers."""
    waits = {cell: box.publish(cell, mailbox.WAIT, 0) for cell in range(4)}
    pushes = {7 - micro: box.publish(7 - micro, mailbox.PUSH, 0, micro, 0 if micro % 2 else 1, 2.0) for micro in range(2)}
    assert box.free_cell() == 4
    box.ring()
    assert all(box.wait(cell, seq, 20).result == mailbox.COUNTED for cell, seq in pushes.items())
    assert box.push(0, 3, 0, 1.0, 0.0, 20).status != 0  # 2 is missing
    for micro in range(2, MICRO):
        assert box.push(0, micro, 0, 1.0, 0.0, 20).result == mailbox.COUNTED
    assert all(box.wait(cell, seq, 20).result == 1 for cell, seq in waits.items())
    assert box.wait_step(0, 20).applied_step == 1
    for cell in range(8):
        box.publish(cell, mailbox.WAIT, 9)
    box.ring()
    assert box.free_cell() is None and box.push(1, 0, 0, 1.0, 0.0, 20) is None and box.wait_step(1, 20) is None


def given_up(box):
    """A cell whose answer was not awaited is used again when that has come."""
    assert box.wait_step(0, 0.05) is None and box.free_cell() == 1
    for micro in range(MICRO):
        assert box.push(0, micro, 0, 1.0, 0.0, 20).result == mailbox.COUNTED
    assert box.wait_step(0, 20).applied_step == 1 and box.free_cell() == 0


def ready_words(box):
    """A push whose gradient is complete later."""
    seq = box.publish(0, mailbox.PUSH, 0, 0, 0, 1.0, ready_at=3, ready_value=41, flags=mailbox.RINGS)
    box.ring()
    for value in (1, 40):
        box.set_ready(3, value)
        box.ring()
        assert box.wait(0, seq, 0.05) is None
    box.set_ready(3, 42)
    box.ring()
    assert box.wait(0, seq, 20).result == mailbox.COUNTED


@pytest.mark.parametrize("what", ["windows", "refusals", "all_cells", "given_up", "ready_words"])
def test_against_the_engines_side(what):
    serve(what)


# ---- alone

def alone(n_tensors=TENSORS, attach_socket=None):
    """A mailbox that nobody serves, with its three descriptors."""
    out = subprocess.run([SERVER, "layout", str(n_tensors)], input="", capture_output=True, text=True, check=True).stdout
    memory = os.memfd_create("mailbox")
    os.write(memory, bytes.fromhex(out))
    submit, waits = os.eventfd(0, os.EFD_NONBLOCK), __import__("select").epoll()
    return mailbox.Mailbox(memory, submit, os.dup(waits.fileno()), attach_socket)


def test_the_bytes_are_those_of_a_trainer_in_c():
    r = random.Random(1)
    box, lines = alone(), []
    for _ in range(200):
        cell, present = r.randrange(8), r.choice([b"", r.randbytes(9)])
        fields = {"window": r.getrandbits(64), "micro": r.getrandbits(32), "slot": r.getrandbits(32), "weight": r.uniform(0, 1e300),
                  "loss": r.gauss(0, 1), "data_key": r.getrandbits(64), "loss_scale": 2.0**r.randrange(20), "ready_at": r.randrange(9),
                  "ready_value": r.getrandbits(64), "lr": r.random()}
        kind, flags = r.randrange(4), r.getrandbits(2)
        box.publish(cell, kind, flags=flags, present=present, **fields)
        words = [v.hex() if isinstance(v, float) else v for v in fields.values()]
        lines.append(" ".join(str(w) for w in [cell, kind, flags, *words, present.hex() or "-"]))
    out = subprocess.run([SERVER, "layout", str(TENSORS)], input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    assert bytes.fromhex(out) == box.bytes[:]


def test_when_to_go_to_rpc():
    box = alone()
    start = time.monotonic()
    assert box.push(0, 0, 0, 1.0, 0.0, timeout_s=0.2) is None
    assert 0.15 < time.monotonic() - start < 10
    box.bytes[40] = 1
    assert box.closed() and box.wait(0, 1) is None
    ours, gaccds = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    box = alone(attach_socket=ours)
    gaccds.close()
    assert box.wait(0, 1) is None and box.gone


def test_what_is_no_mailbox_is_not_taken():
    box = alone()
    for at in (0, 8, 12):
        memory = os.memfd_create("mailbox")
        os.write(memory, box.bytes[:at] + b"\x77" + box.bytes[at + 1:])
        with pytest.raises(ValueError):
            mailbox.Mailbox(memory, 1, 1)


def test_torn_answers_and_steps_are_not_there():
    box = alone()
    answer = mailbox.SEQ.pack(5) + bytes(52)
    box.bytes[mailbox.ANSWER:mailbox.ANSWER + 64] = answer + mailbox.CHECK.pack(mailbox.zlib.crc32(answer))
    step = mailbox.SEQ.pack(5) + bytes(180)
    box.bytes[mailbox.STEP:mailbox.STEP + 192] = step + mailbox.CHECK.pack(mailbox.zlib.crc32(step))
    assert box.answer(0, 5) and box.step(5) and box.step(4) is None and box.answer(0, 4) is None
    for at in [*range(mailbox.ANSWER, mailbox.ANSWER + 64), *range(mailbox.STEP, mailbox.STEP + 192)]:
        box.bytes[at] ^= 1
        assert (box.answer(0, 5) is None) == (at < mailbox.STEP) and (box.step(5) is None) == (at >= mailbox.STEP)
        box.bytes[at] ^= 1


if __name__ == "__main__":
    globals()[sys.argv[1]](mailbox.Mailbox(*map(int, sys.argv[2:])))
