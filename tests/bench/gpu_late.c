/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_probe late: a process is killed in the middle of a long launch of gacc's kernel, with more queued behind. Another
 * one, which has imported the memory before, reads it all the time: does anything change once the first process has
 * been waited for? gacc adopts memory on that proof. Three processes, as the parent never opens the driver. */
#include "gpu_kernels.h"
#include "gpu_probe.h"

#include "proto/nvml.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GATE_BYTES ((uint64_t)64 << 10)
#define ELEMENTS_LEAST ((uint64_t)64 << 10)
#define ELEMENTS_MOST ((uint64_t)1 << 30)
#define LAUNCH_S 2.0
#define LAUNCHES 3
#define SAMPLES 256
#define WATCHED_S 2.0 /* after the end */
#define PATIENCE_S 30.0
#define NVML_MOST 256

int late_signal = SIGKILL;

static const char what_memory[] = "memory after a process killed in a kernel has been waited for";
static const char what_gate[] = "the gate's counters after that";
static const char what_nvml[] = "NVML's list of processes after that";

struct made {
	uint64_t elements, bytes;
	double launch_s;
	int ok;
};
struct went {
	double at; /* seconds_now when the process had been waited for */
	double killed;
	int pid;
};

static struct cu_access access_to(const struct gpu *g)
{
	return (struct cu_access){ { CU_MEM_LOCATION_TYPE_DEVICE, g->device.number },
				   CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
}

static cu_memory map(const struct gpu *g, cu_handle handle, uint64_t bytes)
{
	const struct cuda_driver *cu = &g->device.cu;
	const struct cu_access access = access_to(g);
	cu_memory at = 0;

	gpu_call(g, "cuMemAddressReserve", cu->cuMemAddressReserve(&at, bytes, 0, 0, 0));
	gpu_call(g, "cuMemMap", cu->cuMemMap(at, bytes, 0, handle, 0));
	gpu_call(g, "cuMemSetAccess", cu->cuMemSetAccess(at, bytes, &access, 1));
	return at;
}

/* ---- the one that is killed ---- */

/* The launch has one block, so that it takes long; it writes the elements one after the other. */
static void add(const struct gpu *g, cu_memory dst, cu_memory src, uint64_t n, float value)
{
	struct gpu_add a = { .dst = dst, .dtype = DTYPE_F32, .n_sources = 8, .coef = value / 8, .n = n, .blocks = 1 };

	for (int i = 0; i < 8; i++)
		a.g[i] = src;
	gpu_add(g, &a);
}

static cu_memory make_memory(const struct gpu *g, uint64_t bytes, int *out_fd)
{
	const struct cuda_driver *cu = &g->device.cu;
	const struct cu_allocation what = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					    .requested_handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					    .location = { CU_MEM_LOCATION_TYPE_DEVICE, g->device.number } };
	cu_handle handle;

