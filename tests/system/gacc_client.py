# SPDX-License-Identifier: Apache-2.0
"""A Python client of gacc, the one that the tests use: what libgacc does, in the order of proto/gacc/v1/gradient.proto.

Messages and calls come from the build's descriptor set; nothing is generated and no library of ours is used. Every call has
a deadline and is repeated while the daemon is away, which is always right: the protocol's requests are idempotent.
"""
import concurrent.futures
import contextlib
import functools
import mmap
import os
import pathlib
import select
import socket
import struct
import threading
import time
import types

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from by_mailbox import Both, Box

CALL_S = 60       # a call with all its repetitions
CHUNK = 1 << 20   # bytes in one message of a stream; 4 MiB at most
TEST_MAILBOX = os.environ.get("TEST_MAILBOX") == "1"  # all tests' ranks use mailboxes
SLOT, MAILBOX = 1, 5  # SegmentKind; behind MAILBOX come its bells


def build_dir():
    return pathlib.Path(os.environ["GACC_BUILD_DIR"])


# ---- messages and calls ----


class Types:
    """The message classes of gacc.v1 by name: types.PushRequest(...)."""

    def __init__(self):
        self.pool = descriptor_pool.DescriptorPool()
        files = descriptor_pb2.FileDescriptorSet.FromString((build_dir() / "proto/gacc.protoset").read_bytes()).file
        for file in list(files) + [self._status_file()]:
            self.pool.Add(file)
        self.factory = message_factory.MessageFactory(self.pool)

    @staticmethod
    def _status_file():
        """google.rpc.Status, which comes in the trailer grpc-status-details-bin; field numbers are google's."""
        file = descriptor_pb2.FileDescriptorProto(name="status", package="rpc", syntax="proto3")
        a = file.message_type.add(name="Any")
        a.field.add(name="type_url", number=1, type=9, label=1)
        a.field.add(name="value", number=2, type=12, label=1)
        s = file.message_type.add(name="Status")
        s.field.add(name="code", number=1, type=5, label=1)
        s.field.add(name="message", number=2, type=9, label=1)
        s.field.add(name="details", number=3, type=11, label=3, type_name=".rpc.Any")
        return file

    def of(self, descriptor):
        if hasattr(message_factory, "GetMessageClass"):  # protobuf 4.22 and later
            return message_factory.GetMessageClass(descriptor)
        return self.factory.GetPrototype(descriptor)

    def __getattr__(self, name):
        return self.of(self.pool.FindMessageTypeByName("rpc.Status" if name == "Status" else "gacc.v1." + name))

    def spec(self, **fields):
        """A JobSpec; enum values may be written short: optimizer={"type": "adamw"}."""
        return self.JobSpec(**self._long_names(self.JobSpec.DESCRIPTOR, fields))

    def _long_names(self, descriptor, fields):
        out = {}
        for name, value in fields.items():
            f = descriptor.fields_by_name[name]
            if f.message_type and isinstance(value, list):
                value = [self._long_names(f.message_type, v) for v in value]
            elif f.message_type and isinstance(value, dict):
                value = self._long_names(f.message_type, value)
            elif f.enum_type and isinstance(value, str):
                prefix = f.enum_type.values[0].name.removesuffix("UNSPECIFIED")
                value = f.enum_type.values_by_name[prefix + value.upper()].number
            out[name] = value
        return out


@functools.lru_cache(maxsize=None)
def known_types():
    """One set for all clients: messages of two sets do not go together."""
    return Types()


class GaccError(Exception):
    """A call that was answered with an error: code (grpc's name), reason (the status table's), text, detail (ErrorDetail)."""

    def __init__(self, method, code, reason, text, detail):
        super().__init__(f"{method}: {code} {reason}: {text}" + (f" ({detail.hint})" if detail.hint else ""))
        self.method, self.code, self.reason, self.text, self.detail = method, code, reason, text, detail

    @property
    def is_outage(self):
        """Nobody answered, or only to say that the answer will come later. CANCELLED that nobody asked for is the last
        word of a dying server."""
        return self.code == "UNAVAILABLE" or (self.code == "CANCELLED" and not self.reason)


