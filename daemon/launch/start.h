/* SPDX-License-Identifier: Apache-2.0 */
/* A START order as its launcher keeps it: whose ranks they are, and what each is told.
 *
 * Owned by the launcher; its children read it in their copy of the memory.
 */
#ifndef GACC_LAUNCH_START_H
#define GACC_LAUNCH_START_H

#include "launch/channel.h"

#include <stdbool.h>
#include <sys/types.h>

#define LAUNCH_MAX_GROUPS 256
#define LAUNCH_REASON 192

struct launch_start {
	struct launch_order order;
	char *words; /* what was behind the order */
	const char *endpoint, *working_dir, *log_dir, *master_addr;
	char **command;	    /* NULL-terminated */
	char **environment; /* NAME=value, NULL-terminated */
	char *user, *home, *shell;
	gid_t gid, group[LAUNCH_MAX_GROUPS];
	int n_groups;
	uint16_t master_port;
	uint64_t descriptors; /* soft limit that the ranks get; set by the launcher */
	/* Why a rank's process ended before it was its program; "" otherwise. Memory that the children share. */
	char (*reason)[LAUNCH_REASON];
};

/* From a packet. ST_MALFORMED; ST_PERMISSION_DENIED: the user is not in the user database; ST_NO_MEMORY. All logged. */
enum status launch_start_parse(const void *packet, size_t n, struct launch_start *out);
void launch_start_fini(struct launch_start *);
/* The environment of a rank's process, which is counted from 0 here: NULL-terminated, freed with
 * launch_environment_free. NULL: no memory. */
char **launch_environment(const struct launch_start *, uint32_t rank, uint32_t restarts);
void launch_environment_free(char **);

#endif