	gpu_call(g, "cuMemCreate", cu->cuMemCreate(&handle, bytes, &what, 0));
	cu_memory at = map(g, handle, bytes);
	gpu_call(g, "cuMemsetD8Async", cu->cuMemsetD8Async(at, 0, bytes, g->device.stream));
	gpu_wait(g);
	gpu_call(g, "cuMemExportToShareableHandle",
		 cu->cuMemExportToShareableHandle(out_fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	return at;
}

static double time_of(const struct gpu *g, cu_memory array, uint64_t n)
{
	double begun = seconds_now();

	add(g, array, array, n, 0);
	gpu_wait(g);
	return seconds_now() - begun;
}

/* How many elements a launch adds in about LAUNCH_S, if there is memory for them. */
static uint64_t measure(const struct gpu *g)
{
	size_t free_bytes = 0, total = 0;
	uint64_t n = ELEMENTS_LEAST;

	gpu_call(g, "cuMemGetInfo", g->device.cu.cuMemGetInfo(&free_bytes, &total));
	for (;;) {
		const cu_memory array = gpu_alloc(g, n * 4);
		time_of(g, array, ELEMENTS_LEAST); /* the first one is slower */
		const double took = time_of(g, array, n), more = LAUNCH_S / took;
		cuda_private_free(&g->device, array);
		if (more < 2 || n * 2 > ELEMENTS_MOST || n * 2 * 12 > free_bytes)
			return n;
		n *= more > 16 && n * 16 < ELEMENTS_MOST && n * 16 * 12 < free_bytes ? 16 : 2;
	}
}

static cu_memory ones(const struct gpu *g, uint64_t n)
{
	const cu_memory at = gpu_alloc(g, n * 4);
	float *piece = malloc(ELEMENTS_LEAST * 4);

	if (!piece)
		exit(3);
	for (size_t i = 0; i < ELEMENTS_LEAST; i++)
		piece[i] = 1;
	for (uint64_t i = 0; i < n; i += ELEMENTS_LEAST)
		gpu_upload(g, at + i * 4, piece, ELEMENTS_LEAST * 4);
	free(piece);
	return at;
}

static int make(void *arg)
{
	const int socket = *(int *)arg;
	struct made m = { .ok = 0 };
	struct gpu g;
	char go;
	int fd = -1;

	if (!gpu_open(&g, 3, what_memory)) {
		send_to(socket, &m, sizeof(m), -1);
		return 0;
	}
	size_t granularity = 1;
	m.elements = measure(&g);
	const cu_memory src = ones(&g, m.elements);
	const struct cu_allocation what = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					    .requested_handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					    .location = { CU_MEM_LOCATION_TYPE_DEVICE, g.device.number } };
	gpu_call(&g, "cuMemGetAllocationGranularity",
		 g.device.cu.cuMemGetAllocationGranularity(&granularity, &what, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	m.bytes = (GATE_BYTES + m.elements * 4 + granularity - 1) / granularity * granularity;
	const cu_memory at = make_memory(&g, m.bytes, &fd);
	gpu_open_gate(&g, at);
	double took = seconds_now();
	add(&g, at + GATE_BYTES, src, m.elements, 1);
	gpu_wait(&g);
	m.launch_s = seconds_now() - took;
	m.ok = 1;
	if (!send_to(socket, &m, sizeof(m), fd) || !receive_from(socket, &go, 1, NULL))
		return 1;
	for (int i = 0; i < LAUNCHES; i++)
		add(&g, at + GATE_BYTES, src, m.elements, (float)(i + 2));
	for (;;)
		pause(); /* with everything open */
}

/* ---- the one that reads ---- */

struct watch {
	int socket, fd, pid;
	struct made made;
};

struct snapshot {
	float value[SAMPLES];
	struct cuda_gate gate;
	double begun, done;
};

static void take(const struct gpu *g, cu_memory at, uint64_t elements, struct snapshot *s)
{
	const struct cuda_driver *cu = &g->device.cu;
	const uint64_t apart = elements / SAMPLES * 4;

	s->begun = seconds_now();
	for (uint64_t i = 0; i < SAMPLES; i++)
		gpu_call(g, "cuMemcpyDtoHAsync",
			 cu->cuMemcpyDtoHAsync(&s->value[i], at + GATE_BYTES + i * apart + apart - 4, 4,
					       g->device.stream));
	gpu_call(g, "cuMemcpyDtoHAsync", cu->cuMemcpyDtoHAsync(&s->gate, at, sizeof(s->gate), g->device.stream));
	gpu_call(g, "cuStreamSynchronize", cu->cuStreamSynchronize(g->device.stream));
	s->done = seconds_now();
}

static bool same(const struct snapshot *a, const struct snapshot *b)
{
	return !memcmp(a->value, b->value, sizeof(a->value)) && !memcmp(&a->gate, &b->gate, sizeof(a->gate));
}

/* Is the process on NVML's list? -1: NVML is not to be had. */
static int listed(const struct nvml *nvml, int pid)
{
	struct nvml_process p[NVML_MOST];
	unsigned n = NVML_MOST;
	nvml_device device;

	if (nvml->nvmlDeviceGetHandleByIndex(0, &device) || nvml->nvmlDeviceGetComputeRunningProcesses(device, &n, p))
		return -1;
	for (unsigned i = 0; i < n; i++)
		if (p[i].pid == (unsigned)pid)
			return 1;
	return 0;
}

struct seen {
	double late;	/* something changed at most so long after the end; 0: nothing did */
	double longest; /* snapshot */
	double listed;	/* NVML has told the process so long after the end; -1: not asked */
	bool all;	/* every launch was done */
	struct cuda_gate gate;
};

/* Snapshots until nothing has changed for WATCHED_S. NVML counts GPUs without CUDA_VISIBLE_DEVICES: with several the
 * first may be another one, and then it lists nothing. */
static void look_on(const struct gpu *g, const struct watch *w, cu_memory at, const struct snapshot *first,
		    struct went *gone, struct seen *out)
{
	struct snapshot last = *first, now;
	double changed = 0;
	struct nvml nvml;
	char why[200];
	const bool asks = nvml_load(&nvml, why, sizeof(why)) == NVML_LOADED && !nvml.nvmlInit();

	*out = (struct seen){ .listed = asks ? 0 : -1 };
	for (;;) {
		struct pollfd p = { .fd = w->socket, .events = POLLIN };
		if (!gone->at && poll(&p, 1, 0) > 0 && !receive_from(w->socket, gone, sizeof(*gone), NULL))
			exit(3);
		take(g, at, w->made.elements, &now);
		out->longest = now.done - now.begun > out->longest ? now.done - now.begun : out->longest;
		if (!same(&last, &now)) {
			changed = now.done;
			if (gone->at && last.begun > gone->at)
				out->late = now.done - gone->at;
		}
		if (gone->at && asks && out->listed >= 0) {
			int is = listed(&nvml, w->pid);
			out->listed = is < 0 ? -1 : is ? seconds_now() - gone->at : out->listed;
		}
		last = now;
		if (gone->at && now.begun > gone->at + WATCHED_S && now.begun > changed + WATCHED_S)
			break;
		if (gone->at && now.begun > gone->at + PATIENCE_S)
			break;
	}
	out->gate = last.gate;
	out->all = last.value[SAMPLES - 1] == (float)(LAUNCHES + 1);
}

static int report(const struct gpu *g, const struct watch *w, const struct went *gone, const struct seen *s)
{
	const cuda_word begun = s->gate.begun[1], ended = s->gate.ended[1];

	if (s->late > 0)
		row(g->number, what_memory, "FAILED: it changed until %.1f ms after that", s->late * 1e3);
	else if (s->all)
		row(g->number, what_memory, "not run: the launches were over before the process was");
	else
		row(g->number, what_memory,
		    "quiet for %.0f s, read every %.1f ms; killed in a launch of %.2f s, waited for after %.1f ms",
		    WATCHED_S, s->longest * 1e3, w->made.launch_s, (gone->at - gone->killed) * 1e3);
	row(g->number, what_gate, "%llu blocks begun, %llu ended%s", begun, ended,
	    begun == ended ? "" : ": one that died is told by the wait alone");
	if (s->listed < 0)
		row(g->number, what_nvml, "not run: NVML does not tell it");
	else if (s->listed > 0)
		row(g->number, what_nvml, "has the process for %.1f ms more", s->listed * 1e3);
	else
		row(g->number, what_nvml, "does not have the process any more");
	return s->late > 0;
}

static int watch(void *arg)
{
	const struct watch *w = arg;
	const double begun = seconds_now();
	struct snapshot first, now;
	struct went gone = { 0 };
	struct seen seen;
	cu_handle handle;
	struct gpu g;
	char word = 0;

	if (!gpu_open(&g, 3, what_memory))
		return 0;
	gpu_call(&g, "cuMemImportFromShareableHandle",
		 g.device.cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)w->fd,
							    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	const cu_memory at = map(&g, handle, w->made.bytes);
	take(&g, at, w->made.elements, &first);
	send_to(w->socket, &word, 1, -1); /* go */
	do {
		take(&g, at, w->made.elements, &now);
		if (seconds_now() > begun + PATIENCE_S) {
			row(g.number, what_memory, "FAILED: its launch does not begin");
			return 1;
		}
	} while (!memcmp(first.value, now.value, sizeof(first.value)));
	send_to(w->socket, &word, 1, -1); /* it is at work */
	look_on(&g, w, at, &now, &gone, &seen);
	return report(&g, w, &gone, &seen);
}

/* ---- the parent ---- */

/* 0, with the watcher still at work; else a row has been written, or will be by the watcher. */
static int kill_in_the_middle(pid_t maker, int to_maker, int to_watcher)
{
	struct went gone = { .pid = maker };
	char word;

	if (!receive_from(to_watcher, &word, 1, NULL) || !send_to(to_maker, &word, 1, -1) ||
	    !receive_from(to_watcher, &word, 1, NULL))
		return 1;
	gone.killed = seconds_now();
	kill(maker, late_signal);
	end_of(maker);
	gone.at = seconds_now();
	return !send_to(to_watcher, &gone, sizeof(gone), -1);
}

int late(int number)
{
	int m[2], w[2], st;
	struct watch job = { .fd = -1 };

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, m) ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, w))
		return 1;
	pid_t maker = start(make, &m[1]);
	close(m[1]);
	if (!receive_from(m[0], &job.made, sizeof(job.made), &job.fd) || !job.made.ok) {
		kill(maker, SIGKILL);
		st = end_of(maker);
		if (st > 1 && st != 128 + SIGKILL)
			row(number, what_memory, "FAILED: the process that was to be killed ended with status %d", st);
		return st == 1 || (st > 1 && st != 128 + SIGKILL);
	}
	job.socket = w[1], job.pid = maker;
	pid_t watcher = start(watch, &job);
	close(w[1]);
	if (kill_in_the_middle(maker, m[0], w[0]))
		kill(maker, SIGKILL);
	st = end_of(watcher);
	if (st > 1)
		row(number, what_memory, "FAILED: the process that was to find out ended with status %d", st);
	return st != 0;
}
