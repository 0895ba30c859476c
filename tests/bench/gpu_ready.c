/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_probe ready: how long it takes from the launch of a small kernel until the host sees the ready word behind it, by
 * the ways of libgacc and of clients without it, on an idle GPU and while another process keeps it busy. */
#include "gpu_kernels.h"
#include "gpu_probe.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define TIMES 1000
#define LONG_ENOUGH_S 2.0 /* for one row; a simulator does fewer */
#define PATIENCE_S 10.0	  /* for one word */
#define BUSY_ELEMENTS_LEAST ((uint64_t)64 << 10)
#define BUSY_ELEMENTS ((uint64_t)64 << 20)
#define BUSY_S 1e-3 /* a launch */
#define BUSY_LAUNCHES 32

struct words {
	struct gpu gpu;
	_Atomic uint64_t *word;
	cu_memory seen;
	cu_stream side;
	cu_event event;
	struct gpu_add small;
	uint64_t value;
};

static void store(void *arg)
{
	struct words *w = arg;

	atomic_store_explicit(w->word, w->value, memory_order_release);
}

/* libgacc's: the caller's stream does not wait for the host function. */
static void ring_beside(struct words *w)
{
	const struct gpu *g = &w->gpu;
	const struct cuda_driver *cu = &g->device.cu;

	gpu_call(g, "cuEventRecord", cu->cuEventRecord(w->event, g->device.stream));
	gpu_call(g, "cuStreamWaitEvent", cu->cuStreamWaitEvent(w->side, w->event, 0));
	gpu_call(g, "cuLaunchHostFunc", cu->cuLaunchHostFunc(w->side, store, w));
}

static void ring_by_host(struct words *w)
{
	gpu_call(&w->gpu, "cuLaunchHostFunc", w->gpu.device.cu.cuLaunchHostFunc(w->gpu.device.stream, store, w));
}

static void ring_by_value(struct words *w)
{
	gpu_call(&w->gpu, "cuStreamWriteValue64",
		 w->gpu.device.cu.cuStreamWriteValue64(w->gpu.device.stream, w->seen, w->value, 0));
}

static void ring_after_wait(struct words *w)
{
	gpu_call(&w->gpu, "cuStreamSynchronize", w->gpu.device.cu.cuStreamSynchronize(w->gpu.device.stream));
	store(w);
}

static const struct way {
	const char *what;
	void (*ring)(struct words *);
	bool memops; /* needs stream memory operations */
} ways[] = {
	{ "ready word by a host function on a side stream", ring_beside, false },
	{ "ready word by a host function", ring_by_host, false },
	{ "ready word by cuStreamWriteValue64", ring_by_value, true },
	{ "ready word by the CPU after cuStreamSynchronize", ring_after_wait, false },
};

static void one_row(struct words *w, const struct way *way, const char *where)
{
	static double took[TIMES];
	char what[120];
	int n = 0, on = 0;

	snprintf(what, sizeof(what), "%s, %s", way->what, where);
	w->gpu.what = what;
	if (way->memops)
		w->gpu.device.cu.cuDeviceGetAttribute(&on, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
						      w->gpu.device.number);
	if (way->memops && !on) {
		row(w->gpu.number, what, "not run: this driver has no stream memory operations");
		return;
	}
	for (double begun = seconds_now(); n < TIMES && (n < 3 || seconds_now() < begun + LONG_ENOUGH_S); n++) {
		const double asked = seconds_now();

		w->value++;
		gpu_add(&w->gpu, &w->small);
		way->ring(w);
		while (atomic_load_explicit(w->word, memory_order_acquire) != w->value)
			if (seconds_now() > asked + PATIENCE_S) {
				row(w->gpu.number, what, "FAILED: not rung after %.0f s", PATIENCE_S);
				exit(1);
			}
		took[n] = (seconds_now() - asked) * 1e6;
		gpu_wait(&w->gpu);
	}
	const double middle = quantile(took, n, 0.5);
	row(w->gpu.number, what, "median %.1f us, 99 %% below %.1f us, of %d", middle, quantile(took, n, 0.99), n);
}

static int ring(void *arg)
{
	const char *where = arg;
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct words w = { .value = 0 };
	const struct cuda_driver *cu = &w.gpu.device.cu;
	int fd = memfd_create("word", MFD_CLOEXEC);

	if (!gpu_open(&w.gpu, 5, "ready words"))
		return 0;
	if (fd < 0 || ftruncate(fd, (off_t)page))
		return 3;
	w.word = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (w.word == MAP_FAILED)
		return 3;
	gpu_must(&w.gpu, cuda_pin(&w.gpu.device, (void *)w.word, page, &w.seen));
	gpu_call(&w.gpu, "cuStreamCreate", cu->cuStreamCreate(&w.side, CU_STREAM_NON_BLOCKING));
	gpu_call(&w.gpu, "cuEventCreate", cu->cuEventCreate(&w.event, CU_EVENT_DISABLE_TIMING));
	w.small = (struct gpu_add){ .dtype = DTYPE_F32, .n = KERNEL_BLOCK, .dst = gpu_alloc(&w.gpu, KERNEL_BLOCK * 4) };
	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++)
		one_row(&w, &ways[i], where);
	return 0;
}

/* A trainer that always has work queued, until it is killed. */
static int keep_busy(void *arg)
{
	struct gpu g;
	struct gpu_add a = { .dtype = DTYPE_F32, .n_sources = 1, .coef = 1, .n = BUSY_ELEMENTS_LEAST };
	char one = 1;

	if (!gpu_open(&g, 5, "a busy GPU"))
		return 0;
	a.dst = gpu_alloc(&g, BUSY_ELEMENTS * 4);
	a.src = a.g[0] = gpu_alloc(&g, BUSY_ELEMENTS * 4);
	for (double took = 0; took < BUSY_S && a.n < BUSY_ELEMENTS; a.n *= 2) {
		took = seconds_now();
		gpu_add(&g, &a);
		gpu_wait(&g);
		took = seconds_now() - took;
	}
	for (bool told = false;; told = true) {
		for (int i = 0; i < BUSY_LAUNCHES; i++)
			gpu_add(&g, &a);
		if (!told)
			send_to(*(int *)arg, &one, 1, -1);
		gpu_call(&g, "cuStreamSynchronize", g.device.cu.cuStreamSynchronize(g.device.stream));
	}
}

int ready(int number)
{
	char idle[] = "idle GPU", shared[] = "another process busy";
	int pair[2], st = run_rows(number, "ready words, idle GPU", ring, idle);
	char one;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return 1;
	pid_t busy = start(keep_busy, &pair[1]);
	close(pair[1]);
	if (receive_from(pair[0], &one, 1, NULL))
		st |= run_rows(number, "ready words, busy GPU", ring, shared);
	kill(busy, SIGKILL);
	end_of(busy);
	close(pair[0]);
	return st != 0;
}
