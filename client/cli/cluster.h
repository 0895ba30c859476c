/* SPDX-License-Identifier: Apache-2.0 */
/* The throw-away gaccd of `gaccctl cluster`: a private directory with its socket, state, log, and the file cluster.json
 * that says which process it is. */
#ifndef GACCCTL_CLUSTER_H
#define GACCCTL_CLUSTER_H

#include "command.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct cluster {
	char dir[60]; /* the sockets in it have room in a sockaddr_un, the supervisor's too */
	char socket[110];
	char endpoint[120];
	pid_t pid;	/* 0: none is known */
	uint64_t start; /* of the process, in clock ticks since boot: tells it from another with the same number */
};

/* Where it is, by --dir, XDG_RUNTIME_DIR or TMPDIR. False: fail_with() was called. */
bool cluster_place(struct invocation *inv, struct cluster *c, int *exit_status);
/* Reads cluster.json; false: there is none. */
bool cluster_load(struct cluster *c);
/* Writes it. 0 or errno. */
int cluster_save(const struct cluster *c);
/* A pidfd of exactly that process; -1: it is gone. */
int cluster_process(const struct cluster *c);
/* Makes the directory, or checks that an old one is ours alone. 0 or errno. */
int cluster_make_dir(const struct cluster *c);
/* Deletes it with all that is in it. 0 or errno. */
int cluster_remove(const struct cluster *c);
/* Starts `gaccd --supervise` there, in a session of its own, and fills pid and start. 0 or errno. */
int cluster_spawn(struct cluster *c, const char *gaccd);

#endif
