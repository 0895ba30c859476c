/* SPDX-License-Identifier: Apache-2.0 */
/* What surrounds the operations of arith.h: who is asked before they write, and the end of the process when one has
 * failed. For every part of the engine that calls them; any thread. */
#include "engine/arith.h"

#include "engine/engine.h"
#include "base/log.h"

#include <unistd.h>

void arith_before_write(const struct arith *a, enum segment_role role)
{
	if (a->before_write)
		a->before_write(a->before_write_arg, role);
}

/* Not exit: its handlers would run on memory in an unknown state, and might wait for the device. */
void arith_need(const char *what, enum status st)
{
	if (st == ST_OK)
		return;
	log_error("%s: %s: the engine ends, its successor goes on", what, status_info(st)->text);
	_exit(ENGINE_EXIT_LOST);
}
