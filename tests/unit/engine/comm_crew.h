/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators of several engines (engine/comm.h) in the test's process, which meet through a real board. */
#ifndef GACC_TEST_ENGINE_COMM_CREW_H
#define GACC_TEST_ENGINE_COMM_CREW_H

#include "coll/board.h"
#include "engine/comm.h"

#include <check.h>

#define CREW 4
#define MS INT64_C(1000000)

struct crew {
	struct coll_net *net;
	struct board *board;
	uint32_t n;
	uint64_t life[CREW];
	struct comm *comm[CREW];
	struct coll_id id;
	struct comm_event event[CREW]; /* the next one of each, if has_event */
	bool has_event[CREW];
};

/* n of them, without a communicator yet. over_gloo: the net. */
void crew_open(struct crew *, uint32_t n, bool over_gloo);
void crew_close(struct crew *);
/* A new engine in place of this one, which is aborted. */
void crew_new_life(struct crew *, uint32_t part);

/* comm_join of this one, and its address is put on the board, which is opened if need be. */
enum status crew_offer(struct crew *, uint32_t part);
/* The addresses of the complete board to this one. */
void crew_tell(struct crew *, uint32_t part);
/* All are offered to each other in communicator k, and have joined. */
void crew_join(struct crew *, uint64_t k);

/* The next event of this one; fails the test if there is none for 20 s. */
struct comm_event crew_wait(struct crew *, uint32_t part);
/* There is none, and will be none soon. */
void crew_expect_nothing(struct crew *, uint32_t part);
/* Goes on until comm_is_working says false, without an event. */
void crew_wait_idle(struct crew *, uint32_t part);

Suite *comm_fake_suite(void);

#endif
