/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine does with its job's arenas: the gradient slots, the two halves of the accumulator pair, parameters,
 * masters and optimizer state.
 *
 * The engine's own code (engine.c, window.c, step.c, saving.c, snapshot*.c) names them by slot and half and never holds
 * a pointer into one; only an implementation knows where they lie: arith_host.c for arenas in shared memory, and
 * daemon/cuda for those in a GPU's, which an engine loads as a plug-in. The control and the status segment are host
 * memory in every job and are not behind this: everybody, an implementation included, reads and writes them directly.
 *
 * Operations have done their work when they return. Main thread, `reduce` and `broadcast` excepted. Slots and halves
 * are below the plan's numbers: what comes from outside is checked before.
 *
 * Errors. An operation returns ST_OK, or another status when the device has failed. What it was to write then holds
 * anything that a death in the middle could leave, and no further operation will succeed. So every result goes to
 * arith_need, which logs the failure and ends the process with ENGINE_EXIT_LOST, at once, before anything is published
 * or answered: the same as a SIGKILL at that point, which the control record makes good. gaccd starts a successor; it
 * adopts the memory and finishes what the record in force says. The host's operations never fail.
 *
 * How a device's memory is made and adopted is in device_plugin.h; the host's comes from gaccd, and memory_take maps
 * it. An implementation may leave out what its jobs cannot ask for: daemon/cuda has no `take`, and nothing of sharded
 * jobs.
 */
#ifndef GACC_ENGINE_ARITH_H
#define GACC_ENGINE_ARITH_H

#include "proto/segment_layout.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

struct arith;
struct coll; /* coll/coll.h */

/* One micro-batch of a pass. */
struct arith_source {
	uint32_t slot; /* what of it belongs to no tensor is zeroed */
	double coefficient;
	const unsigned char *present; /* bit i of byte i / 8: tensor i; NULL: all. An alias stands for its target */
};

/* Of a whole half. Zeros for one that holds nothing. */
struct arith_norm {
	double sumsq;
	uint64_t nonfinite, digest;
};

/* Values of the parameters that are inf or NaN, or that Adam's second moment keeps from ever moving again. */
struct nonfinite {
	uint64_t count;	 /* elements */
	uint64_t tensor; /* index of the first one's; n_tensors: it is in none */
};

/* Of all parameters. */
struct arith_params {
	uint64_t digest; /* of the values that count: of the master where there is one */
	struct nonfinite nonfinite;
};

/* Digests of a part's share of the parameters. */
struct arith_share {
	uint64_t values; /* that count: as in arith_params */
	uint64_t seen;	 /* what trainers see of them: the same where there is no master */
};

#define ARITH_NO_HALF 2u /* where a half may be missing */
/* Where a sum is read, of a job without accumulators (plan->in_slot): the sum is this slot, times the coefficient of
 * the push that the ledger has. */
#define ARITH_IN_SLOT(slot) (3u + (slot))

struct arith_ops {
	void (*close)(struct arith *);

	/* Half dst = (first ? 0 : half src) + sum of coefficient * gradient over s[0..n), n <= KERNEL_MAX_SLOTS, left
	 * to right. nonfinite: n counters, set to the non-finite products of each source. norm: NULL, or what dst then
	 * holds. dst may be src only when first. */
	enum status (*add)(struct arith *, uint32_t dst, uint32_t src, bool first, const struct arith_source *s,
			   uint32_t n, uint64_t *nonfinite, struct arith_norm *norm);
	/* Of a job without accumulators, in place of add: makes one micro-batch the sum, in its slot. Tensors that are
	 * absent or frozen become zeros there. nonfinite, norm: as of add. */
	enum status (*take)(struct arith *, const struct arith_source *s, uint64_t *nonfinite, struct arith_norm *norm);
	enum status (*inspect)(struct arith *, uint32_t half, struct arith_norm *out);
	/* Half dst = the sum over all parts of the job, of which half src is this one's; filled: something is in src,
	 * else it is set to zeros first. Only for a job of several parts. Not for the main thread:
	 * it runs on the communication thread, and nothing else may use the two halves meanwhile (reads of src
	 * excepted, if it is filled). Its result is no device's: what it returns is the
	 * communicator's failure. Of a sharded job it takes the sum of this part's share, and *norm is of all. */
	enum status (*reduce)(struct arith *, struct coll *, uint32_t dst, uint32_t src, bool filled,
			      struct arith_norm *norm);
	/* The parameters, and the masters if there are some, of part `root` in all parts. Like reduce, for the
	 * communication thread; nothing else may use the parameters of the other parts meanwhile. If it fails, they
	 * hold anything. */
	enum status (*broadcast)(struct arith *, struct coll *, uint32_t root);
	/* After a reduce, or a broadcast of another part, that has succeeded: half dst, or the parameters, have it only
	 * when this has returned. Main thread. */
	enum status (*reduced)(struct arith *, uint32_t dst);
	enum status (*filled)(struct arith *);
	/* Half dst = clamp(scale * half src): the reduced gradient of the client optimizer. */
	enum status (*scale)(struct arith *, uint32_t dst, uint32_t src, double scale, double clip_value);
	enum status (*zero_slot)(struct arith *, uint32_t slot);

