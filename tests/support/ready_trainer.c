/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a small job that does the work of support/work.h with a thread in place of a GPU: the job's thread pushes
 * slots that the thread fills later, and names the ready word that the thread then stores
 * (tests/system/test_ready_words.py).
 *
 *     ready_trainer ENDPOINT JOB RANK WORLD STEPS MICRO-SIZE ELEMENTS LATE-US OUT [rings]
 *
 * Each gradient becomes complete LATE-US after its push. Until then the slot holds numbers that spoil every sum. Writes
 * its final parameters to OUT.RANK, and to stdout how many pages the words have had. Exit status 1: failed, with the
 * reason on stderr. */
#include "support/work.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define QUEUE 8

static struct work work;
static gacc_job *job;
static bool rings;
static long late_us;
static float *initial;

/* ---- the GPU: fills slots in the order in which they were launched ---- */

struct kernel {
	uint64_t number, value;
	const float *params;
	char *slot;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct kernel queue[QUEUE];
	size_t n;
	uint64_t *word;
} gpu = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static _Noreturn void *gpu_run(void *unused)
{
	(void)unused;
	for (;;) {
		struct kernel k;
		pthread_mutex_lock(&gpu.lock);
		while (!gpu.n)
			pthread_cond_wait(&gpu.changed, &gpu.lock);
		k = gpu.queue[0];
		memmove(&gpu.queue[0], &gpu.queue[1], --gpu.n * sizeof(k));
		pthread_mutex_unlock(&gpu.lock);
		nanosleep(&(struct timespec){ .tv_sec = late_us / 1000000, .tv_nsec = late_us % 1000000 * 1000 }, NULL);
		work_gradient(&work, k.number, k.params, (float *)(k.slot + gacc_offset(job, 0)),
			      (float *)(k.slot + gacc_offset(job, 1)));
		__atomic_store_n(gpu.word, k.value, __ATOMIC_RELEASE);
		if (rings)
			gacc_ring(job);
	}
}

static void gpu_launch(struct kernel k)
{
	pthread_mutex_lock(&gpu.lock);
	if (gpu.n == QUEUE)
		abort(); /* there are fewer slots */
	gpu.queue[gpu.n++] = k;
	pthread_cond_signal(&gpu.changed);
	pthread_mutex_unlock(&gpu.lock);
}

/* ---- the trainer ---- */

static _Noreturn void failed(const char *text)
{
	fprintf(stderr, "ready_trainer: %s\n", text);
	exit(1);
}

static void need(gacc_status st)
{
	if (st)
		failed(job ? gacc_last_error(job) : gacc_strerror(st));
}

static void push(const gacc_position *at)
{
	static uint64_t launched;
	gacc_push_opts o = { .struct_size = sizeof(o),
			     .weight = work_weight(at, gacc_rank(job)),
			     .data_key = 1 + work_number(&work, at, gacc_rank(job)),
			     .async = at->micro % 3 != 2,
			     .ready_at = 7,
			     .ready_rings = rings };
	const void *params;
	void *slot;
	size_t bytes;
	gacc_status st = gacc_grad_buffer(job, &slot, &bytes);
	if (st == GACC_ESTALE)
		return;
	need(st);
	need(gacc_params(job, &params, NULL));
	memset(slot, 0x7f, bytes); /* 3.4e38 in each element */
	o.ready_value = ++launched;
	gpu_launch((struct kernel){ work_number(&work, at, gacc_rank(job)), launched,
				    (const float *)((const char *)params + gacc_param_offset(job, 1)), slot });
	need(gacc_push(job, &o, NULL));
}

static void train(void)
{
	gacc_position at;
	gacc_status st;
	while ((st = gacc_next(job, &at)) != GACC_EDONE) {
		if (st == GACC_OK)
			push(&at);
		else
			st = st == GACC_EAGAIN ? gacc_wait(job, -1, NULL) : st;
		if (st == GACC_EDONE)
			break;
		need(st);
	}
}

static void save(const char *out)
{
	char path[4096];
	const void *params;
	size_t bytes;
	need(gacc_params(job, &params, &bytes));
	snprintf(path, sizeof(path), "%s.%d", out, gacc_rank(job));
	const struct iovec part[] = { { (char *)(uintptr_t)params + gacc_param_offset(job, 0), work.n_ledger * 4 },
				      { (char *)(uintptr_t)params + gacc_param_offset(job, 1), work.n_body * 4 } };
	if (!work_write(path, part, 2))
		failed(path);
}

int main(int argc, char **argv)
{
	gacc_attach_opts o = { .struct_size = sizeof(o) };
	gacc_client *client;
	pthread_t thread;
	uint64_t pages;
	if (argc < 10)
		return 2;
	o.job = argv[2], o.rank = atoi(argv[3]), o.world_size = atoi(argv[4]);
	work = work_of(strtoull(argv[5], NULL, 10), strtoull(argv[6], NULL, 10), (uint64_t)o.world_size,
		       strtoull(argv[7], NULL, 10));
	late_us = atol(argv[8]);
	rings = argc > 10;
	initial = malloc((work.n_ledger + work.n_body) * sizeof(*initial));
	if (!initial)
		failed("no memory");
	work_initial(&work, initial, initial + work.n_ledger);
	need(gacc_open(argv[1], &client));
	if (gacc_attach(client, &o, &job))
		failed(gacc_client_error(client));
	need(work_enter(&work, job, initial, initial + work.n_ledger, NULL));
	need(gacc_ready_word(job, 7, &gpu.word, NULL));
	if (pthread_create(&thread, NULL, gpu_run, NULL))
		failed("no thread");
	train();
	save(argv[9]);
	need(gacc_ready_word(job, 7, &gpu.word, &pages));
	printf("%" PRIu64 "\n", pages);
	fflush(stdout);
	gacc_detach(job, 1);
	gacc_close(client);
	_exit(0); /* the GPU's thread never ends */
}
