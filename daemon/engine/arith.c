/* SPDX-License-Identifier: Apache-2.0 */
/* Ends the engine process when an operation on its arenas has failed. For every part of the engine that calls the
 * operations of arith.h; any thread. */
#include "engine/arith.h"

#include "engine/engine.h"
#include "base/log.h"

#include <unistd.h>

/* Not exit: its handlers would run on memory in an unknown state, and might wait for the device. */
void arith_need(const char *what, enum status st)
{
	if (st == ST_OK)
		return;
	log_error("%s: %s: the engine ends, its successor goes on", what, status_info(st)->text);
	_exit(ENGINE_EXIT_LOST);
}
