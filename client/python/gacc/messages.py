# SPDX-License-Identifier: Apache-2.0
"""Message classes of gacc.v1, made at run time from the descriptor set that lies in the package: no generated code, so any protobuf runtime will do.

    messages.types().PushRequest(window=3)

The descriptor set is gacc.protoset, which setup.py builds from proto/gacc/v1. A source tree has none: GACC_PROTOSET names another one.
"""
from __future__ import annotations

import functools
import os
import pathlib
import threading
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from .errors import GaccError

_lock = threading.RLock()  # nothing is made twice
INSTALLED = ("/usr/share/gacc/gacc.protoset", "/usr/local/share/gacc/gacc.protoset")  # by the packages of gaccd, by `ninja install`


def protoset() -> bytes:
    """The bytes of the descriptor set."""
    given = os.environ.get("GACC_PROTOSET")
    places: list[Any] = [given] if given else [pathlib.Path(__file__).with_name("gacc.protoset"), *INSTALLED]
    for place in places:
        try:
            return pathlib.Path(place).read_bytes()
        except FileNotFoundError:
            continue
    raise GaccError(f"no descriptor set: none of {', '.join(map(str, places))} is there", reason="IO_ERROR",
                    hint="install the package (pip install client/python), or set GACC_PROTOSET to build/proto/gacc.protoset")


def _status_file() -> Any:
    """google.rpc.Status, which comes in the trailer grpc-status-details-bin; the field numbers are google's."""
    file = descriptor_pb2.FileDescriptorProto(name="gacc_rpc_status", package="gacc_rpc", syntax="proto3")
    wrapped = file.message_type.add(name="Any")
    wrapped.field.add(name="type_url", number=1, type=9, label=1)
    wrapped.field.add(name="value", number=2, type=12, label=1)
    status = file.message_type.add(name="Status")
    status.field.add(name="code", number=1, type=5, label=1)
    status.field.add(name="message", number=2, type=9, label=1)
    status.field.add(name="details", number=3, type=11, label=3, type_name=".gacc_rpc.Any")
    return file


class Types:
    """Classes by name. Immutable; any thread."""

    def __init__(self, data: bytes):
        self.pool = descriptor_pool.DescriptorPool()
        files = list(descriptor_pb2.FileDescriptorSet.FromString(data).file)
        for file in [*files, _status_file()]:
            self.pool.Add(file)
        self._factory = message_factory.MessageFactory(self.pool) if not hasattr(message_factory, "GetMessageClass") else None

    def of(self, descriptor: Any) -> Any:
        """Class of a message's descriptor."""
        with _lock:
            if self._factory:  # protobuf before 4.22
                return self._factory.GetPrototype(descriptor)
            return message_factory.GetMessageClass(descriptor)

    def named(self, full_name: str) -> Any:
        return self.of(self.pool.FindMessageTypeByName(full_name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = self.named("gacc.v1." + name)
        setattr(self, name, found)
        return found

    def enum_names(self, enum: str) -> dict[int, str]:
        """Number -> name without the enum's prefix: {1: "F32", ..} of DataType."""
        values = self.pool.FindEnumTypeByName("gacc.v1." + enum).values
        prefix = values[0].name[:-len("UNSPECIFIED")]
        return {v.number: v.name[len(prefix):] for v in values}


@functools.lru_cache(maxsize=None)
def _types() -> Types:
    return Types(protoset())


def types() -> Types:
    """One set for the process, for all its threads: messages of two sets do not go together."""
    with _lock:
        return _types()
