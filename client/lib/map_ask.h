/* SPDX-License-Identifier: Apache-2.0 */
/* One request to the attach socket, and the descriptors that its answer brings. The job's thread. */
#ifndef GACC_CLIENT_MAP_ASK_H
#define GACC_CLIENT_MAP_ASK_H

#include "lib/internal.h"

#include "gacc/v1/attach.pb-c.h"

#define MAP_FDS_MAX 16

/* What came in one packet. */
struct map_answer {
	Gacc__V1__MapResponse *message;
	int fds[MAP_FDS_MAX]; /* -1: handed on */
	size_t n_fds;
};

/* What a session wants of its memory. */
struct map_wants {
	bool mailbox;
	bool device;	 /* one will write to the slots */
	const char *gpu; /* that it is on; "": any */
};

/* Connects and asks for the session's memory. *out_fd is the connection, the
 * caller's also on failure, or -1. The answer grants it: a refusal is a failure, with gaccd's reason. */
enum status map_ask(const struct gacc_job *job, struct map_wants wants, int *out_fd, struct map_answer *out,
		    struct rpc_failure *f);
/* Closes the descriptors that were not handed on. All zeros is fine. */
void map_answer_fini(struct map_answer *);
/* Fills *f; returns st. */
enum status map_fail(struct rpc_failure *f, enum status st, const char *what, const char *why);

#endif
