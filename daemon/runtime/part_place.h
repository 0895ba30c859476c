/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a job is made from a placement, and from nothing else: the coordinator may be in this process or on another
 * machine.
 *
 * Reading a placement takes as long as its specification is large, some 50 ms for the largest, so that is done in any
 * thread; what it is compared with and what is made of it belong to the loop thread.
 */
#ifndef GACC_RUNTIME_PART_PLACE_H
#define GACC_RUNTIME_PART_PLACE_H

#include "cluster/placement_message.h"
#include "runtime/part.h"

/* A placement that is read. Zero before placing_open; must not be copied. */
struct placing {
	enum status status; /* ST_OK, ST_NO_MEMORY, or why it cannot be a part: `why` names field and value */
	char why[320];
	struct held_placement held;
	struct specification *text; /* its specification */
	struct tensor_set set;	    /* read from it, or from beside it; n 0: there is none, or it is read later */
};

/* Unpacks the message and judges it, but for the specification. Linear in the bytes, which are copied: 1 ms for 4 MB.
 * The tensors, NULL: they are in the bytes or nowhere, are held. Loop thread. */
void placing_open(struct placing *, const struct node *, const void *bytes, size_t n, struct shared *tensors);
/* Then, if that status is ST_OK: the specification. Any thread. */
void placing_read(struct placing *);
/* Of one that comes from this node's record, between the two: what the record has learned since. The tensors, NULL: no
 * others, are held. A job that has begun does not begin with its checkpoint again. */
void placing_recall(struct placing *, struct shared *tensors, bool begun);
void placing_fini(struct placing *);

/* Loop thread. Whether part_place would make this part, which is not here, beside those that are. ST_ALREADY_EXISTS
 * with `why`. */
enum status part_may_place(const struct node *, const struct placement *, char *why, size_t n_why);

/* Whether this part, which is here, is the one of the placement. ST_ALREADY_EXISTS with `why`. */
enum status part_check_same(const struct part *, const struct placement *, char *why, size_t n_why);

/* Loop thread. Makes the part and publishes it; what it takes of the placing is gone from there. *out may be a part
 * that was there already: the placement is a repetition, and one of a coordinator elsewhere tells it the last windows,
 * and mends a tensor set that this node has recorded and cannot read.
 * ST_VERSION_SKEW, ST_ALREADY_EXISTS with `why`; ST_NO_MEMORY. */
enum status part_place(struct node *, struct placing *, const struct part_ports *, struct part **out, char *why,
		       size_t n_why);
/* The part asks for memory and an engine, if its tensors are known. `earlier`: the placement
 * says how things stood before this gaccd started, and sessions may still live. */
void part_begin(struct part *, bool earlier);

#endif
