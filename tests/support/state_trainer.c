/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a small job that keeps a state of its own with libgacc (tests/system/test_trainer_state.py).
 *
 *     state_trainer ENDPOINT JOB RANK WORLD WINDOWS BYTES
 *
 * Each of its pushes adds to a sum, from which the next one follows; the sum and BYTES more bytes that follow from it
 * are its state. Says on stdout what it has begun with: "new", or the window of the state that it was given. With
 * WINDOWS more windows done, which may be 0, it puts the state for the next one, says "ready", and goes when its stdin
 * ends. Exit status 1: failed, with the reason on stderr. */
#include <gacc/gacc.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gacc_job *job;
static uint64_t sum = 1;
static size_t n_state;
static unsigned char *state, *got;

static _Noreturn void failed(const char *text)
{
	fprintf(stderr, "state_trainer: %s\n", text);
	exit(1);
}

static void need(gacc_status st)
{
	if (st)
		failed(job ? gacc_last_error(job) : gacc_strerror(st));
}

static void fill(unsigned char *to)
{
	uint64_t x = sum;
	memcpy(to, &sum, sizeof(sum));
	for (size_t i = sizeof(sum); i < n_state; i++, x = x * UINT64_C(6364136223846793005) + 1)
		to[i] = (unsigned char)(x >> 56);
}

static void put(void)
{
	fill(state);
	need(gacc_put_state(job, state, n_state));
}

static void resume(const gacc_position *at)
{
	uint64_t window = 0;
	size_t bytes = 0, all = 0;
	need(gacc_get_state(job, NULL, 0, &bytes, &window));
	if (!bytes) {
		printf("new\n");
		return;
	}
	if (bytes != n_state || window != at->window)
		failed("the state is another one's");
	need(gacc_get_state(job, got, n_state, &all, NULL));
	memcpy(&sum, got, sizeof(sum));
	fill(state);
	if (all != n_state || memcmp(state, got, n_state) != 0)
		failed("the state has other bytes");
	printf("%" PRIu64 "\n", window);
}

static void push(void)
{
	gacc_push_opts o = { .struct_size = sizeof(o) };
	void *slot;
	need(gacc_grad_buffer(job, &slot, NULL));
	sum = sum * 31 % 1009;
	*(float *)((char *)slot + gacc_offset(job, 0)) = (float)sum;
	need(gacc_push(job, &o, NULL));
}

static void train(uint64_t windows)
{
	gacc_position at;
	for (uint64_t i = 0; i < windows; i++) {
		put();
		while (gacc_next(job, &at) == GACC_OK)
			push();
		need(gacc_wait(job, -1, NULL));
	}
	put();
}

int main(int argc, char **argv)
{
	const gacc_tensor t = { .name = "w", .dtype = GACC_F32, .ndim = 1, .shape = { 1 } };
	const float zero = 0;
	const void *values[] = { &zero };
	gacc_attach_opts o = { .struct_size = sizeof(o) };
	gacc_client *client;
	gacc_position at;
	const void *params;
	if (argc < 7)
		return 2;
	o.job = argv[2], o.rank = atoi(argv[3]), o.world_size = atoi(argv[4]);
	n_state = sizeof(sum) + strtoull(argv[6], NULL, 10);
	state = malloc(n_state), got = malloc(n_state);
	if (!state || !got)
		failed("no memory");
	need(gacc_open(argv[1], &client));
	if (gacc_attach(client, &o, &job))
		failed(gacc_client_error(client));
	need(gacc_register(job, &t, 1));
	if (gacc_params_needed(job))
		need(gacc_put_params(job, values));
	need(gacc_ready(job, -1, &at));
	resume(&at);
	train(strtoull(argv[5], NULL, 10));
	need(gacc_params(job, &params, NULL));
	printf("ready %.9g\n", (double)*(const float *)((const char *)params + gacc_param_offset(job, 0)));
	fflush(stdout);
	while (getchar() != EOF)
		;
	gacc_detach(job, 1);
	gacc_close(client);
	free(state);
	free(got);
	return 0;
}
