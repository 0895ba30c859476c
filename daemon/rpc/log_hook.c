/* SPDX-License-Identifier: Apache-2.0 */
/* Redirects gRPC's log to ours, with control characters escaped and at most a line a second. Left alone, gRPC writes
 * text from clients to stderr as it is, a line for each bad header: any client could forge lines and fill the disk.
 * Any thread. */
#include "base/log.h"
#include "rpc/private.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <grpc/support/log.h>

#define AT_ONCE 20 /* lines; then one a second */

static bool may_log(unsigned *suppressed)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static time_t due; /* of the last line, at one a second */
	static unsigned skipped;
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	pthread_mutex_lock(&lock);
	bool may = due < now.tv_sec + AT_ONCE;
	if (may) {
		due = (due > now.tv_sec ? due : now.tv_sec) + 1;
		*suppressed = skipped;
		skipped = 0;
	} else {
		skipped++;
	}
	pthread_mutex_unlock(&lock);
	return may;
}

static void on_log(gpr_log_func_args *line)
{
	unsigned suppressed = 0;
	if (!may_log(&suppressed))
		return;
	const char *slash = strrchr(line->file, '/');
	log_notice("gRPC, %s:%d: %s", slash ? slash + 1 : line->file, line->line, line->message);
	if (suppressed)
		log_notice("gRPC: %u more lines were suppressed", suppressed);
}

void rpc_log_hook_install(void)
{
	gpr_set_log_function(on_log);
}
