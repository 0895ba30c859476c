/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a part's trainers' states: shared by part_states.c and part_states_base.c alone. Loop thread. */
#ifndef GACC_RUNTIME_PART_STATES_IMPL_H
#define GACC_RUNTIME_PART_STATES_IMPL_H

#include "runtime/part_states.h"

enum base { BASE_NOT_READ, BASE_READING, BASE_READ, BASE_UNREADABLE };

struct part_states {
	struct rank_states *all; /* of the part's ranks, in its numbering */
	size_t charged;		 /* of node->collected */
	/* of the checkpoint that the job began with */
	enum base base;
	enum status base_status;
	char base_why[400];
	/* of a checkpoint under way, whose engine has done its part, or has none in it */
	bool waiting, writing;
	bool alone; /* the states are all that the part saves */
	uint64_t command;
	struct part_saved is;
	char path[SAVE_MAX_PATH + 1];
	int64_t until_ns;
};

/* What the user is charged. false: it would be more than his part. */
bool part_states_charge(struct part *, size_t more);
/* Gives back what is no longer kept. */
void part_states_settle(struct part *);
/* What there is to say of a rank that has put none: as part_get_state. */
enum status part_states_look_at_base(struct part *, const char **out_hint, char *why, size_t n_why);

#endif
