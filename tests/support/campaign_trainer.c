/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of the fault campaign, which does the work of support/work.h: starts in a millisecond, knows at any time
 * what its next micro-batch must be, and can be killed anywhere.
 *
 *     campaign_trainer OUT_DIR STEPS ELEMENTS PAUSE_US
 *
 * Prints a line when it can go on after it was started: {"window", "micro", "ready_ms"}. At the job's end it writes its
 * parameters, as they lie in memory, to OUT_DIR/params_RANK.bin. Exit status 0 also when the job had ended before it
 * came. Ranks of which TEST_BY_RPC has the bit (a number in hexadecimal) use no mailbox.
 */
#include "support/work.h"

#include <gacc/gacc.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct trainer {
	gacc_client *client;
	gacc_job *job;
	struct work work;
	useconds_t pause;
	const char *out;
	double lr; /* of every push: TEST_LR, or the schedule's */
};

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* A failed job or an ended session is the end of this process, too: the launcher or the harness judges its status. */
static void need(struct trainer *t, gacc_status st)
{
	const char *text = t->job ? gacc_last_error(t->job) : gacc_client_error(t->client);

	if (st == GACC_OK)
		return;
	fprintf(stderr, "campaign_trainer: %s: %s\n", gacc_strerror(st), text);
	exit(st == GACC_EDONE || strstr(text, "JOB_ENDED") || strstr(text, "has ended") ? 0 : 1);
}

static const float *params(struct trainer *t, size_t tensor)
{
	const void *base;

	need(t, gacc_params(t->job, &base, NULL));
	return (const float *)((const char *)base + gacc_param_offset(t->job, tensor));
}

static void push(struct trainer *t, const gacc_position *at)
{
	uint64_t g = work_number(&t->work, at, gacc_rank(t->job));
	gacc_push_opts opts = { .struct_size = sizeof(opts),
				.weight = work_weight(at, gacc_rank(t->job)),
				.loss = (double)g,
				.data_key = g + 1,
				.lr = t->lr };
	const float *p = params(t, 1);
	void *slot;
	gacc_status st;

	need(t, gacc_grad_buffer(t->job, &slot, NULL));
	work_gradient(&t->work, g, p, (float *)((char *)slot + gacc_offset(t->job, 0)),
		      (float *)((char *)slot + gacc_offset(t->job, 1)));
	if (t->pause)
		usleep(t->pause);
	st = gacc_push(t->job, &opts, NULL);
	if (st != GACC_ESTALE)
		need(t, st);
}

static struct iovec part(struct trainer *t, size_t tensor, size_t n)
{
	return (struct iovec){ (void *)(uintptr_t)params(t, tensor), n * sizeof(float) };
}

static void write_params(struct trainer *t)
{
	const struct iovec parts[] = { part(t, 0, t->work.n_ledger), part(t, 1, t->work.n_body) };
	char name[4000];

	snprintf(name, sizeof(name), "%s/params_%d.bin", t->out, gacc_rank(t->job));
	if (work_write(name, parts, 2))
		return;
	perror(name);
	exit(1);
}

static void start(struct trainer *t, uint64_t steps, uint64_t micro_size, size_t n_body)
{
	double begin = now_ms();
	gacc_position at;
	float *values;

	need(t, gacc_open(NULL, &t->client));
	need(t, gacc_attach(t->client, NULL, &t->job));
	t->work = work_of(steps, micro_size, (uint64_t)gacc_size(t->job), n_body);
	values = malloc((t->work.n_ledger + n_body) * sizeof(*values));
	if (!values)
		exit(1);
	work_initial(&t->work, values, values + t->work.n_ledger);
	need(t, work_enter(&t->work, t->job, values, values + t->work.n_ledger, &at));
	free(values);
	printf("{\"window\": %" PRIu64 ", \"micro\": %u, \"ready_ms\": %.1f}\n", at.window, at.micro, now_ms() - begin);
	fflush(stdout);
}

static void choose_way(void)
{
	const char *rank = getenv("GACC_RANK"), *by_rpc = getenv("TEST_BY_RPC");

	if (rank && by_rpc && strtoul(by_rpc, NULL, 16) >> strtoul(rank, NULL, 10) & 1)
		setenv("GACC_MAILBOX", "0", 1);
}

int main(int argc, char **argv)
{
	const char *micro_size = getenv("GACC_MICRO_SIZE");

	if (argc != 5 || !micro_size) {
		fprintf(stderr, "usage: GACC_MICRO_SIZE=K campaign_trainer OUT_DIR STEPS ELEMENTS PAUSE_US\n");
		return 2;
	}
	const char *lr = getenv("TEST_LR");
	struct trainer t = { .out = argv[1], .pause = (useconds_t)strtoul(argv[4], NULL, 10), .lr = lr ? atof(lr) : 0 };
	gacc_step step = { .job_done = 0 };

	choose_way();
	start(&t, strtoul(argv[2], NULL, 10), strtoul(micro_size, NULL, 10), strtoul(argv[3], NULL, 10));
	while (!step.job_done) {
		gacc_position at;
		gacc_status st = gacc_next(t.job, &at);

		if (st == GACC_EDONE)
			break;
		if (st == GACC_EAGAIN) {
			need(&t, gacc_wait(t.job, -1, &step));
			continue;
		}
		need(&t, st);
		push(&t, &at);
	}
	write_params(&t);
	gacc_detach(t.job, 1);
	gacc_close(t.client);
	return 0;
}
