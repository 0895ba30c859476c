# SPDX-License-Identifier: Apache-2.0
"""The protos of gacc.v1 only grow, and keep the rules that common.proto states.

tests/golden/gacc_v1.protoset is what has been published. After a release that adds something:
    cd proto && protoc -I. --include_imports --descriptor_set_out=../tests/golden/gacc_v1.protoset gacc/v1/*.proto
"""
import copy
import os
import pathlib
import re

import pytest
from google.protobuf import descriptor_pb2

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/gacc_v1.protoset"

# Methods whose messages are not <Method>Request and <Method>Response: the inline forms share a reply, and two services
# have a Flush.
NAMES = {
    "GradientService.PutParametersInline": ("PutParametersInlineRequest", "PutParametersResponse"),
    "GradientService.PushInline": ("PushInlineRequest", "PushResponse"),
    "JobService.Flush": ("FlushJobRequest", "FlushJobResponse"),
}


def read(path):
    return descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())


@pytest.fixture(scope="module")
def current():
    return read(pathlib.Path(os.environ["GACC_BUILD_DIR"]) / "proto/gacc.protoset")


@pytest.fixture(scope="module")
def golden():
    return read(GOLDEN)


def ours(files):
    return [f for f in files.file if f.package == "gacc.v1"]


def walk(messages, prefix):
    for m in messages:
        yield prefix + m.name, m
        yield from walk(m.nested_type, prefix + m.name + ".")


def enums_of(file):
    yield from ((e.name, e) for e in file.enum_type)
    for name, m in walk(file.message_type, ""):
        yield from ((name + "." + e.name, e) for e in m.enum_type)


def facts(files):
    """Everything on the wire, as {what: how}; a client depends on each entry."""
    out = {}
    for file in ours(files):
        for name, m in walk(file.message_type, ""):
            out["message " + name] = True
            for f in m.field:
                oneof = m.oneof_decl[f.oneof_index].name if f.HasField("oneof_index") else ""
                out[f"field {name} = {f.number}"] = (f.name, f.type, f.label, f.type_name, oneof)
        for name, e in enums_of(file):
            for v in e.value:
                out[f"value {name}.{v.name}"] = v.number
        for s in file.service:
            for m in s.method:
                out[f"method {s.name}.{m.name}"] = (m.input_type, m.output_type, m.client_streaming, m.server_streaming)
    return out


def broken(old, new):
    new = facts(new)
    return [f"{k}: {v} -> {new.get(k)}" for k, v in facts(old).items() if new.get(k) != v]


def recursive(files):
    """Names of the messages that can contain themselves."""
    parts = {".gacc.v1." + n: [f.type_name for f in m.field if f.type == f.TYPE_MESSAGE]
             for file in ours(files) for n, m in walk(file.message_type, "")}

    def contains(name, wanted, seen):
        return any(p == wanted or (p not in seen and contains(p, wanted, seen | {p})) for p in parts.get(name, []))
    return [n for n in parts if contains(n, n, set())]


def faults(files):
    out = []
    for file in ours(files):
        for name, m in walk(file.message_type, ""):
            for f in m.field:
                if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", f.name):
                    out.append(f"{name}.{f.name} is not snake_case")
                if f.proto3_optional:
                    out.append(f"{name}.{f.name} is optional")
        for name, e in enums_of(file):
            prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", e.name).upper() + "_"
            if (e.value[0].number, e.value[0].name) != (0, prefix + "UNSPECIFIED"):
                out.append(f"{name} does not begin with {prefix}UNSPECIFIED = 0")
            out += [f"{name}.{v.name} lacks the prefix {prefix}" for v in e.value if not v.name.startswith(prefix)]
        for s in file.service:
            for m in s.method:
                want = NAMES.get(f"{s.name}.{m.name}", (m.name + "Request", m.name + "Response"))
                if (m.input_type, m.output_type) != tuple(".gacc.v1." + w for w in want):
                    out.append(f"{s.name}.{m.name} has {m.input_type}, {m.output_type}")
    return out + [f"{n} contains itself" for n in recursive(files)]


def test_only_grows(golden, current):
    assert broken(golden, current) == []


def test_rules(current):
    assert faults(current) == []


def edit(files, change):
    files = copy.deepcopy(files)
    change(next(f for f in files.file if f.name == "gacc/v1/gradient.proto"))
    return files


@pytest.mark.parametrize("change", [
    lambda f: f.message_type.pop(),
    lambda f: f.message_type[0].field.pop(),
    lambda f: setattr(f.message_type[0].field[0], "number", 99),
    lambda f: setattr(f.message_type[0].field[0], "name", "other"),
    lambda f: setattr(f.message_type[0].field[0], "type", 4),
    lambda f: setattr(f.enum_type[0].value[1], "number", 9),
    lambda f: f.service[0].method.pop(),
    lambda f: setattr(f.service[0].method[0], "server_streaming", True),
])
def test_a_break_is_seen(golden, change):
    assert broken(golden, edit(golden, change))


@pytest.mark.parametrize("change", [
    lambda f: setattr(f.message_type[0].field[0], "name", "camelCase"),
    lambda f: setattr(f.message_type[0].field[0], "proto3_optional", True),
    lambda f: setattr(f.enum_type[0].value[0], "name", "ZERO"),
    lambda f: setattr(f.enum_type[0].value[1], "name", "OTHER"),
    lambda f: setattr(f.service[0].method[0], "name", "Other"),
    lambda f: f.message_type[0].field.add(name="again", number=50, type=11, label=1,
                                          type_name=".gacc.v1." + f.message_type[0].name),
])
def test_a_fault_is_seen(golden, change):
    assert faults(golden) == []
    assert faults(edit(golden, change))
