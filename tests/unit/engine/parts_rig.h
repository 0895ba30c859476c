/* SPDX-License-Identifier: Apache-2.0 */
/* Several engine processes, the parts of one job, and a real board between them: the test is gaccd and the coordinator.
 */
#ifndef GACC_TEST_ENGINE_PARTS_RIG_H
#define GACC_TEST_ENGINE_PARTS_RIG_H

#include "coll/board.h"
#include "rig.h"

#include <check.h>

#define PARTS_MAX 4
#define MS INT64_C(1000000)

struct parts {
	uint32_t n;
	struct rig rig[PARTS_MAX];
	uint64_t life[PARTS_MAX];
	struct board *board;
	struct coll_id id;  /* of the communicator */
	uint64_t n_spoiled; /* communicators that strangers have kept from joining */
	int64_t stall_ns, join_ns;
	bool norms; /* a GO asks for those of all tensors */
};

/* Over Gloo on loopback. */
extern const struct engine_net parts_net;

/* The memory of n parts of a job like this one, and a minute for all limits. */
void parts_open(struct parts *, uint32_t n, const struct rig_config *);
/* Their engines, which have said HELLO; no communicator yet. Each has parts_net unless its rig names another net. */
void parts_start(struct parts *);
void parts_close(struct parts *);
/* Kills the engine if there is one, and starts its successor. */
void parts_new_life(struct parts *, uint32_t part);

/* JOIN of this one in p->id; its blob is put on the board, whose word it returns. */
enum status parts_offer(struct parts *, uint32_t part);
/* The complete board's addresses to this one. */
void parts_tell(struct parts *, uint32_t part);
/* The next PROGRESS of this one that is not MOVES: JOINED or LOST. */
struct engine_answer parts_news(struct parts *, uint32_t part);
/* All join communicator k, or, like gaccd's, a later one: a member of another program that has ended may be looked for
 * at a port that is one of theirs now. p->id says which, and later ones are as much later. */
void parts_join(struct parts *, uint64_t k);

/* op, of communicator p->id. */
struct engine_command parts_command(const struct parts *, enum engine_op);

/* All gradients of a window, from the seed and the part's number, whole numbers if exact; all are counted. */
void parts_push_all(struct parts *, uint64_t seed, bool exact);
/* GO with `close`, in communicator p->id; the command, and its id once it is sent. */
struct engine_command parts_go_command(const struct parts *, uint32_t part, uint64_t attempt);
uint64_t parts_send_go(struct parts *, uint32_t part, uint64_t attempt);
/* The answer to this command, the next that comes. */
struct engine_answer parts_answer_to(struct parts *, uint32_t part, uint64_t id);
/* All vote, and all the same. */
struct engine_answer parts_vote_all(struct parts *, uint64_t attempt);
struct engine_command parts_commit_command(const struct parts *, uint32_t part, uint64_t attempt, uint32_t outcome);
/* All commit, and have the same parameters then: the next window. */
void parts_commit_all(struct parts *, uint64_t attempt, uint32_t outcome);

#endif
