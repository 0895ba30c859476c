/* SPDX-License-Identifier: Apache-2.0 */
/* Raises this process's limit of descriptors to its hard limit at the start, and restores the inherited one in the
 * programs that it starts. Before threads start, and in children between fork and exec. */
#include "base/descriptors.h"

#include "base/log.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

uint64_t descriptors_limit(void)
{
	struct rlimit l;
	return getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur == RLIM_INFINITY ? UINT64_MAX : l.rlim_cur;
}

uint64_t descriptors_raise(void)
{
	struct rlimit l;
	uint64_t before = descriptors_limit();
	if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur == l.rlim_max)
		return before;
	l.rlim_cur = l.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &l))
		log_warn("RLIMIT_NOFILE stays at %llu: %s", (unsigned long long)before, strerror(errno));
	return before;
}

void descriptors_restore(uint64_t before)
{
	struct rlimit l;
	if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur <= before)
		return;
	l.rlim_cur = before;
	setrlimit(RLIMIT_NOFILE, &l);
}
