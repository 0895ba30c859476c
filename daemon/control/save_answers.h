/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a job have answered to the coordinator's Save: who is still waited for, and what came of it.
 *
 * The first parts have files of their engines, and perhaps states of their trainers; those behind them have such states
 * alone. A checkpoint waits for all of them, as the next one may have the same names. Only one whose files are all
 * there and good goes on without states that have not come in time, and whoever asks is told whose are missing: a node
 * that is away must not keep a job from its checkpoint.
 *
 * Pure state machine; one thread.
 */
#ifndef GACC_CONTROL_SAVE_ANSWERS_H
#define GACC_CONTROL_SAVE_ANSWERS_H

#include "control/messages.h"
#include "control/part.h"

/* For the states, after the last of the files: a part waits 10 s for its trainers. */
#define SAVE_STATES_NS (INT64_C(30) * 1000000000)

/* Places in part_saved.file; store/manifest.h has all. */
#define SAVE_FILE_MODEL 0
#define SAVE_FILE_OPTIMIZER 1

struct save_answer {
	bool answered;
	struct part_saved is;
	uint32_t had; /* states in the newest complete checkpoint; kept over save_answers_begin */
};

struct save_answers {
	struct save_answer *part; /* of all parts of the job; the owner's */
	uint32_t n;		  /* so many are asked */
	uint32_t n_files;	  /* the first of them have files of their engines; at least 1 */
	uint32_t shards;	  /* so many save a share of the optimizer state; 1: part 0 saves all of it */
	uint64_t window;
	int64_t files_ns; /* when the last of the files were told */
	uint32_t lost; /* bit i: part i's gaccd was, or may have been, restarted since the newest complete checkpoint */
};

/* All of these parts are asked to save this window; `part` stays. */
void save_answers_begin(struct save_answers *, uint32_t n, uint32_t n_files, uint32_t shards, uint64_t window);
/* Is this part yet to answer? */
bool save_answers_awaits(const struct save_answers *, uint32_t part);
/* An answer to this Save of a part that is yet to answer. */
void save_answers_take(struct save_answers *, const struct part_saved *, struct now);
/* Nobody is waited for any more. */
bool save_answers_are_in(const struct save_answers *, struct now);

struct save_verdict {
	enum status status; /* ST_OK: what was written can be sealed, unless `passed`; else the worst */
	int32_t part;	    /* whose text `why` is, word for word; -1: it is of all of them */
	bool passed;	    /* the window was over at some part: nothing of it counts */
	bool wrote;	    /* some part has left files */
	char why[200];	    /* with a status */
};
/* Once they are in. */
void save_answers_judge(const struct save_answers *, struct save_verdict *out);

/* Of a checkpoint that is to be sealed. */
uint64_t save_answers_state_bytes(const struct save_answers *);
/* The gaccd of this part has been restarted, and has lost what was put to it; at any time. */
void save_answers_on_lost(struct save_answers *, uint32_t part);
/* Are states of this part missing in it, as far as can be told? It has not answered; or it has none, and it had some in
 * the checkpoint before or may have lost them since. A job that uses none is not told so. `why` says it. */
bool save_answers_lacks(const struct save_answers *, uint32_t part, char *why, size_t n_why);
/* It is complete. */
void save_answers_on_complete(struct save_answers *);

#endif
