/* SPDX-License-Identifier: Apache-2.0 */
/* What every file of the edge may ask of the daemon: the time, the number of the next event, an event of the node, the
 * end of the process when the journal is lost. Loop thread. */
#include "base/log.h"
#include "edge/daemon.h"

#include <unistd.h>

struct now daemon_now(const struct daemon *d)
{
	return node_now();
}

/* ---- events ---- */

uint64_t daemon_event_id(struct daemon *d)
{
	return d->node.incarnation << 32 | ++d->n_events;
}

void daemon_event(struct daemon *d, bool warning, const char *reason, const char *text)
{
	struct history_event e = { .id = daemon_event_id(d),
				   .unix_ns = daemon_now(d).unix_ns,
				   .warning = warning,
				   .reason = reason,
				   .object = "node",
				   .message = text };
	log_line(warning ? LOG_WARN : LOG_NOTICE, (struct log_fields){ 0, -1, UINT64_MAX, reason }, "%s", text);
	recorder_put_event(d->recorder, &e);
}

void daemon_fail(void)
{
	log_error(
		"the journal is broken or another gaccd has taken it: stopping; state is read anew at the next start");
	_exit(DAEMON_EXIT_JOURNAL);
}

void daemon_check_store(enum status st)
{
	if (st == ST_STORE_FAILED || st == ST_STALE_TERM)
		daemon_fail();
}
