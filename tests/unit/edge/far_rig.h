/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon of edge_rig.h with a real RPC server, and the other end of its link to another gaccd, which the test
 * plays: it says what the test says, and notes what it hears. Two loops, one thread.
 */
#ifndef GACC_TESTS_EDGE_FAR_RIG_H
#define GACC_TESTS_EDGE_FAR_RIG_H

#include "cluster/peer_frames.h"
#include "edge_rig.h"

#include <check.h>

#define FAR_TOKEN "0123456789abcdef"
#define FAR_TEXT 512

/* An end of a stream that the test plays. */
struct far {
	struct rpc_outgoing *stream; /* as a node, */
	struct rpc_upstream *upstream;
	struct rpc_call *call;	      /* or as a coordinator */
	uint32_t n[PEER_CARRIED + 1]; /* messages by kind */
	uint32_t carried[LINK_KINDS]; /* and of these by kind */
	struct peer_welcome welcome;  /* the last ones */
	struct member_facts facts;
	uint64_t job;
	uint32_t part, n_held;
	struct part_held held;
	uint32_t begun, ended;
	enum status status;
	char text[FAR_TEXT];
};

extern struct far far[3]; /* coordinator: far[0] is that of the newest stream */

/* d coordinates, and listens; after the jobs are made. `certificates`: of certify_all, else by token. */
void far_serve(bool certificates);
/* A stream to d; who: NULL or a certificate. */
void far_link(struct far *, const char *who);
/* d has this far coordinator, and dials with its ticks. */
void far_coordinate(void);
/* Stops all servers; then rig_close. */
void far_close(void);

void far_say(struct far *, const struct peer_message *);
/* Hello of this node; one part held if job is not 0. */
void far_hello(struct far *, const char *node, uint64_t incarnation, uint64_t job);
/* n bytes of a message. */
void far_carry(struct far *, enum link_kind, uint64_t job, uint32_t part, const void *bytes, size_t n);

/* One turn of both loops. */
void far_turn(void);
#define FAR_UNTIL(cond)                                                                                                \
	do {                                                                                                           \
		const uint64_t end_ = uv_hrtime() + UINT64_C(10000000000);                                             \
		while (!(cond) && uv_hrtime() < end_)                                                                  \
			far_turn();                                                                                    \
		ck_assert_msg(cond, #cond);                                                                            \
	} while (0)
/* The stream has ended so. */
#define FAR_ENDED(far_, status_, text_)                                                                                \
	do {                                                                                                           \
		FAR_UNTIL((far_)->ended);                                                                              \
		ck_assert_msg((far_)->status == (status_) && strstr((far_)->text, text_), "%s: %s",                    \
			      status_info((far_)->status)->name, (far_)->text);                                        \
	} while (0)

#endif
