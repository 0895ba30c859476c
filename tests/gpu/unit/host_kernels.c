/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for the tests of the fake driver, as the simulator would export them: one parameter by value, stores that are
 * counted, a hook for the one at which the process dies. */
#include "host_kernels.h"

#include <stddef.h>

int64_t sim_kill_after = -1;
void (*sim_on_kill)(void);
uint64_t sim_seed;
int sim_weak;

typedef void host_kernel(void **params, unsigned grid, unsigned block);
host_kernel host_fill, host_show;

static void store(_Atomic uint64_t *to, uint64_t value)
{
	if (sim_kill_after >= 0 && sim_kill_after-- == 0)
		sim_on_kill();
	*to = value;
}

/* Each thread stores `value` plus its number. */
void host_fill(void **params, unsigned grid, unsigned block)
{
	const struct fill *a = params[0];
	for (unsigned i = 0; i < grid * block && i < a->n; i++)
		store(a->to + i, a->value + i);
}

/* What the environment told the simulator. */
void host_show(void **params, unsigned grid, unsigned block)
{
	const struct fill *a = params[0];
	store(a->to, sim_seed);
	store(a->to + 1, (uint64_t)sim_weak);
}
