/* SPDX-License-Identifier: Apache-2.0 */
/* An engine that loads the plug-in that its argument names, on descriptor 3: for tests whose own process has a driver,
 * which does not survive a fork. */
#include "base/log.h"
#include "engine/channel.h"
#include "engine/engine.h"

#include <signal.h>

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	log_init("engine", LOG_TEXT, LOG_WARN);
	return engine_main(ENGINE_CHANNEL_FD, NULL, argc > 1 ? argv[1] : NULL);
}
