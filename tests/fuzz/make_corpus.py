#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the seeds of fuzz_messages, fuzz_attach and fuzz_cluster anew, from the descriptor set of a build: one file for each request and response,
with a value in every field; and those of fuzz_mailbox.

    make_corpus.py BUILD      in the repository's root
"""
import functools
import pathlib
import struct
import subprocess
import sys

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

CORPUS = pathlib.Path(__file__).parent / "corpus"
SERVICES = ("GradientService", "JobService", "NodeService")
ATTACH = ("MapRequest",)
CLUSTER = ("CommitRecord", "UpdateRecord", "RestoredRecord", "ViewRecord", "Report", "Order", "Placement", "Placed",
           "Drop", "PartEvent", "TensorSet", "TensorsKept", "Save", "Saved", "PartView", "PartLedger", "PartBlob", "PartBoard",
           "LaunchOrder", "Launched", "LogAsk", "LogPiece", "NormsAsk", "PartNorms")  # as fuzz_cluster.c counts them
VALUES = {"LaunchOrder": {"master_addr": "10.0.0.7"}, "Launched": {"phase": 1, "result": 1, "first": 1, "state": [1], "wanted": 1}, "LogPiece": {"offset": 16}, "PartNorms": {"status": ""}}  # what rules ask for
RECORD = b"\x10\0\0\0"  # the word before those in the journal (daemon/cluster/record.h)


def value(f, depth):
    if f.type == f.TYPE_STRING:
        return f.name
    if f.type == f.TYPE_BYTES:
        return bytes(range(16))
    if f.type in (f.TYPE_DOUBLE, f.TYPE_FLOAT):
        return 0.5
    if f.type == f.TYPE_BOOL:
        return True
    return 1 if f.type == f.TYPE_ENUM else f.number


def fill(message, depth=0):
    for f in message.DESCRIPTOR.fields:
        if f.type == f.TYPE_MESSAGE:
            fill(getattr(message, f.name).add() if f.label == f.LABEL_REPEATED else getattr(message, f.name), depth + 1)
            if f.label != f.LABEL_REPEATED:
                getattr(message, f.name).SetInParent()
        elif f.label == f.LABEL_REPEATED:
            getattr(message, f.name).append(value(f, depth))
        else:
            setattr(message, f.name, value(f, depth))
    return message


@functools.lru_cache(maxsize=None)
def internal():
    """The messages between gaccds, which no build publishes."""
    protos = pathlib.Path(__file__).parents[2] / "proto"
    names = [str(p.relative_to(protos)) for p in sorted(protos.glob("gacc/internal/v1/*.proto"))]
    command = ["protoc", "-I.", "--include_imports", "--descriptor_set_out=/dev/stdout", *names]
    pool = descriptor_pool.DescriptorPool()
    for f in descriptor_pb2.FileDescriptorSet.FromString(subprocess.run(command, cwd=protos, stdout=subprocess.PIPE, check=True).stdout).file:
        pool.Add(f)
    return pool


def link():
    """What comes over a link between two gaccds, as fuzz_cluster.c reads it: each kind of message, and one message in two frames."""
    def one(**fields):
        message = message_factory.MessageFactory().GetPrototype(internal().FindMessageTypeByName("gacc.internal.v1.PeerMessage"))()
        for name, values in fields.items():
            inner = fill(getattr(message, name))
            for key, v in values.items():
                setattr(inner, key, v)
        packed = message.SerializeToString()
        return len(packed).to_bytes(2, "big") + packed

    hello = one(hello={"data_address": "10.0.0.7"})
    frames = one(carried={"bytes": b"first", "rest": 6}) + one(carried={"bytes": b"second", "rest": 0})
    return hello + one(welcome={"lease_ms": 15000}) + one(carried={"rest": 0}) + one(beat={}) + frames


def boards():
    """As fuzz_cluster.c reads it: a communicator of two parts is opened, becomes complete, and is purged by the next one."""
    return b"\0\2\0\0" + b"\1\0\5\3abc" + b"\1\1\6\2de" + b"\1\1\6\2de" + b"\1\1\7\2de" + b"\4\2\0\0" + b"\6\0\0\0" + b"\5\0\5\3abc"


def mailbox():
    """Inputs as fuzz_mailbox.c reads them: 600 tensors; write, repair, a turn in which all or none is answered, a restart."""
    def write(at, data):
        return b"\0" + at.to_bytes(2, "big") + bytes([len(data)]) + data

    def request(cell, seq, kind=1, flags=0, slot=0, weight=1.0, ready=(0, 0), how=0):
        fields = struct.pack("=QIIQIIddQdIIIIQd", seq, kind, flags, 3, 2, slot, weight, 0.5, 7, 1.0, 0, 0, ready[0], 0, ready[1], 0.0)
        return write(128 + 128 * cell, fields) + bytes([1, cell | how])

    wait = write(128, struct.pack("=QIIQ", 9, 2, 0, 5)) + b"\1\0"
    all_, none, restart, tensors = b"\2\xff", b"\6\0", b"\3", (599).to_bytes(2, "big")
    yield "push", tensors + request(0, 1) + all_ + request(0, 2, flags=1, slot=1) + all_
    yield "wait", tensors + wait + none + all_
    yield "busy", tensors + request(1, 1) + none + request(1, 2) + none + all_
    yield "restart", tensors + request(2, 1) + none + restart + none + all_
    yield "present", tensors + write(8192, b"\x5a" * 75) + request(0, 1, how=8) + all_
    yield "ready", tensors + request(7, 1, flags=2, ready=(8, 5)) + none + write(4096 + 448, b"\5") + none + all_
    yield "refused", tensors + request(0, 1, kind=7) + none + request(0, 2, weight=-1.0) + none + request(0, 3, slot=9) + none


def main():
    files = descriptor_pb2.FileDescriptorSet.FromString((pathlib.Path(sys.argv[1]) / "proto/gacc.protoset").read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    for f in files:
        pool.Add(f)
    factory = message_factory.MessageFactory(pool)
    number = 0
    for service in SERVICES:
        for m in pool.FindServiceByName(f"gacc.v1.{service}").methods:
            for t in (m.input_type, m.output_type):
                seed = bytes([number, 7]) + fill(factory.GetPrototype(t)()).SerializeToString()
                (CORPUS / "messages" / t.name).write_bytes(seed)
                number += 1
    for number, name in enumerate(CLUSTER):
        t = internal().FindMessageTypeByName(f"gacc.internal.v1.{name}")
        message = fill(message_factory.MessageFactory().GetPrototype(t)())
        for field, v in VALUES.get(name, {}).items():
            if isinstance(v, list):
                getattr(message, field)[:] = v
            else:
                setattr(message, field, v)
        packed = message.SerializeToString()
        (CORPUS / "cluster" / name).write_bytes(bytes([number]) + (RECORD if name.endswith("Record") else b"") + packed)
    (CORPUS / "cluster" / "PeerMessage").write_bytes(bytes([len(CLUSTER)]) + link())
    (CORPUS / "cluster" / "Board").write_bytes(bytes([len(CLUSTER) + 1]) + boards())
    for name, seed in mailbox():
        (CORPUS / "mailbox" / name).write_bytes(seed)
    for name in ATTACH:
        message = fill(factory.GetPrototype(pool.FindMessageTypeByName(f"gacc.v1.{name}"))())
        (CORPUS / "attach" / name).write_bytes(message.SerializeToString())


if __name__ == "__main__":
    main()
