/* SPDX-License-Identifier: Apache-2.0 */
/* The lock of the fake driver, its sticky error, and the beginning of every call. A child of a process that has called
 * cuInit gets NOT_INITIALIZED for ever, as from the real one, hence the process id is compared in each call. */
#include "driver.h"

#include "context.h"
#include "faults.h"
#include "ghost.h"
#include "options.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static _Atomic pid_t owner; /* who called cuInit; 0: nobody */
static _Atomic cu_result sticky;
static __thread bool in_host_function;

void driver_lock(void)
{
	if (!ghost_is_here()) /* the only thread of its process */
		pthread_mutex_lock(&lock);
}

void driver_unlock(void)
{
	if (!ghost_is_here())
		pthread_mutex_unlock(&lock);
}

void driver_notify(void)
{
	if (!ghost_is_here())
		pthread_cond_broadcast(&changed);
}

void driver_wait(void)
{
	pthread_cond_wait(&changed, &lock);
}

cu_result driver_enter(const char *function, enum needs needs)
{
	cu_result fault = faults_of_call(function);
	if (fault)
		return fault;
	if (in_host_function)
		return CUDA_ERROR_NOT_PERMITTED;
	if (needs == NEEDS_NOTHING)
		return CUDA_SUCCESS;
	if (owner != getpid())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (needs == NEEDS_INIT)
		return CUDA_SUCCESS;
	return sticky ? sticky : context_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

void driver_init(void)
{
	owner = getpid();
}

bool driver_was_forked(void)
{
	return owner && owner != getpid();
}

void driver_set_sticky(cu_result code)
{
	cu_result none = CUDA_SUCCESS;
	atomic_compare_exchange_strong(&sticky, &none, code);
}

cu_result driver_sticky(void)
{
	return sticky;
}

void driver_in_host_function(bool here)
{
	in_host_function = here;
}
