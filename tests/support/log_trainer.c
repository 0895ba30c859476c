/* SPDX-License-Identifier: Apache-2.0 */
/* One rank that logs values with libgacc (tests/system/test_scalars.py).
 *
 *     log_trainer ENDPOINT JOB NAME
 *
 * Two windows of one micro-batch; after each it logs "c/loss", which is the window's number and a half, and after the
 * last one 1 under NAME, or nothing if NAME is "". Says on stdout what the last call has returned, and its text.
 * Exit status 1: another call has failed. */
#include <gacc/gacc.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static gacc_job *job;

static void need(gacc_status st)
{
	if (!st)
		return;
	fprintf(stderr, "log_trainer: %s\n", job ? gacc_last_error(job) : gacc_strerror(st));
	exit(1);
}

static uint64_t train(void)
{
	gacc_push_opts o = { .struct_size = sizeof(o) };
	gacc_step step;
	gacc_position at;
	void *slot;

	while (gacc_next(job, &at) == GACC_OK) {
		need(gacc_grad_buffer(job, &slot, NULL));
		*(float *)((char *)slot + gacc_offset(job, 0)) = 1;
		need(gacc_push(job, &o, NULL));
	}
	need(gacc_wait(job, -1, &step));
	return step.window;
}

int main(int argc, char **argv)
{
	const gacc_tensor t = { .name = "w", .dtype = GACC_F32, .ndim = 1, .shape = { 1 } };
	const float zero = 0;
	const void *values[] = { &zero };
	gacc_attach_opts o = { .struct_size = sizeof(o), .world_size = 1 };
	gacc_client *client;
	gacc_position at;
	uint64_t window = 0;

	if (argc < 4)
		return 2;
	o.job = argv[2];
	need(gacc_open(argv[1], &client));
	need(gacc_attach(client, &o, &job));
	need(gacc_register(job, &t, 1));
	need(gacc_put_params(job, values));
	need(gacc_ready(job, -1, &at));
	for (int i = 0; i < 2; i++) {
		window = train();
		need(gacc_log(job, window, &(gacc_value){ "c/loss", (double)window + 0.5 }, 1));
	}
	const gacc_status st = gacc_log(job, window, &(gacc_value){ argv[3], 1 }, *argv[3] != 0);
	printf("%d %s\n", st, st ? gacc_last_error(job) : "");
	gacc_detach(job, 1);
	gacc_close(client);
	return 0;
}
