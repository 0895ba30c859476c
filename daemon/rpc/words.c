/* SPDX-License-Identifier: Apache-2.0 */
/* What gRPC says. By itself it writes to stderr what clients have sent as it is, a line for each bad header: so anybody
 * could forge lines, and fill the disk. */
#include "base/log.h"
#include "rpc/private.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <grpc/support/log.h>

#define AT_ONCE 20 /* lines; then one a second */

static bool may_say(unsigned *unsaid)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static time_t said; /* when the last line would have been due, at one a second */
	static unsigned left_out;
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	pthread_mutex_lock(&lock);
	bool may = said < now.tv_sec + AT_ONCE;
	if (may) {
		said = (said > now.tv_sec ? said : now.tv_sec) + 1;
		*unsaid = left_out;
		left_out = 0;
	} else {
		left_out++;
	}
	pthread_mutex_unlock(&lock);
	return may;
}

static void on_words(gpr_log_func_args *said)
{
	unsigned unsaid = 0;
	if (!may_say(&unsaid))
		return;
	const char *slash = strrchr(said->file, '/');
	log_notice("gRPC, %s:%d: %s", slash ? slash + 1 : said->file, said->line, said->message);
	if (unsaid)
		log_notice("gRPC had %u more to say", unsaid);
}

void rpc_words_take(void)
{
	gpr_set_log_function(on_words);
}
