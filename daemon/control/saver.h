/* SPDX-License-Identifier: Apache-2.0 */
/* When a job's checkpoints are made, one at a time: wanted, written, sealed, recorded, older ones deleted.
 *
 * Pure state machine; one thread. What it asks for through its ports is answered by the saver_on_* of the same name,
 * later or from within. States and transitions: docs/protocol.md, "Checkpoint".
 */
#ifndef GACC_CONTROL_SAVER_H
#define GACC_CONTROL_SAVER_H

#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

#define SAVER_MAX_WANTS 8

enum saver_state {
	SAVER_NEW,	 /* the job has no parameters yet */
	SAVER_SWEEPING,	 /* what earlier writers left is deleted */
	SAVER_IDLE,	 /* nothing is under way; the first want begins as soon as the parts can be asked */
	SAVER_WRITING,	 /* the engine writes, or is about to */
	SAVER_SEALING,	 /* the manifest is written, the directory gets its name */
	SAVER_RECORDING, /* the journal hears of it */
	SAVER_PRUNING,	 /* older ones are deleted */
	SAVER_OVER	 /* the job has ended */
};

/* A checkpoint that somebody waits for. */
struct save_want {
	/* 0 until `begin`, or `ended` if that comes first: only the sweep knows which ones are free */
	uint64_t id;
	bool inside_window;
	bool at_end;
	bool retried;		/* its first engine died */
	uint64_t step;		/* steps applied when it was asked for */
	uint8_t request_id[16]; /* zeros: the policy's */
};

struct saver_ports {
	void *ctx;
	void (*sweep)(void *ctx);
	/* false: it cannot be asked for now; saver_kick tries again. */
	bool (*begin)(void *ctx, const struct save_want *);
	void (*seal)(void *ctx, const struct save_want *);
	void (*record)(void *ctx, const struct save_want *);
	void (*prune)(void *ctx);
	/* Sealed, but it will not be recorded: its directory is to go; nothing answers. */
	void (*discard)(void *ctx);
	/* This one is complete (ST_OK) or has failed for good. */
	void (*ended)(void *ctx, const struct save_want *, enum status);
	/* The job's end may be written: what saver_end held back. */
	void (*end_ready)(void *ctx);
};

struct saver {
	enum saver_state state;
	uint64_t every_steps;
	bool save_at_end;
	bool ending, end_told;
	/* applied when the last window was committed; in the newest complete checkpoint; 0: not known */
	uint64_t step, saved_step;
	uint64_t last_id;
	struct save_want want[SAVER_MAX_WANTS]; /* the first is under way from WRITING to RECORDING */
	uint32_t n_wants;
	struct saver_ports ports;
};

void saver_init(struct saver *, uint64_t every_steps, bool save_at_end, const struct saver_ports *);
/* The job has had its parameters for the first time. last_id: the highest id of the journal; saved_step: the step of
 * the newest checkpoint there that is complete and not from inside a window, 0: there is none. */
void saver_start(struct saver *, uint64_t last_id, uint64_t saved_step);
/* A window has been committed and the next one is open; or it is the last one, and saver_end follows. */
void saver_on_boundary(struct saver *, uint64_t applied_step, bool applied);
/* A new want. ST_RESOURCE_EXHAUSTED: too many; ST_JOB_ENDED: the job ends. */
enum status saver_request(struct saver *, const uint8_t request_id[16], bool inside_window);
/* The want with this request id, or NULL. */
const struct save_want *saver_find(const struct saver *, const uint8_t request_id[16]);
/* It may be possible to begin now. */
void saver_kick(struct saver *);
/* The job ends. true: a checkpoint comes first, end_ready follows. After another end than completion nothing comes
 * first and all wants fail. */
bool saver_end(struct saver *, bool completed);
/* Nothing can be saved where it should be: the wants fail, and neither the policy nor the end asks again. */
void saver_switch_off(struct saver *, enum status);

void saver_on_swept(struct saver *, uint64_t last_id);
void saver_on_written(struct saver *, enum status);
/* The window that was to be saved has passed: the next one will do. `wrote`: only at some parts, and others have
 * written files of it. */
void saver_on_passed(struct saver *, bool wrote);
void saver_on_engine_lost(struct saver *);
void saver_on_sealed(struct saver *, enum status);
void saver_on_recorded(struct saver *, enum status);
void saver_on_pruned(struct saver *);

#endif
