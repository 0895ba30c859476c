/* SPDX-License-Identifier: Apache-2.0 */
/* Raises the gate for an engine's life and waits for what earlier lives have left on the GPU. For arith_cuda.c; the
 * engine's main thread. */
#include "cuda/life.h"

#include "base/log.h"
#include "math/cuda/launches.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#define LOOK_NS 1000000 /* between two looks at the counters */

static enum status read_gate(const struct cuda_memory *m, struct cuda_gate *out)
{
	return cuda_download(m->device, out, m->gate, sizeof(*out));
}

static enum status open_gate(struct cuda_life *life)
{
	const struct cuda_open a = { life->pass };
	const enum status st = cuda_launch(life->memory->device, "open_gate", &a, 1);
	return st ? st : cuda_wait(life->memory->device, 0);
}

/* Until all cells are settled. */
static enum status wait_for_others(const struct cuda_life *life, uint64_t quiet_ns, struct cuda_gate *gate, char *why,
				   size_t n_why)
{
	for (uint64_t waited = 0;; waited += LOOK_NS) {
		const enum status st = read_gate(life->memory, gate);
		if (st)
			return st;
		if (gate->generation != life->pass.generation) {
			snprintf(why, n_why, "a younger engine has the memory on the GPU");
			return ST_IO_ERROR;
		}
		const int cell = cuda_gate_unsettled(gate, 0);
		if (cell < 0)
			return ST_OK;
		if (waited >= quiet_ns) {
			snprintf(why, n_why,
				 "the GPU is not quiet: work of an earlier engine has begun %llu times and ended %llu "
				 "times",
				 gate->begun[cell], gate->ended[cell]);
			return ST_IO_ERROR;
		}
		nanosleep(&(struct timespec){ 0, LOOK_NS }, NULL);
	}
}

enum status cuda_life_begin(struct cuda_life *out, const struct cuda_memory *m, bool others_are_over, uint64_t quiet_ns,
			    char *why, size_t n_why)
{
	struct cuda_life life = { .memory = m };
	struct cuda_gate gate;
	snprintf(why, n_why, "the gate of the GPU's memory cannot be opened");
	enum status st = read_gate(m, &gate);
	life.pass = (struct cuda_pass){ cuda_pointer(m->gate), gate.generation + 1 };
	if (!st)
		st = open_gate(&life);
	if (!st && !others_are_over)
		st = wait_for_others(&life, quiet_ns, &gate, why, n_why);
	if (st)
		return st;
	life.left = gate.left[life.pass.generation % CUDA_GENERATIONS];
	*out = life;
	return ST_OK;
}

enum status cuda_life_wait(const struct cuda_life *life, uint64_t bytes)
{
	const struct cuda_memory *m = life->memory;
	const uint64_t cell = life->pass.generation % CUDA_GENERATIONS;
	cuda_word left = 0;
	enum status st = cuda_wait(m->device, bytes);
	if (!st)
		st = cuda_download(m->device, &left, m->gate + offsetof(struct cuda_gate, left) + cell * sizeof(left),
				   sizeof(left));
	if (st || left == life->left)
		return st;
	log_error("a younger engine has the memory on the GPU: work of this one has been left undone");
	return ST_IO_ERROR;
}
