/* One rank of the fault campaign: starts in a millisecond, knows at any time what its next micro-batch must be, and can be killed anywhere.
 *
 *     campaign_trainer OUT_DIR STEPS ELEMENTS PAUSE_US
 *
 * Tensors: `ledger` has one element for each micro-batch of the whole job; number g = (window * micro_size + micro) * ranks + rank has a gradient of
 * 1 there and of 0 elsewhere. With SGD, learning rate 1, reduction sum and no momentum the element ends as minus g's weight: 0 is a
 * loss, twice the weight is a micro-batch that counted twice. `body` (ELEMENTS) is the training proper: its gradient depends on the
 * parameters, so that an error anywhere spreads. Everything follows from (window, micro, rank) and the parameters, so that a run with
 * faults ends in the bits of one without.
 *
 * Prints a line when it can go on after it was started: {"window", "micro", "ready_ms"}. At the job's end it writes its parameters, as
 * they lie in memory, to OUT_DIR/params_RANK.bin. Exit status 0 also when the job had ended before it came.
 */
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
	size_t n_ledger, n_body;
	uint32_t micro_size; /* of the spec; it does not change here */
	useconds_t pause;
	const char *out;
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

/* A multiple of 1/4 in [0.5, 3.25]: sums of these are exact. */
static double weight_of(uint64_t window, uint32_t micro, uint32_t rank)
{
	return 0.5 + 0.25 * (double)((5 * window + 3 * micro + 7 * rank) % 12);
}

/* In [-2^-10, 2^-10), from a mixed number of micro-batch and element (Fibonacci hashing). */
static float noise(uint64_t g, size_t i)
{
	uint64_t h = (g * 0x9e3779b97f4a7c15u) ^ (i * 0xc2b2ae3d27d4eb4fu);

	h *= 0x9e3779b97f4a7c15u;
	return (float)(int32_t)(h >> 32) * 0x1p-41f;
}

static const float *params(struct trainer *t, size_t tensor)
{
	const void *base;

	need(t, gacc_params(t->job, &base, NULL));
	return (const float *)((const char *)base + gacc_param_offset(t->job, tensor));
}

static void push(struct trainer *t, const gacc_position *at)
{
	uint32_t rank = (uint32_t)gacc_rank(t->job);
	uint64_t g = (at->window * t->micro_size + at->micro) * (uint64_t)gacc_size(t->job) + rank;
	gacc_push_opts opts = { .struct_size = sizeof(opts), .weight = weight_of(at->window, at->micro, rank), .loss = (double)g,
				.data_key = g + 1 };
	const float *p = params(t, 1);
	void *slot;
	gacc_status st;

	need(t, gacc_grad_buffer(t->job, &slot, NULL));
	float *ledger = (float *)((char *)slot + gacc_offset(t->job, 0)), *body = (float *)((char *)slot + gacc_offset(t->job, 1));
	memset(ledger, 0, t->n_ledger * sizeof(*ledger));
	if (g < t->n_ledger)
		ledger[g] = 1;
	for (size_t i = 0; i < t->n_body; i++)
		body[i] = noise(g, i) + 0x1p-10f * p[i];
	if (t->pause)
		usleep(t->pause);
	st = gacc_push(t->job, &opts, NULL);
	if (st != GACC_ESTALE)
		need(t, st);
}

static void write_params(struct trainer *t)
{
	char name[4096], temporary[4112];
	FILE *f;

	snprintf(name, sizeof(name), "%s/params_%d.bin", t->out, gacc_rank(t->job));
	snprintf(temporary, sizeof(temporary), "%s.%d", name, (int)getpid());
	f = fopen(temporary, "wb");
	if (!f || fwrite(params(t, 0), sizeof(float), t->n_ledger, f) != t->n_ledger ||
	    fwrite(params(t, 1), sizeof(float), t->n_body, f) != t->n_body || fclose(f) || rename(temporary, name)) {
		perror(temporary);
		exit(1);
	}
}

static void start(struct trainer *t, size_t steps)
{
	double begin = now_ms();
	gacc_position at;

	need(t, gacc_open(NULL, &t->client));
	need(t, gacc_attach(t->client, NULL, &t->job));
	t->n_ledger = steps * t->micro_size * (size_t)gacc_size(t->job);
	const gacc_tensor tensors[] = {
		{ .name = "ledger", .dtype = GACC_F32, .ndim = 1, .shape = { (int64_t)t->n_ledger } },
		{ .name = "body", .dtype = GACC_F32, .ndim = 1, .shape = { (int64_t)t->n_body } },
	};
	need(t, gacc_register(t->job, tensors, 2));
	if (gacc_params_needed(t->job)) {
		float *ledger = calloc(t->n_ledger, sizeof(*ledger)), *body = malloc(t->n_body * sizeof(*body));

		if (!ledger || !body)
			exit(1);
		for (size_t i = 0; i < t->n_body; i++)
			body[i] = 1024 * noise(0, i);
		need(t, gacc_put_params(t->job, (const void *const[]){ ledger, body }));
		free(ledger);
		free(body);
	}
	need(t, gacc_ready(t->job, -1, &at));
	printf("{\"window\": %" PRIu64 ", \"micro\": %u, \"ready_ms\": %.1f}\n", at.window, at.micro, now_ms() - begin);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	const char *micro_size = getenv("GACC_MICRO_SIZE");

	if (argc != 5 || !micro_size) {
		fprintf(stderr, "usage: GACC_MICRO_SIZE=K campaign_trainer OUT_DIR STEPS ELEMENTS PAUSE_US\n");
		return 2;
	}
	struct trainer t = { .out = argv[1], .n_body = strtoul(argv[3], NULL, 10), .pause = (useconds_t)strtoul(argv[4], NULL, 10),
			     .micro_size = (uint32_t)strtoul(micro_size, NULL, 10) };
	gacc_step step = { .job_done = 0 };

	start(&t, strtoul(argv[2], NULL, 10));
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