def target_of(endpoint):
    """As libgacc has it: a path has a slash, HOST:PORT has none."""
    return endpoint if endpoint.startswith(("unix:", "dns:", "ipv4:", "ipv6:")) or "/" not in endpoint else "unix:" + endpoint


class Client:
    """The services over one channel: client.gradient.Push(session=..., ...) returns the response."""

    def __init__(self, endpoint, metadata=(), credentials=None):
        self.types = known_types()
        endpoint = target_of(endpoint)
        options = [("grpc.max_receive_message_length", 8 << 20), ("grpc.initial_reconnect_backoff_ms", 100),
                   ("grpc.max_reconnect_backoff_ms", 200), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = (grpc.secure_channel(endpoint, credentials, options) if credentials
                        else grpc.insecure_channel(endpoint, options))
        self.metadata = metadata
        self.gradient, self.jobs, self.node = (Service(self, "gacc.v1." + name) for name in
                                               ("GradientService", "JobService", "NodeService"))

    def close(self):
        self.channel.close()

    def error_of(self, method, e):
        detail, trailer = self.types.ErrorDetail(), dict(e.trailing_metadata() or ())
        if "grpc-status-details-bin" in trailer:
            detail.ParseFromString(self.types.Status.FromString(trailer["grpc-status-details-bin"]).details[0].value)
        return GaccError(method, e.code().name, detail.reason, e.details() or "", detail)


class Service:
    def __init__(self, client, name):
        self._client, self._name = client, name
        service = client.types.pool.FindServiceByName(name)
        self._methods = service.methods_by_name
        # not of MethodDescriptor.CopyToProto: protobuf in pure Python, which MindSpore asks for, cannot copy methods
        file = descriptor_pb2.FileDescriptorProto.FromString(service.file.serialized_pb)
        self._streams = {m.name: m for s in file.service if s.name == service.name for m in s.method}
        self.on_outage = None  # called after an answer that came only at a later try

    def __getattr__(self, method):
        m = self._methods[method]
        proto = self._streams[method]
        kind = ("stream" if proto.client_streaming else "unary") + ("_stream" if proto.server_streaming else "_unary")
        known, path = self._client.types, f"/{self._name}/{method}"
        stub = getattr(self._client.channel, kind)(path, request_serializer=lambda r: r.SerializeToString(),
                                                   response_deserializer=known.of(m.output_type).FromString)

        def once(request, timeout):
            # wait_for_ready: a connection comes about only while some call waits for it
            answer = stub(request() if proto.client_streaming else request, timeout=timeout, wait_for_ready=True,
                          metadata=self._client.metadata)
            return list(answer) if proto.server_streaming else answer

        def call(request=None, timeout=CALL_S, retry=True, **fields):
            """`request`: for client streams a function that returns the messages. A server stream returns a list."""
            request = known.of(m.input_type)(**fields) if request is None else request
            end, tries = time.monotonic() + timeout, 0
            while True:
                try:
                    answer = once(request, max(end - time.monotonic(), 0.001))
                    if tries and self.on_outage:
                        self.on_outage()
                    return answer
                except grpc.RpcError as e:
                    error = self._client.error_of(method, e)
                tries += 1
                if not retry or not (error.is_outage or error.reason in ("PARAMS_CHANGED", "ATTEMPT_FAILED")):
                    raise error
                if time.monotonic() + 0.02 >= end:
                    raise error
                time.sleep(0.02)

        def stream(timeout=CALL_S, **fields):
            """The iterator of a server stream."""
            return stub(known.of(m.input_type)(**fields), timeout=timeout, wait_for_ready=True,
                        metadata=self._client.metadata)

        call.stream, call.stub = stream, stub
        return call


# ---- numbers ----

F32, F64, F16, BF16 = 1, 2, 3, 4
NUMPY = {F32: np.float32, F64: np.float64, F16: np.float16, BF16: np.uint16}
DTYPES = {"f32": F32, "f64": F64, "f16": F16, "bf16": BF16}


def to_bf16(a):
    """Bits of the nearest bf16 (ties to even), as uint16."""
    bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(a), np.uint32(0x7FC0), rounded).astype(np.uint16)


def from_bf16(bits):
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def as_dtype(a, dtype):
    """The array in the bytes of a wire dtype; uint16 given for bf16 is taken as bits."""
    a = np.asarray(a)
    if dtype == BF16:
        return a if a.dtype == np.uint16 else to_bf16(a)
    return a.astype(NUMPY[dtype], copy=False)


