/* SPDX-License-Identifier: Apache-2.0 */
/* Runs operations. Memory that a device cannot use at that moment is a SIGSEGV here (trap.h), which becomes
 * CUDA_ERROR_ILLEGAL_ADDRESS. Kernels may die in the middle, by a hook of theirs; copies and sets by faults.h. */
#include "operation.h"

#include "driver.h"
#include "faults.h"
#include "gate.h"
#include "ghost.h"
#include "trap.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define CHUNK ((size_t)256 << 10) /* of a copy: another thread's death is noticed in between */

static void hang(void)
{
	for (;;)
		pause();
}

static void move(struct operation *op, size_t n)
{
	if (op->kind == OPERATION_COPY)
		memmove(op->to + op->done, op->from + op->done, n);
	else if (op->kind == OPERATION_SET_WORDS)
		for (size_t i = op->done; i < op->done + n; i++)
			op->to[i] = (char)(op->value >> 8 * (i % 4));
	else
		memset(op->to + op->done, (int)op->value, n);
	op->done += n;
}

static void copy_or_set(struct operation *op)
{
	size_t kill_at;
	enum fault fault = faults_of_copy(op->counted, &kill_at);
	bool dies = fault == FAULT_KILL;
	if (kill_at > op->n)
		kill_at = op->n;
	if (fault == FAULT_HANG && !ghost_is_here())
		hang();
	for (;;) {
		if ((dies && op->done == kill_at) || ghost_is_due()) {
			ghost_die();
			dies = false;
		}
		if (op->done == op->n)
			return;
		size_t n = (dies ? kill_at : op->n) - op->done;
		move(op, n < CHUNK ? n : CHUNK);
	}
}

static void run_kernel(struct operation *op)
{
	cu_result code;
	enum fault fault = faults_of_launch(op->counted, &code);
	void *params[] = { op->params };
	if (fault == FAULT_HANG && !ghost_is_here())
		hang();
	if (fault == FAULT_STICKY)
		driver_set_sticky(code);
	else
		op->kernel(params, op->grid, op->block);
}

static void run_host_function(struct operation *op)
{
	driver_in_host_function(true);
	op->function(op->arg);
	driver_in_host_function(false);
}

static void use_memory(void *arg)
{
	struct operation *op = arg;
	if (op->kind == OPERATION_KERNEL)
		run_kernel(op);
	else if (op->kind == OPERATION_WRITE)
		atomic_store((_Atomic uint64_t *)(void *)op->to, op->value);
	else
		copy_or_set(op);
}

void operation_run(struct operation *op, unsigned on_machine)
{
	if (driver_sticky())
		return;
	if (op->kind == OPERATION_HOST_FUNCTION) {
		run_host_function(op);
		return;
	}
	unsigned devices = op->kind == OPERATION_KERNEL ? 1u << on_machine : ALL_DEVICES;
	driver_lock();
	gate_open(devices);
	driver_unlock();
	if (!trap_run(use_memory, op))
		driver_set_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
	driver_lock();
	gate_close(devices);
	driver_unlock();
}
