/* SPDX-License-Identifier: Apache-2.0 */
/* A part's side of its job's checkpoints: which one the coordinator wants, whether the engine writes it, and what has
 * become of it. The coordinator's side is control/saver.h.
 *
 * Pure state machine; one thread. States and transitions: docs/protocol.md, "Checkpoint".
 */
#ifndef GACC_CONTROL_PART_SAVE_H
#define GACC_CONTROL_PART_SAVE_H

#include "control/messages.h"

enum part_save_state {
	PART_SAVE_NONE,	   /* nothing was ever wanted */
	PART_SAVE_WAITING, /* the engine cannot begin yet, or writes an earlier one */
	PART_SAVE_WRITING,
	PART_SAVE_OVER /* what became of it is known, and told again when it is asked for again */
};

struct part_save_ports {
	void *ctx;
	/* Gives the engine its command, as number `command`, or begins with the trainers' states alone. false: not now.
	 */
	bool (*begin)(void *ctx, const struct save *, uint64_t command);
	/* To the coordinator; lent. */
	void (*tell)(void *ctx, const struct part_saved *);
};

/* How the part stands. */
struct part_save_view {
	uint64_t window; /* that it has open, or frozen */
	bool can_save;	 /* the engine is up, has parameters, and no COMMIT is on its way to it */
	bool is_over;	 /* no engine will come any more */
};

struct part_save {
	enum part_save_state state;
	struct save wanted;
	uint64_t command; /* of the last one that was begun */
	bool busy;	  /* it has not been answered; it may be that of an earlier save */
	bool by_engine;	  /* it is an engine's; else gaccd alone writes, the trainers' states */
	struct part_saved told;
	struct part_save_ports ports;
};

void part_save_init(struct part_save *, const struct part_save_ports *);
/* The coordinator wants this one, or asks again. Then part_save_look. */
void part_save_on_save(struct part_save *, const struct save *);
/* The part stands like this: whenever that may have changed, and once a tick. */
void part_save_look(struct part_save *, const struct part_save_view *);
/* This command is carried out, or has failed; of `is` the state, the status and the text count. */
void part_save_on_answer(struct part_save *, uint64_t command, const struct part_saved *is);
void part_save_on_engine_lost(struct part_save *);

#endif
