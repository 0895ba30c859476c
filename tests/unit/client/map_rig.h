/* SPDX-License-Identifier: Apache-2.0 */
/* gaccd's end of the attach socket, which answers one request with what the test wants, and a job that maps it.
 * Functions fail the test on errors. */
#ifndef GACC_TEST_CLIENT_MAP_RIG_H
#define GACC_TEST_CLIENT_MAP_RIG_H

#include "lib/internal.h"

#include "gacc/v1/attach.pb-c.h"
#include "lib/channel.h"

#define PAGE 4096
#define N_SEGMENTS 4 /* and three more with a mailbox */
#define MAX_SEGMENTS 7
#define TENSORS 20

/* What the fake daemon answers. */
struct map_daemon {
	int listener, connection;
	pthread_t thread;
	int fds[MAX_SEGMENTS];
	Gacc__V1__Segment segment[MAX_SEGMENTS];
	size_t n, n_fds; /* n_fds: how many are really sent */
	const char *reason;
	uint64_t asked_session;
	bool asked_mailbox;
	int answer; /* with a mailbox, the eventfd that rings the trainer; -1 */
};

#define KIND(x) GACC__V1__SEGMENT_KIND__SEGMENT_KIND_##x

/* The job, attached in session 11. */
extern struct gacc_job map_job;

/* For a checked fixture. */
void map_setup(void);
void map_teardown(void);
/* Slots, parameters and status page, in new memory. */
void map_daemon_init(struct map_daemon *);
void map_daemon_fini(struct map_daemon *);
int map_memfd(size_t bytes, bool seal);
void map_describe(Gacc__V1__Segment *, Gacc__V1__SegmentKind, uint32_t index, uint64_t bytes);
/* What gaccd hands out beside the rest. */
void map_add_mailbox(struct map_daemon *, uint64_t sgen);
/* Listens where map_job's attach socket is, for one connection. */
void map_daemon_start(struct map_daemon *);
/* memory_map against this one, with what it said if it failed. */
enum status map_with(struct map_daemon *);
extern struct rpc_failure map_failure;
/* Descriptors of this process. */
int map_open_fds(void);

#endif
