/* SPDX-License-Identifier: Apache-2.0 */
/* A linear model trained through gacc, in C: the smallest whole trainer.
 *
 *     gaccctl run -n 2 -f linear.yaml -- ./linear
 *
 * push_inline.py, map_slots.py and push_mailbox.py train the same model through the protobuf API. All gradients are
 * made of integers, so that they end with the same bits: the last line printed is the parameters in hexadecimal.
 */
#include <gacc/gacc.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEATURES = 8, SAMPLES = 256, BLOCK = 8 };
#define SCALE 65536 /* of the fixed-point numbers */

static const gacc_tensor tensors[] = {
	{ .name = "weight", .dtype = GACC_F32, .ndim = 1, .shape = { FEATURES } },
	{ .name = "bias", .dtype = GACC_F32, .ndim = 1, .shape = { 1 } },
};

static int64_t feature(int64_t i, int64_t j)
{
	return (i * (2 * j + 3) + i * i * (j + 1)) % 17 - 8;
}

static int64_t target(int64_t i)
{
	int64_t y = i * 5 % 7 - 3;

	for (int64_t j = 0; j < FEATURES; j++)
		y += feature(i, j) * (j - 3);
	return y;
}

/* Gradient of half the mean squared error over the samples of one block; returns that error. */
static double gradient(const float *weight, const float *bias, int64_t block, float *grad_weight, float *grad_bias)
{
	int64_t grad[FEATURES + 1] = { 0 }, squares = 0;

	for (int64_t i = block * BLOCK; i < (block + 1) * BLOCK; i++) {
		int64_t error = llrint((double)*bias * SCALE) - target(i) * SCALE;

		for (int64_t j = 0; j < FEATURES; j++)
			error += feature(i, j) * llrint((double)weight[j] * SCALE);
		for (int64_t j = 0; j < FEATURES; j++)
			grad[j] += error * feature(i, j);
		grad[FEATURES] += error;
		squares += error * error;
	}
	for (int64_t j = 0; j < FEATURES; j++)
		grad_weight[j] = (float)((double)grad[j] / (SCALE * BLOCK));
	*grad_bias = (float)((double)grad[FEATURES] / (SCALE * BLOCK));
	return (double)squares / 2 / BLOCK / SCALE / SCALE;
}

static void check(gacc_status st, const char *text)
{
	if (st == GACC_OK)
		return;
	fprintf(stderr, "linear: %s\n", *text ? text : gacc_strerror(st));
	exit(1);
}

static const float *parameter(gacc_job *job, size_t tensor)
{
	const void *base;

	check(gacc_params(job, &base, NULL), gacc_last_error(job));
	return (const float *)((const char *)base + gacc_param_offset(job, tensor));
}

static void push(gacc_job *job, const gacc_position *at)
{
	uint64_t n = (at->window * at->micro_size + at->micro) * (uint64_t)gacc_size(job) + (uint64_t)gacc_rank(job);
	gacc_push_opts opts = { .struct_size = sizeof(opts), .weight = BLOCK };
	gacc_status st;
	void *slot;

	check(gacc_grad_buffer(job, &slot, NULL), gacc_last_error(job));
	opts.loss =
		gradient(parameter(job, 0), parameter(job, 1), (int64_t)(n % (SAMPLES / BLOCK)),
			 (float *)((char *)slot + gacc_offset(job, 0)), (float *)((char *)slot + gacc_offset(job, 1)));
	st = gacc_push(job, &opts, NULL);
	if (st != GACC_ESTALE) /* the window closed without this one, as `gaccctl flush` may do: go on */
		check(st, gacc_last_error(job));
}

static void step(gacc_job *job)
{
	gacc_step s;

	check(gacc_wait(job, -1, &s), gacc_last_error(job));
	if (gacc_rank(job) == 0)
		printf("step %" PRIu64 "   loss %.4f   gradient norm %.4f   of %" PRIu64 " micro-batches\n",
		       s.applied_step, s.mean_loss, s.grad_norm, s.micro_count);
}

static void print_parameters(gacc_job *job)
{
	printf("parameters ");
	for (size_t t = 0; t < 2; t++)
		for (int j = 0; j < (t ? 1 : FEATURES); j++) {
			uint32_t bits;

			memcpy(&bits, parameter(job, t) + j, sizeof(bits));
			printf("%08" PRIx32, bits);
		}
	putchar('\n');
}

int main(void)
{
	static const float zeros[FEATURES];
	const void *initial[] = { zeros, zeros };
	gacc_client *client;
	gacc_job *job;
	gacc_position at;
	gacc_status st;

	check(gacc_open(NULL, &client), "");
	check(gacc_attach(client, NULL, &job), gacc_client_error(client));
	check(gacc_register(job, tensors, 2), gacc_last_error(job));
	if (gacc_params_needed(job))
		check(gacc_put_params(job, initial), gacc_last_error(job));
	check(gacc_ready(job, -1, NULL), gacc_last_error(job));
	while ((st = gacc_next(job, &at)) != GACC_EDONE) {
		if (st == GACC_EAGAIN) { /* all pushed: the window closes, the parameters change */
			step(job);
			continue;
		}
		check(st, gacc_last_error(job));
		push(job, &at);
	}
	print_parameters(job);
	gacc_detach(job, 1);
	gacc_close(client);
	return 0;
}
