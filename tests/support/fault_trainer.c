/* Some ranks of a small job whose result tells of every micro-batch that was lost, doubled or mixed up; for tests that break things
 * around it (tests/system/test_failpoints.py). The numbers are those of tests/system/workload.py: tensor `ledger` has one element per
 * micro-batch of the job, and micro-batch g has a gradient of 1 at element g; `body` depends on the parameters.
 *
 *     fault_trainer ENDPOINT JOB RANKS WORLD STEPS MICRO-SIZE ELEMENTS OUT [client]
 *
 * RANKS: "0,2,3", a thread each; "-": the one of GACC_RANK. Each writes its final parameters to OUT.<rank>. With `client` it applies the reduced gradients itself
 * and keeps its parameters in OUT.<rank>.state, from which a new process goes on. Exit status: 0 done; 3 the job had ended when it came;
 * 1 failed, with the reason on stderr. */
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
	int world;
	uint64_t steps, micro_size, elements, ledger;
	bool is_client;
} run;

struct rank {
	pthread_t thread;
	int number, code;
	gacc_client *client;
	gacc_job *job;
	float *values;         /* ledger, then body: initial ones, later those of optimizer client */
	uint64_t next;         /* optimizer client: first window that is not in `values` */
};

static float noise(uint64_t i)
{
	return (float)(i * 2654435761u % 65536) / 65536 - 0.5f;
}

static uint64_t index_of(const gacc_position *at, int rank)
{
	return (at->window * run.micro_size + at->micro) * (uint64_t)run.world + (uint64_t)rank;
}

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
	uint64_t g = index_of(at, r->number);
	float *ledger = part(slot, gacc_offset(r->job, 0)), *body = part(slot, gacc_offset(r->job, 1));
	const float *now = run.is_client ? r->values + run.ledger :
					   (const float *)((const char *)params + gacc_param_offset(r->job, 1));
	for (uint64_t i = 0; i < run.ledger; i++)
		ledger[i] = i == g;
	for (uint64_t i = 0; i < run.elements; i++)
		body[i] = noise(i + 31 * g) * 1e-3f + 1e-3f * now[i];
}

static gacc_status push(struct rank *r, const gacc_position *at)
{
	gacc_push_opts o = { .struct_size = sizeof o, .zero_after = at->micro & 1, .data_key = 1 + index_of(at, r->number) };
	const void *params = NULL;
	void *slot;
	o.weight = 0.5 + 0.25 * (double)((5 * at->window + 3 * at->micro + 7 * (uint64_t)r->number) % 12);
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

/* All or nothing, because the process may be killed at any moment. */
static bool save(const struct rank *r, const char *end, const float *values)
{
	char path[4096], temporary[4096];
	uint64_t n = run.ledger + run.elements;
	path_of(r, end, path);
	path_of(r, ".new", temporary);
	FILE *f = fopen(temporary, "we");
	bool ok = f && fwrite(&r->next, sizeof r->next, 1, f) == 1 && fwrite(values, sizeof *values, n, f) == n;
	if (f && fclose(f))
		ok = false;
	return ok && rename(temporary, path) == 0;
}

static void load(struct rank *r)
{
	char path[4096];
	uint64_t n = run.ledger + run.elements;
	path_of(r, ".state", path);
	FILE *f = fopen(path, "re");
	if (!f)
		return;
	if (fread(&r->next, sizeof r->next, 1, f) != 1 || fread(r->values, sizeof *r->values, n, f) != n)
		abort(); /* it was saved whole */
	fclose(f);
}

/* Applied once, however often the step is handed out; then the daemon may reuse its memory. */
static gacc_status apply(struct rank *r, const gacc_step *s)
{
	if (s->window >= r->next) {
		const float *ledger = (const float *)((const char *)s->reduced + gacc_reduced_offset(r->job, 0));
		const float *body = (const float *)((const char *)s->reduced + gacc_reduced_offset(r->job, 1));
		for (uint64_t i = 0; i < run.ledger; i++)
			r->values[i] -= ledger[i];
		for (uint64_t i = 0; i < run.elements; i++)
			r->values[run.ledger + i] -= body[i];
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

static gacc_status train(struct rank *r)
{
	gacc_position at;
	gacc_status st;
	while ((st = gacc_next(r->job, &at)) != GACC_EDONE) {
		st = st == GACC_EAGAIN ? step(r) : st ? st : push(r, &at);
		if (st && st != GACC_EDONE)
			return st;
	}
	return GACC_OK;
}

static gacc_status set_up(struct rank *r)
{
	const gacc_tensor tensors[] = {
		{ .name = "ledger", .dtype = GACC_F32, .ndim = 1, .shape = { (int64_t)run.ledger } },
		{ .name = "body", .dtype = GACC_F32, .ndim = 1, .shape = { (int64_t)run.elements } },
	};
	const void *values[] = { r->values, r->values + run.ledger };
	gacc_status st = gacc_register(r->job, tensors, 2);
	if (!st && gacc_params_needed(r->job))
		st = gacc_put_params(r->job, values);
	return st ? st : gacc_ready(r->job, -1, NULL);
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
	copy = malloc((run.ledger + run.elements) * sizeof *copy);
	if (!copy)
		failed(r, GACC_ENOMEM, "no memory for a copy");
	memcpy(copy, (const char *)params + gacc_param_offset(r->job, 0), run.ledger * sizeof *copy);
	memcpy(copy + run.ledger, (const char *)params + gacc_param_offset(r->job, 1), run.elements * sizeof *copy);
	ok = save(r, "", copy);
	free(copy);
	return ok;
}

static void live(struct rank *r)
{
	gacc_attach_opts o = { .struct_size = sizeof o, .job = run.job, .rank = r->number, .world_size = run.world };
	gacc_status st = gacc_open(run.endpoint, &r->client);
	if (!st)
		st = gacc_attach(r->client, &o, &r->job);
	if (st == GACC_ECANCELLED || st == GACC_EDONE) {
		r->code = ENDED;
		return;
	}
	if (st)
		failed(r, st, r->client ? gacc_client_error(r->client) : "");
	st = set_up(r);
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
	uint64_t n = run.ledger + run.elements;
	r->values = calloc(n, sizeof *r->values);
	if (!r->values)
		failed(r, GACC_ENOMEM, "no memory for the values");
	for (uint64_t i = 0; i < run.elements; i++)
		r->values[run.ledger + i] = noise(7 * i);
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
	run.world = atoi(argv[4]);
	run.steps = strtoull(argv[5], NULL, 10);
	run.micro_size = strtoull(argv[6], NULL, 10);
	run.elements = strtoull(argv[7], NULL, 10);
	run.out = argv[8];
	run.is_client = argc > 9;
	run.ledger = run.steps * run.micro_size * (uint64_t)run.world;
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
