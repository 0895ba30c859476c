/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one size of `gaccctl bench` as a job of its own: each rank is a thread that pushes and waits, the main thread
 * collects their times. */
#include "bench_size.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define PERIOD 8 /* of the values along the tensor: small integers, whose sums are exact */

struct bench {
	const struct bench_size *size;
	char job[24];
	int ended; /* eventfd: ranks that are through */
};

struct rank {
	struct bench *bench;
	uint32_t number;
	pthread_t thread;
	gacc_client *client;
	gacc_job *job;
	double *total_us;		    /* of each measured window */
	double push_us, turn_us, reduce_us; /* sums */
	uint64_t wrong;
	void *filled; /* the slot that holds this rank's values already */
	gacc_status st;
	char why[512];
};

static double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* ---- values ---- */

static float value_at(uint64_t i, uint64_t window)
{
	return (float)((i + window) % PERIOD + 1);
}

/* With checks every window has other values, so that an old result is not taken for a new one. */
static void fill(struct rank *r, void *slot, uint64_t window)
{
	float *x = (float *)((char *)slot + gacc_offset(r->job, 0)), scale = (float)(r->number + 1);
	const struct bench_size *size = r->bench->size;

	if (!size->check && r->filled == slot)
		return;
	for (uint64_t i = 0; i < size->count; i++)
		x[i] = scale * value_at(i, window);
	r->filled = slot;
}

static uint64_t count_wrong(const struct rank *r, const gacc_step *step)
{
	const float *x = (const float *)((const char *)step->reduced + gacc_reduced_offset(r->job, 0));
	const struct bench_size *size = r->bench->size;
	float sum = (float)size->ranks * (float)(size->ranks + 1) / 2;
	uint64_t wrong = 0;

	for (uint64_t i = 0; i < size->count; i++)
		wrong += x[i] != sum * value_at(i, step->window);
	return wrong;
}

/* ---- a rank ---- */

static gacc_status window(struct rank *r, bool measured, uint32_t index)
{
	gacc_push_opts opts = { sizeof(opts), .weight = 1 };
	gacc_push_info info;
	gacc_position at;
	gacc_step step;
	double t0, t1, t2;
	void *slot;
	gacc_status st;

	st = gacc_next(r->job, &at);
	if (!st)
		st = gacc_grad_buffer(r->job, &slot, NULL);
	if (st)
		return st;
	fill(r, slot, at.window);
	t0 = now_us();
	st = gacc_push(r->job, &opts, &info);
	t1 = now_us();
	if (!st)
		st = gacc_wait(r->job, -1, &step);
	t2 = now_us();
	if (st)
		return st;
	if (measured) {
		double turn_us = (double)info.parked_ns / 1e3;

		r->push_us += t1 - t0 > turn_us ? t1 - t0 - turn_us : 0;
		r->turn_us += turn_us;
		r->reduce_us += t2 - t1;
		r->total_us[index] = t2 - t0;
	}
	if (r->bench->size->check)
		r->wrong += count_wrong(r, &step);
	return gacc_done(r->job, step.window);
}

static gacc_status enter(struct rank *r)
{
	const struct bench_size *size = r->bench->size;
	gacc_attach_opts opts = { sizeof(opts), .job = r->bench->job, .rank = (int)r->number,
				  .world_size = (int)size->ranks, .no_shared_memory = size->inlined };
	gacc_tensor x = { .name = "x", .dtype = GACC_F32, .ndim = 1, .shape = { (int64_t)size->count } };
	gacc_status st = gacc_open(size->endpoint, &r->client);

	if (!st)
		st = gacc_attach(r->client, &opts, &r->job);
	if (!st)
		st = gacc_register(r->job, &x, 1);
	return st ? st : gacc_ready(r->job, -1, NULL);
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	const struct bench_size *size = r->bench->size;
	uint64_t one = 1;

	r->st = enter(r);
	for (uint32_t i = 0; i < size->warmup + size->iters && !r->st; i++)
		r->st = window(r, i >= size->warmup, i - size->warmup);
	if (r->st)
		snprintf(r->why, sizeof(r->why), "rank %u: %s", r->number,
			 r->job	     ? gacc_last_error(r->job)
			 : r->client ? gacc_client_error(r->client)
				     : gacc_strerror(r->st));
	gacc_detach(r->job, 1);
	gacc_close(r->client);
	(void)!write(r->bench->ended, &one, sizeof(one));
	return NULL;
}

/* ---- all of them ---- */

static gacc_status make_job(gacc_client *client, const struct bench_size *size, struct bench *bench, char *why,
			    size_t n)
{
	char text[512];
	gacc_jobs *jobs;
	gacc_spec *spec;
	gacc_status st;

	snprintf(text, sizeof(text),
		 "{metadata: {name: bench}, spec: {ranks: %u, steps: %u, optimizer: {type: client}, reduction: sum, "
		 "grad_of: sum, slots_per_rank: 1, timeouts: {stall_abort: 60s}, init: [{pattern: '*', type: zeros}], "
		 "tensors: [{name: x, shape: [%" PRIu64 "]}]}}",
		 size->ranks, size->warmup + size->iters, size->count);
	st = gacc_spec_parse(text, "bench", &spec, why, n);
	if (st)
		return st;
	st = gacc_job_submit(client, spec, &jobs);
	gacc_spec_free(spec);
	if (st) {
		snprintf(why, n, "%s", gacc_client_error(client));
		return st;
	}
	snprintf(bench->job, sizeof(bench->job), "%" PRIu64, jobs->job[0].id);
	gacc_jobs_free(jobs);
	return GACC_OK;
}