	/* Parameters: copies bytes from the start of a slot to `offset` of their layout, with zeros in place of those
	 * that belong to no tensor, and derives the masters of the 16-bit ones touched. The bytes are inside of both.
	 */
	enum status (*put)(struct arith *, uint32_t slot, uint64_t offset, uint64_t bytes);
	/* Draws every tensor that has a rule; the others stay as they are, aliases follow their target. */
	enum status (*init)(struct arith *);

	/* The update that an engine may die in at any instant and finish in its next life (update.h). begin comes
	 * before the record says APPLYING, and sets all stamps to "no progress" for the update of `window`. */
	enum status (*update_begin)(struct arith *, uint64_t window);
	/* The stamps are of this window and in range: an update may go on. */
	enum status (*update_can_resume)(struct arith *, uint64_t window, bool *out);
	/* The update of record r (commit_*) with the sum in `half`, or what is left of it. *out is the same however
	 * many lives it took. */
	enum status (*update_run)(struct arith *, const struct control_record *r, uint32_t half,
				  struct arith_params *out);
	/* Of a sharded job: update_run updates this part's share, and what it says is the digest of that. digests: of
	 * the own share as it is; known: of an update_run just now, whose digest out->values is already. gather: like
	 * reduce, for the communication thread; all parts get the parameters of each other's shares, those excepted
	 * that are `whole`: they have them. Between update_begin and digests, which the main thread then gets to
	 * whatever happens, it gives what the update has finished, and waits for the rest. table: [n_parts], filled:
	 * the own digests and those of the others. gathered: what all parameters are after that. */
	enum status (*digests)(struct arith *, bool known, struct arith_share *out);
	enum status (*gather)(struct arith *, struct coll *, bool whole, struct arith_share *table);
	enum status (*gathered)(struct arith *, const struct arith_share *table, struct arith_params *out);
	/* Reads all parameters as they are. The same digest as update_run's; of a sharded job with masters that of
	 * what trainers see, as no part has all masters. */
	enum status (*inspect_params)(struct arith *, struct arith_params *out);
	/* Of what trainers see, as it is; without masters the digest of inspect_params. Of a job of one part. */
	enum status (*digest_seen)(struct arith *, uint64_t *digest);

	/* n bytes of a role's data from `offset` on, inside of it; a role that the job has, but no slot, CONTROL or
	 * STATUS. read: any thread, beside any operation that does not write there. */
	enum status (*read)(struct arith *, enum segment_role, uint64_t offset, uint64_t n, void *to);
	enum status (*write)(struct arith *, enum segment_role, uint64_t offset, uint64_t n, const void *from);

	/* Writes the rows of control_page_norms, those of aliases excepted: of the sum in `half` (ARITH_NO_HALF: there
	 * is none) and of the parameters. Not of a sharded job. */
	enum status (*norms)(struct arith *, uint32_t half);
	/* The same of a sharded job, behind `reduce` and like it for the communication thread: `half` has the sum of
	 * this part's share. If it fails, the rows are as they were. */
	enum status (*norms_of_shares)(struct arith *, struct coll *, uint32_t half);
};

/* What every implementation begins with. */
struct arith {
	const struct arith_ops *ops;
	const char *name; /* whose arithmetic: on the host, a table's of math/kernels.h */
	bool is_far;	  /* the arenas lie behind a bus: training goes on unhindered while they are read */
	/* who still needs what an arena holds, and copies it when this is called; NULL: nobody. snapshot_new sets them
	 */
	void (*before_write)(void *arg, enum segment_role);
	void *before_write_arg;
	/* gaccd's sign of life: an operation that takes long on the host calls it now and then. NULL: nobody waits */
	void (*at_work)(void *arg);
	void *at_work_arg;
};

/* To be called before the operations `add`, `scale` and `update_run` write into this role's arena. Main thread. */
void arith_before_write(const struct arith *, enum segment_role);

static inline void arith_at_work(const struct arith *a)
{
	if (a->at_work)
		a->at_work(a->at_work_arg);
}

/* Returns if st is ST_OK; else ends the process. `what` was tried, for the log. Any thread. */
void arith_need(const char *what, enum status st);

#endif
