# SPDX-License-Identifier: Apache-2.0
"""libgacc for these benchmarks: the public C API by ctypes, gradients and parameters as torch tensors on the shared memory."""
import ctypes as c
import warnings

import torch

warnings.filterwarnings("ignore", message="The given buffer is not writable")  # the parameters are mapped read-only
EAGAIN, EDONE = -1, -11


class Tensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("dtype", c.c_int), ("ndim", c.c_int), ("shape", c.c_int64 * 8), ("alias_of", c.c_char_p)]


class AttachOpts(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("job", c.c_char_p), ("rank", c.c_int), ("world_size", c.c_int), ("spec_yaml", c.c_char_p),
                ("no_shared_memory", c.c_int), ("timeout_ms", c.c_int), ("outage_ms", c.c_int)]


class Position(c.Structure):
    _fields_ = [("window", c.c_uint64), ("applied_step", c.c_uint64), ("micro", c.c_uint32), ("micro_size", c.c_uint32),
                ("last_in_window", c.c_int), ("loss_scale", c.c_double)]


class Step(c.Structure):
    _fields_ = [("window", c.c_uint64), ("applied_step", c.c_uint64), ("outcome", c.c_int), ("total_weight", c.c_double),
                ("divisor", c.c_double), ("micro_count", c.c_uint64), ("grad_norm", c.c_double), ("lr", c.c_double),
                ("mean_loss", c.c_double), ("last_rank", c.c_uint32), ("last_lag_ns", c.c_int64), ("params_digest", c.c_uint64),
                ("reduced", c.c_void_p), ("job_done", c.c_int)]


class PushOpts(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("weight", c.c_double), ("loss", c.c_double), ("data_key", c.c_uint64),
                ("present", c.c_void_p), ("zero_after", c.c_int), ("asynchronous", c.c_int)]


class Client:
    """A connection to gaccd. One for all jobs of a process: of two, each would wake the other's thread for its answers."""

    def __init__(self, library, endpoint):
        self.lib = c.CDLL(library)
        for name in ("gacc_last_error", "gacc_client_error"):
            getattr(self.lib, name).restype = c.c_char_p
        for name in ("gacc_offset", "gacc_param_offset"):
            getattr(self.lib, name).restype = c.c_size_t
        self.handle = c.c_void_p()
        if self.lib.gacc_open(endpoint.encode(), c.byref(self.handle)):
            raise RuntimeError(f"gacc: cannot open {endpoint}")

    def close(self):
        self.lib.gacc_close(self.handle)


class Job:
    """One rank of a job that is made by its first rank. `params` are the tensors to train: they become views of the daemon's. `attached` is called
    between attaching and what waits for other ranks."""

    def __init__(self, client, spec_yaml, rank, ranks, names, params, attached=lambda: None):
        self.lib, self.client, self.job = client.lib, client.handle, c.c_void_p()
        opts = AttachOpts(c.sizeof(AttachOpts), None, rank, ranks, spec_yaml.encode(), 0, 0, 0)
        self._need(self.lib.gacc_attach(self.client, c.byref(opts), c.byref(self.job)))
        attached()
        tensors = (Tensor * len(params))(*[Tensor(n.encode(), 1, p.dim(), (c.c_int64 * 8)(*p.shape), None) for n, p in zip(names, params)])
        self._need(self.lib.gacc_register(self.job, tensors, c.c_size_t(len(params))))
        if self.lib.gacc_params_needed(self.job):
            values = [p.detach().clone() for p in params]
            self._need(self.lib.gacc_put_params(self.job, (c.c_void_p * len(params))(*[v.data_ptr() for v in values])))
        self.at = Position()
        self._need(self.lib.gacc_ready(self.job, -1, c.byref(self.at)))
        self.params, self.shapes = params, [p.shape for p in params]
        base, size = c.c_void_p(), c.c_size_t()
        self._need(self.lib.gacc_params(self.job, c.byref(base), c.byref(size)))
        for t, p in enumerate(params):
            p.data = self._view(base.value + self.lib.gacc_param_offset(self.job, c.c_size_t(t)), p)
        self.slots, self.step = {}, Step()
        self.options = PushOpts(c.sizeof(PushOpts))

    def _need(self, status):
        if status:
            text = self.lib.gacc_last_error(self.job) if self.job else self.lib.gacc_client_error(self.client)
            raise RuntimeError(f"gacc: {status}: {(text or b'').decode()}")

    def _view(self, address, like):
        return torch.frombuffer((c.c_float * like.numel()).from_address(address), dtype=torch.float32).view_as(like)

    def next(self):
        """False: the window has all of this rank's micro-batches."""
        status = self.lib.gacc_next(self.job, c.byref(self.at))
        if status in (EAGAIN, EDONE):
            return False
        self._need(status)
        return True

    def slot(self):
        """Views of the slot to fill, one a tensor."""
        base, size = c.c_void_p(), c.c_size_t()
        self._need(self.lib.gacc_grad_buffer(self.job, c.byref(base), c.byref(size)))
        if base.value not in self.slots:
            self.slots[base.value] = [self._view(base.value + self.lib.gacc_offset(self.job, c.c_size_t(t)), p)
                                      for t, p in enumerate(self.params)]
            for view in self.slots[base.value]:
                view.zero_()
        return self.slots[base.value]

    def push(self, weight, zero_after, asynchronous=False):
        self.options.weight, self.options.zero_after, self.options.asynchronous = weight, zero_after, asynchronous
        self._need(self.lib.gacc_push(self.job, c.byref(self.options), None))

    def wait(self):
        """The outcome of the window, valid until the next one."""
        self._need(self.lib.gacc_wait(self.job, -1, c.byref(self.step)))
        return self.step

    def close(self, done):
        for p, shape in zip(self.params, self.shapes):
            p.data, p.grad = torch.empty(shape), None
        self.slots.clear()
        self.lib.gacc_detach(self.job, int(done))