/* Nothing may outlive the measurement; a job that has completed takes no harm. */
static void end_job(gacc_client *client, const struct bench *bench)
{
	gacc_jobs *jobs;

	if (!gacc_job_cancel(client, bench->job, "gaccctl bench has ended it", 0, &jobs))
		gacc_jobs_free(jobs);
}

static bool one_failed(const struct rank *rank, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (rank[i].st)
			return true;
	return false;
}

/* Until all started ranks are through; the job is ended when one has failed or the user wants no more. */
static bool await_ranks(gacc_client *client, struct bench *bench, const struct rank *rank, uint32_t started,
			int signals)
{
	struct pollfd p[2] = { { .fd = bench->ended, .events = POLLIN }, { .fd = signals, .events = POLLIN } };
	bool stopped = started < bench->size->ranks, interrupted = false;
	uint64_t through = 0, n;

	if (stopped)
		end_job(client, bench);
	while (through < started) {
		poll(p, 2, -1);
		if (p[0].revents && read(bench->ended, &n, sizeof(n)) == sizeof(n))
			through += n;
		if (p[1].revents) {
			interrupted = true;
			p[1].fd = -1;
		}
		if (!stopped && (interrupted || (through < started && one_failed(rank, started)))) {
			stopped = true;
			end_job(client, bench);
		}
	}
	return !interrupted;
}

static void sum_up(const struct bench_size *size, const struct rank *rank, struct bench_result *out)
{
	double n = (double)size->ranks * size->iters;

	*out = (struct bench_result){ 0 };
	for (uint32_t r = 0; r < size->ranks; r++) {
		out->push_us += rank[r].push_us / n;
		out->turn_us += rank[r].turn_us / n;
		out->reduce_us += rank[r].reduce_us / n;
		out->wrong += rank[r].wrong;
	}
	for (uint32_t i = 0; i < size->iters; i++) {
		double slowest = 0;

		for (uint32_t r = 0; r < size->ranks; r++)
			if (rank[r].total_us[i] > slowest)
				slowest = rank[r].total_us[i];
		out->total_us += slowest / size->iters;
	}
}

/* The failure of the first rank that has one of its own: the others hear of the job's end. */
static gacc_status failure_of(const struct rank *rank, uint32_t n, char *why, size_t n_why)
{
	const struct rank *found = NULL;

	for (uint32_t i = 0; i < n; i++)
		if (rank[i].st && (!found || found->st == GACC_ECANCELLED))
			found = &rank[i];
	if (!found)
		return GACC_OK;
	snprintf(why, n_why, "%s", found->why);
	return found->st;
}

static gacc_status run_ranks(gacc_client *client, struct bench *bench, struct rank *rank, int signals,
			     struct bench_result *out, char *why, size_t n_why)
{
	const struct bench_size *size = bench->size;
	uint32_t started = 0;
	gacc_status st;
	bool whole;

	for (; started < size->ranks; started++) {
		struct rank *r = &rank[started];

		*r = (struct rank){ .bench = bench, .number = started, .total_us = r->total_us };
		if (pthread_create(&r->thread, NULL, rank_main, r))
			break;
	}
	whole = await_ranks(client, bench, rank, started, signals);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(rank[i].thread, NULL);
	st = failure_of(rank, started, why, n_why);
	if (!whole)
		return GACC_EAGAIN;
	if (started < size->ranks) {
		snprintf(why, n_why, "only %u of %u threads could be started", started, size->ranks);
		return GACC_ENOMEM;
	}
	if (!st)
		sum_up(size, rank, out);
	return st;
}

gacc_status bench_size_run(gacc_client *client, const struct bench_size *size, int signals, struct bench_result *out,
			   char *why, size_t n_why)
{
	struct bench bench = { .size = size, .ended = eventfd(0, EFD_CLOEXEC) };
	struct rank *rank = calloc(size->ranks, sizeof(*rank));
	double *times = calloc((size_t)size->ranks * size->iters, sizeof(*times));
	gacc_status st = GACC_ENOMEM;

	snprintf(why, n_why, "out of memory or descriptors");
	if (bench.ended >= 0 && rank && times) {
		for (uint32_t i = 0; i < size->ranks; i++)
			rank[i].total_us = times + (size_t)i * size->iters;
		st = make_job(client, size, &bench, why, n_why);
		if (!st)
			st = run_ranks(client, &bench, rank, signals, out, why, n_why);
	}
	if (bench.ended >= 0)
		close(bench.ended);
	free(times);
	free(rank);
	return st;
}
