/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the clocks that all parts of jobs on a node go by: boot time for waiting, real time for what is shown and
 * recorded. No state; any thread. */
#include "runtime/node.h"

#include "base/clock.h"

struct now node_now(void)
{
	return (struct now){ clock_ns(CLOCK_BOOTTIME), clock_ns(CLOCK_REALTIME) };
}
