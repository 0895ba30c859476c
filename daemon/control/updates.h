/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a job that may change while it runs, and the changes that are to come.
 *
 * A change holds from the start of a stated window on. Of two for one window the later one wins; of two for different
 * windows each holds from its own, whichever was made first. So what holds in a window follows from the spec and the
 * list of changes alone, and a restart that reads the list again finds the same.
 */
#ifndef GACC_CONTROL_UPDATES_H
#define GACC_CONTROL_UPDATES_H

#include "control/spec.h"

#define UPDATES_MAX_PENDING 64

struct values {
	uint32_t micro_size;
	double lr, clip_norm, clip_value;
};

enum { VALUE_MICRO_SIZE = 1, VALUE_LR = 2, VALUE_CLIP_NORM = 4, VALUE_CLIP_VALUE = 8 };

struct update {
	uint64_t window; /* the first one that it holds for */
	uint32_t set;	 /* VALUE_*: which members of `to` are meant */
	struct values to;
};

/* Changes that are not in force yet: ascending by window, those of one window in the order in which they were made. */
struct updates {
	struct update *item;
	uint32_t n, capacity;
};

void updates_fini(struct updates *);

struct values values_of(const struct job_spec *);
/* Would the spec with these values be accepted? ST_INVALID_ARGUMENT: `field` names the value (static storage), `why`
 * says why not. */
enum status update_check(const struct update *, const struct job_spec *, const char **field, char *why, size_t n_why);

void update_apply(struct values *, const struct update *);

enum status updates_reserve(struct updates *); /* room for one more; ST_NO_MEMORY */
/* Files one; ST_NO_MEMORY never after updates_reserve. */
enum status updates_put(struct updates *, const struct update *);
/* What holds in `window`, when `now` holds before the first of the list. */
struct values updates_at(const struct updates *, struct values now, uint64_t window);
/* The same, and takes those changes from the list. */
struct values updates_take(struct updates *, struct values now, uint64_t window);

/* What a job that goes on in `window` must know besides its spec, when `now` holds before the first of the list: one
 * change for what holds there and is not the spec's, then those to come. Returns how many. */
uint32_t updates_beyond_spec(const struct updates *, struct values now, const struct job_spec *, uint64_t window,
			     struct update out[UPDATES_MAX_PENDING + 1]);
/* Every such list: no window is lower than the one before. Whoever takes a list from outside asks first. */
bool updates_ascend(const struct update *, uint32_t n);
/* Such a list, made for the spec `was`, in a job with the spec `is`: a value that the two say differently is what `is`
 * says, from the first window on. Takes it from the list; returns the VALUE_* that were. */
uint32_t updates_inherit(struct update *, uint32_t *n, const struct job_spec *was, const struct job_spec *is);

/* "lr 0.1 -> 0.01, micro_size 4 -> 8" for a change of `from`. */
void update_describe(const struct update *, struct values from, char *text, size_t n);

#endif