# ---- a trainer ----


class Rank:
    """One trainer: what libgacc does, in the order of gradient.proto. Tensors: (name, shape) or (name, shape, "bf16"), or with
    an alias (name, shape, dtype, alias_of).

    window and micro are the next ones to push; `missing` is what the open window still wants of this rank. All of it is public: tests
    that say wrong things on purpose use the arguments."""

    def __init__(self, daemon, job, rank, tensors, ranks=None, inline=False, attach=True, client=None, mailbox=None, **attach_fields):
        """`daemon`: a Daemon, or an endpoint. `mailbox`: asks for one, through which push and wait_step then go; self.gacc.rpc goes past
        it. None: as TEST_MAILBOX says. `attach_fields` go into AttachRequest."""
        endpoint = daemon if isinstance(daemon, str) else daemon.endpoint
        self.own_client = client is None
        self.client = client or Client(endpoint)
        self.gacc = Service(self.client, "gacc.v1.GradientService")
        self.gacc.on_outage = self.map_if_gone
        self.wants_mailbox, self.box = TEST_MAILBOX if mailbox is None else mailbox, None
        if self.wants_mailbox:
            self.gacc = Both(self, self.gacc, whole=mailbox is None)
        self.job, self.rank, self.inline = str(job), rank, inline
        self.tensors = [self._tensor(*t) for t in tensors]
        self.names = [t.name for t in self.tensors]
        self.shapes = {t.name: tuple(t.shape) for t in self.tensors}
        self.memory, self.attach_socket, self.session = {}, None, None
        self.window, self.micro, self.micro_size, self.missing, self.loss_scale = 0, 0, 0, [], 1.0
        self.pool, self.mapping = concurrent.futures.ThreadPoolExecutor(4), threading.Lock()
        if attach:
            self.attach(ranks, **attach_fields)

    def _tensor(self, name, shape, dtype="f32", alias_of=""):
        return self.client.types.TensorSpec(name=name, shape=shape, dtype=DTYPES[dtype], alias_of=alias_of)

    # -- setting up --

    def attach(self, ranks=None, **fields):
        """A session. `ranks`: the job's, asked of it when not given."""
        ranks = ranks or self.client.jobs.Get(job=self.job).job.spec.ranks
        request = dict(job=self.job, rank=self.rank, world_size=ranks, pid=os.getpid(), nonce=os.urandom(16), protocol_min=1,
                       protocol_max=1, wants_shared_memory=not self.inline)
        self.attached = self.gacc.Attach(**{**request, **fields})
        self.session, self.ranks = self.attached.session, ranks
        return self.attached

    def register(self):
        """The layout; then the memory, unless inline."""
        self.registered = self.gacc.RegisterTensors(session=self.session, tensors=self.tensors)
        self.layout = dict(zip(self.names, self.registered.layout))
        if not self.inline:
            self.map()
        return self.registered

    def map(self):
        """Our slots and the parameters, by the attach socket, which stays open: its end is the trainer's end."""
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(CALL_S)
        s.connect(self.attached.attach_socket)
        s.send(self.client.types.MapRequest(version=1, session=self.session, wants_mailbox=self.wants_mailbox).SerializeToString())
        answer, fds, _, _ = socket.recv_fds(s, 8192, 16)
        if not answer:  # the end of gaccd; read as a message it would be one without segments
            s.close()
            raise ConnectionResetError("the attach socket has ended")
        mapped = self.client.types.MapResponse.FromString(answer)
        if mapped.reason:
            s.close()
            raise GaccError("Map", "", mapped.reason, mapped.message, self.client.types.ErrorDetail())
        bells = [fd for segment, fd in zip(mapped.segments, fds) if segment.kind >= MAILBOX]
        self.box = Box(*bells, s) if bells else None
        for segment, fd in zip(mapped.segments, fds):
            if segment.kind >= MAILBOX:
                continue
            prot = mmap.PROT_READ | (mmap.PROT_WRITE if segment.kind == SLOT else 0)
            memory = mmap.mmap(fd, segment.bytes, mmap.MAP_SHARED, prot)
            self.memory[segment.kind, segment.index] = memoryview(memory)[segment.data_offset:]
            os.close(fd)
        if self.attach_socket:
            self.attach_socket.close()
        self.attach_socket = s

    def map_if_gone(self):
        """The session outlives gaccd, the attach socket does not: a new one says that we live. The memory is the same."""
        with self.mapping:
            if self.attach_socket and select.select([self.attach_socket], [], [], 0)[0]:
                try:
                    self.map()
                except (OSError, GaccError):
                    pass  # gone again, or the session is over: the next call tells

    def put_params(self, params):
        """Initial parameters: name -> array (uint16 for bf16 bits). The first rank that gives them wins."""
        data = bytearray(self.registered.param_bytes)
        for name, array in params.items():
            t = self.layout[name]
            a = as_dtype(array, t.param_dtype)
            assert a.size == t.count, f"{name}: {a.size} elements, not {t.count}"
            data[t.param_offset:t.param_offset + a.nbytes] = a.tobytes()
        step = CHUNK if self.inline else self.registered.slot_bytes
        pieces = [(at, bytes(data[at:at + step]), at + step >= len(data)) for at in range(0, len(data), step)]
        if self.inline:
            message = self.client.types.PutParametersInlineRequest
            return self.gacc.PutParametersInline(
                lambda: (message(session=self.session if at == 0 else None, offset=at, data=piece, last=last)
                         for at, piece, last in pieces))
        for attempt in range(5):
            try:
                for at, piece, last in pieces:
                    self.memory[1, 0][:len(piece)] = piece
                    answer = self.gacc.PutParameters(session=self.session, slot=0, offset=at, bytes=len(piece), last=last)
                    if answer.ready:
                        break
                return answer
            except GaccError as e:  # a gaccd that died took with it what had come
                if "do not cover" not in e.text or len(pieces) == 1 or attempt == 4:
                    raise

    def ready(self, timeout=CALL_S):
        """Where this rank resumes."""
        self.resumed = self.gacc.WaitReady(session=self.session, timeout=timeout)
        self.window, self.micro_size, self.loss_scale = (self.resumed.window, self.resumed.micro_size,
                                                         self.resumed.loss_scale)
        self.missing = list(self.resumed.missing)
        self.micro = self.missing[0] if self.missing else self.micro_size
        return self.resumed

    def start(self, params=None):
        """register, put_params if they are needed, ready."""
        if self.register().params_needed and params is not None:
            self.put_params(params)
        return self.ready()

    # -- a window --

    def slot(self, number=0):
        """A slot's gradients: name -> array in the shared memory itself, flat, bf16 as uint16."""
        return {name: np.frombuffer(self.memory[1, number], NUMPY[t.grad_dtype], t.count, t.slot_offset)
                for name, t in self.layout.items()}

    def fill(self, grads, number=0):
        """Gradients (a dict, or a list in the order of the tensors; None: not touched) into a slot."""
        views = self.slot(number)
        for name, grad in self._named(grads).items():
            views[name][:] = as_dtype(grad, self.layout[name].grad_dtype).ravel()

    def _named(self, grads):
        grads = grads if isinstance(grads, dict) else dict(zip(self.names, grads))
        return {name: g for name, g in grads.items() if g is not None}

    def push_request(self, weight=1.0, loss=0.0, window=None, micro=None, slot=0, data_key=0, present=None,
                     zero_after=False, loss_scale=None, lr=0.0):
        bits = b"" if present is None else np.packbits(np.array(present, bool), bitorder="little").tobytes()
        return self.client.types.PushRequest(
            session=self.session, window=self.window if window is None else window,
            micro=self.micro if micro is None else micro, slot=slot, weight=weight, loss=loss, data_key=data_key,
            loss_scale=self.loss_scale if loss_scale is None else loss_scale, present=bits, zero_after=zero_after, lr=lr)

    def push(self, grads=None, timeout=CALL_S, retry=True, **what):
        """One micro-batch, the next one unless `micro` says otherwise; `what` as push_request's. grads None: the slot is full
        already. Counted when it returns."""
        request = self.push_request(**what)
        if self.inline:
            answer = self._push_inline(grads, request, timeout, retry)
        else:
            if grads is not None:
                self.fill(grads, request.slot)
            answer = self.gacc.Push(request, timeout=timeout, retry=retry)
        if request.window == self.window and request.micro == self.micro:
            self.micro += 1
        return answer

    def push_async(self, grads=None, slot=None, **what):
        """The same, as a future; slots take turns."""
        slot = self.micro % self.registered.slots if slot is None else slot
        request = self.push_request(slot=slot, **what)
        if self.inline:
            future = self.pool.submit(self._push_inline, grads, request, CALL_S)
        else:
            if grads is not None:
                self.fill(grads, slot)
            future = self.pool.submit(self.gacc.Push, request)
        if request.micro == self.micro:
            self.micro += 1
        return future

    def _push_inline(self, grads, header, timeout, retry=True):
        data = bytearray(self.registered.slot_bytes)
        for name, grad in self._named(grads).items():
            t = self.layout[name]
            a = as_dtype(grad, t.grad_dtype)
            data[t.slot_offset:t.slot_offset + a.nbytes] = a.tobytes()
        message = self.client.types.PushInlineRequest
        return self.gacc.PushInline(lambda: (message(header=header if at == 0 else None, offset=at,
                                                     data=bytes(data[at:at + CHUNK]))
                                             for at in range(0, len(data), CHUNK)), timeout=timeout, retry=retry)

    def flush(self, window=None):
        return self.gacc.Flush(session=self.session, window=self.window if window is None else window)

    def wait_step(self, window=None, timeout=CALL_S):
        """The window's outcome; the next window is then the current one."""
        window = self.window if window is None else window
        step = self.gacc.WaitStep(session=self.session, window=window, timeout=timeout)
        if window == self.window:
            self.window, self.micro, self.micro_size = window + 1, 0, step.micro_size
            self.missing = list(range(step.micro_size))
            self.loss_scale = step.result.next_loss_scale
        self.accum_half = step.accum_half
        return step

    # -- parameters --

    def params(self):
        """Copies, name -> array in the tensor's shape; bf16 as uint16 (see from_bf16). Stable between wait_step and this rank's
        last push of the window."""
        data = self.get_bytes() if self.inline else self.memory[2, 0]
        return {name: np.frombuffer(data, NUMPY[t.param_dtype], t.count, t.param_offset).reshape(self.shapes[name]).copy()
                for name, t in self.layout.items()}

    def get_bytes(self, **fields):
        """GetParameters: the bytes of the layout."""
        return b"".join(chunk.data for chunk in self.gacc.GetParameters(session=self.session, **fields))

    def reduced(self, half=None):
        """Optimizer CLIENT: the reduced gradients of the last window, name -> copy."""
        dtype = NUMPY[self.registered.accumulate_dtype]
        data = (self.get_bytes(reduced_gradients=True) if self.inline
                else self.memory[4, self.accum_half if half is None else half])
        return {name: np.frombuffer(data, dtype, t.count, t.accum_offset).reshape(self.shapes[name]).copy()
                for name, t in self.layout.items()}

    def ack_step(self, window=None):
        """Optimizer CLIENT: the last window's gradients are applied."""
        return self.gacc.AckStep(session=self.session, window=self.window - 1 if window is None else window)

    # -- the status page --

    def status(self):
        """proto/segment_layout.h: struct status_page. `seq` is odd while parameters are being written."""
        seq, window, applied_step, micro_size, counted, engine_pid = struct.unpack_from("6Q", self.memory[3, 0])
        return types.SimpleNamespace(seq=seq, window=window, applied_step=applied_step, micro_size=micro_size,
                                     counted=counted, engine_pid=engine_pid)

    # -- the end --

    def detach(self, done=True):
        return self.gacc.Detach(session=self.session, done=done)

    def close(self):
        """What the death of a process does: the attach socket closes, nothing is said."""
        self.pool.shutdown(wait=False)
        if self.attach_socket:
            with contextlib.suppress(OSError):  # gone before
                self.attach_socket.shutdown(socket.SHUT_RDWR)  # whoever waits at the mailbox's bell hears of it
            self.attach_socket.close()
            self.attach_socket = None
        if self.own_client:
            self.client.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        try:
            if kind is None and self.session:
                self.detach()
        finally:
            self.close()
