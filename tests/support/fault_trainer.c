/* SPDX-License-Identifier: Apache-2.0 */
/* Some ranks of a small job that does the work of support/work.h, for tests that break things around it
 * (tests/system/test_failpoints.py).
 *
 *     fault_trainer ENDPOINT JOB RANKS WORLD STEPS MICRO-SIZE ELEMENTS OUT [client|first]
 *
 * RANKS: "0,2,3", a thread each; "-": the one of GACC_RANK. Each writes its final parameters to OUT.<rank>. With
 * `client` it applies the reduced gradients itself and keeps its parameters in OUT.<rank>.state, from which a new
 * process goes on. With `first` rank 0 alone gives the parameters that the job begins with. With
 * GACC_TEST_STATES in the environment each rank puts a state of its own in each window. Exit status: 0 done; 3 the job
 * had ended when it came; 1 failed, with the reason on stderr. */
#include "support/work.h"

#include <gacc/gacc.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_RANKS 16
#define ENDED 3

static struct {
	const char *endpoint, *job, *out;
	struct work work;
	bool is_client, first_gives, has_states;
} run;

struct rank {
	pthread_t thread;
	int number, code;
	gacc_client *client;
	gacc_job *job;
	float *values; /* ledger, then body: initial ones, later those of optimizer client */
	uint64_t next; /* optimizer client: first window that is not in `values` */
	bool has_put;  /* its state, of the window `put` */
	uint64_t put;
};

static _Noreturn void failed(struct rank *r, gacc_status st, const char *text)
{
	fprintf(stderr, "rank %d: %s\n", r->number, text && *text ? text : gacc_strerror(st));
	_exit(1); /* with all its ranks, as a training that fails does */
}

static float *part(void *base, size_t offset)
{
	return (float *)((char *)base + offset);
}

static void fill(struct rank *r, const gacc_position *at, void *slot, const void *params)
{
	const float *now = run.is_client ? r->values + run.work.n_ledger
					 : (const float *)((const char *)params + gacc_param_offset(r->job, 1));
	work_gradient(&run.work, work_number(&run.work, at, r->number), now, part(slot, gacc_offset(r->job, 0)),
		      part(slot, gacc_offset(r->job, 1)));
}

static gacc_status push(struct rank *r, const gacc_position *at)
{
	gacc_push_opts o = { .struct_size = sizeof(o),
			     .zero_after = at->micro & 1,
			     .weight = work_weight(at, r->number),
			     .data_key = 1 + work_number(&run.work, at, r->number) };
	const void *params = NULL;
	void *slot;
	gacc_status st = gacc_params(r->job, &params, NULL);
	if (!st)
		st = gacc_grad_buffer(r->job, &slot, NULL);
	if (st)
		return st;
	fill(r, at, slot, params);
	return gacc_push(r->job, &o, NULL);
}

static void path_of(const struct rank *r, const char *end, char out[4096])
{
	snprintf(out, 4096, "%s.%d%s", run.out, r->number, end);
}

static size_t n_values(void)
{
	return run.work.n_ledger + run.work.n_body;
}

static bool save(struct rank *r, const char *end, float *values)
{
	const struct iovec part[] = { { &r->next, sizeof(r->next) }, { values, n_values() * sizeof(*values) } };
	char path[4096];
	path_of(r, end, path);
	return work_write(path, part, 2);
}

static void load(struct rank *r)
{
	char path[4096];
	size_t n = n_values();
	path_of(r, ".state", path);
	FILE *f = fopen(path, "re");
	if (!f)
		return;
	if (fread(&r->next, sizeof(r->next), 1, f) != 1 || fread(r->values, sizeof(*r->values), n, f) != n)
		abort(); /* it was saved whole */
	fclose(f);
}

/* Applied once, however often the step is handed out; then the daemon may reuse its memory. */
static gacc_status apply(struct rank *r, const gacc_step *s)
{
	if (s->window >= r->next) {
		const float *ledger = (const float *)((const char *)s->reduced + gacc_reduced_offset(r->job, 0));
		const float *body = (const float *)((const char *)s->reduced + gacc_reduced_offset(r->job, 1));
		for (size_t i = 0; i < run.work.n_ledger; i++)
			r->values[i] -= ledger[i];
		for (size_t i = 0; i < run.work.n_body; i++)
			r->values[run.work.n_ledger + i] -= body[i];
		r->next = s->window + 1;
		if (!save(r, ".state", r->values))
			return GACC_EINTERNAL;
	}
	return gacc_done(r->job, s->window);
}

