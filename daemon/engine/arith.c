/* SPDX-License-Identifier: Apache-2.0 */
/* The end of an engine whose device has failed. */
#include "engine/arith.h"

#include "engine/engine.h"
#include "base/log.h"

#include <unistd.h>

/* Not exit: it would run what others have registered, on memory that nobody can vouch for, and perhaps wait for the
 * device. */
void arith_need(const char *what, enum status st)
{
	if (st == ST_OK)
		return;
	log_error("%s: %s: the engine ends, its successor goes on", what, status_info(st)->text);
	_exit(ENGINE_EXIT_LOST);
}