static gacc_status step(struct rank *r)
{
	gacc_step s;
	gacc_status st = gacc_wait(r->job, -1, &s);
	return st || !run.is_client || s.outcome != GACC_STEP_APPLIED ? st : apply(r, &s);
}

/* Before the first push of a window; a process that was started again has pushed already, perhaps. */
static void put_state(struct rank *r, uint64_t window)
{
	if (!run.has_states || (r->has_put && r->put == window))
		return;
	r->has_put = true;
	r->put = window;
	gacc_put_state(r->job, &r->put, sizeof(r->put));
}

static gacc_status train(struct rank *r)
{
	gacc_position at;
	gacc_status st;
	while ((st = gacc_next(r->job, &at)) != GACC_EDONE) {
		if (!st)
			put_state(r, at.window);
		st = st == GACC_EAGAIN ? step(r) : st ? st : push(r, &at);
		if (st && st != GACC_EDONE)
			return st;
	}
	return GACC_OK;
}

static bool save_result(struct rank *r)
{
	const void *params = NULL;
	float *copy;
	bool ok;
	if (run.is_client)
		return save(r, "", r->values);
	if (gacc_params(r->job, &params, NULL))
		return false;
	copy = malloc(n_values() * sizeof(*copy));
	if (!copy)
		failed(r, GACC_ENOMEM, "no memory for a copy");
	memcpy(copy, (const char *)params + gacc_param_offset(r->job, 0), run.work.n_ledger * sizeof(*copy));
	memcpy(copy + run.work.n_ledger, (const char *)params + gacc_param_offset(r->job, 1),
	       run.work.n_body * sizeof(*copy));
	ok = save(r, "", copy);
	free(copy);
	return ok;
}

static void live(struct rank *r)
{
	gacc_attach_opts o = {
		.struct_size = sizeof(o), .job = run.job, .rank = r->number, .world_size = (int)run.work.ranks
	};
	gacc_status st = gacc_open(run.endpoint, &r->client);
	if (!st)
		st = gacc_attach(r->client, &o, &r->job);
	if (st == GACC_ECANCELLED || st == GACC_EDONE) {
		r->code = ENDED;
		return;
	}
	if (st)
		failed(r, st, r->client ? gacc_client_error(r->client) : "");
	bool gives = !run.first_gives || !r->number;
	st = work_enter(&run.work, r->job, gives ? r->values : NULL, r->values + run.work.n_ledger, NULL);
	if (st == GACC_EDONE) { /* the last step needed nothing more of this rank */
		r->code = ENDED;
		return;
	}
	if (!st)
		st = train(r);
	if (st)
		failed(r, st, gacc_last_error(r->job));
	if (!save_result(r))
		failed(r, GACC_EINTERNAL, "the parameters cannot be saved");
}

static void *thread(void *arg)
{
	struct rank *r = arg;
	r->values = malloc(n_values() * sizeof(*r->values));
	if (!r->values)
		failed(r, GACC_ENOMEM, "no memory for the values");
	work_initial(&run.work, r->values, r->values + run.work.n_ledger);
	if (run.is_client)
		load(r);
	live(r);
	gacc_detach(r->job, r->code == 0);
	gacc_close(r->client);
	free(r->values);
	return NULL;
}

int main(int argc, char **argv)
{
	static struct rank rank[MAX_RANKS];
	int n = 0, code = 0;
	if (argc < 9)
		return 2;
	run.endpoint = argv[1];
	run.job = argv[2];
	run.work = work_of(strtoull(argv[5], NULL, 10), strtoull(argv[6], NULL, 10), strtoull(argv[4], NULL, 10),
			   strtoull(argv[7], NULL, 10));
	run.out = argv[8];
	run.is_client = argc > 9 && strcmp(argv[9], "client") == 0;
	run.has_states = getenv("GACC_TEST_STATES") != NULL;
	run.first_gives = argc > 9 && strcmp(argv[9], "first") == 0;
	if (strcmp(argv[3], "-") == 0 && getenv("GACC_RANK"))
		argv[3] = getenv("GACC_RANK");
	for (char *at = strtok(argv[3], ","); at && n < MAX_RANKS; at = strtok(NULL, ","))
		rank[n++].number = atoi(at);
	for (int i = 0; i < n; i++)
		if (pthread_create(&rank[i].thread, NULL, thread, &rank[i]))
			abort();
	for (int i = 0; i < n; i++) {
		pthread_join(rank[i].thread, NULL);
		code = code ? code : rank[i].code;
	}
	return code;
}
