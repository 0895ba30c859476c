/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a checkpoint hold, from the plan: the same list for the one that writes and the one that reads. */
#ifndef GACC_ENGINE_SNAPSHOT_FILES_H
#define GACC_ENGINE_SNAPSHOT_FILES_H

#include "engine/control_page.h"
#include "engine/plan.h"
#include "store/manifest.h"
#include "store/safetensors.h"

#define SNAPSHOT_MAX_SECTIONS 4

/* One array over all tensors: a role of the memory, and what it adds to their names. */
struct snapshot_section {
	enum segment_role role;
	const char *suffix;
};

/* A tensor of a file and where its values lie: in the data of its section's role, were that of the whole arena. */
struct snapshot_entry {
	struct safe_tensor safe;
	uint32_t section; /* of the file */
	uint64_t offset;
};

/* Elements [from, end) of the arena. */
struct snapshot_span {
	uint64_t from, end;
};
struct snapshot_span snapshot_span_all(const struct plan *);
struct snapshot_span snapshot_span_own(const struct plan *); /* plan_own */

/* The tensors of one file in the order of its data, sections one after the other, each in the order of the arena. */
struct snapshot_list {
	struct snapshot_section section[SNAPSHOT_MAX_SECTIONS];
	uint32_t n_sections;
	struct snapshot_entry *entry;
	uint64_t n;
	char *names;
};

/* MODEL, OPTIMIZER or CARRY (whose values are those of half x): what lies in the span, in which this part has memory. A
 * tensor that the span cuts is flat, and its name says which elements these are (snapshot_slice). No entries: there is
 * no such file. ST_NO_MEMORY. */
enum status snapshot_list_init(struct snapshot_list *out, const struct plan *, enum checkpoint_part, uint32_t x,
			       struct snapshot_span);
void snapshot_list_fini(struct snapshot_list *);

/* Elements [from, end) of a tensor. A file has a part of a tensor as the flat tensor "NAME[from:end]". */
struct snapshot_slice {
	uint64_t from, end;
};
/* Of this name, whose first *n_name bytes are the tensor's. false: it says nothing of elements, and *n_name is all of
 * it. */
bool snapshot_slice_of(const char *name, size_t *n_name, struct snapshot_slice *out);

/* The shares of the optimizer state that the files of a checkpoint have, whatever they were cut by: looked at in the
 * order of the shares, they must have each tensor of the whole list once, from its first element to its last. */
struct snapshot_cover {
	const struct snapshot_list *whole;
	uint64_t *by_name; /* [n]: indices of its entries, in the order of their names */
	uint64_t *have;	   /* [n]: elements, from the first one on */
};
enum status snapshot_cover_init(struct snapshot_cover *,
				const struct snapshot_list *whole); /* borrowed. ST_NO_MEMORY */
void snapshot_cover_fini(struct snapshot_cover *);
/* The next tensor of a file: which entry of the list it belongs to, and from which element on. ST_LAYOUT_MISMATCH: the
 * job has none with this name, dtype and shape; ST_MALFORMED: it does not go on where the one before has ended. `file`
 * begins the sentence in `why`. */
enum status snapshot_cover_add(struct snapshot_cover *, const char *file, const struct safe_tensor *,
			       uint64_t *out_entry, uint64_t *out_from, char *why, size_t n_why);
/* ST_MALFORMED: the files of all shares have been looked at, and something is missing. */
enum status snapshot_cover_end(const struct snapshot_cover *, char *why, size_t n_why);

/* The open window as tensors, for ranks * micro_size: who is in the sum, and what the ledger says of it. */
#define WINDOW_TENSORS 6
enum { WINDOW_STATE, WINDOW_WEIGHT, WINDOW_LOSS, WINDOW_DATA_KEY, WINDOW_UNIX_NANOS, WINDOW_FLUSHED };
enum { MICRO_MISSING = 0, MICRO_COUNTED = 1, MICRO_VOID = 2 }; /* values of "state" */
void snapshot_window_tensors(struct safe_tensor out[WINDOW_TENSORS], uint32_t ranks, uint32_t micro_size);
/* Bytes of all their data. */
uint64_t snapshot_window_bytes(uint32_t ranks, uint32_t micro_size);
/* Behind them, of a job with untouched: skip: the tensors that the sum has a gradient of, as bits (touched.h). */
struct safe_tensor snapshot_touched_tensor(uint64_t n_tensors, uint64_t begin);
/* Before the state, of such a job: how many steps each tensor has taken part in. The only name without a suffix. */
struct safe_tensor snapshot_steps_tensor(uint64_t n_tensors);
/* Their data from the record and the ledger, and back. */
void snapshot_window_save(const struct control_state *, const struct control_page *, const struct safe_tensor *,
			  void *out);
/* false: a state, a weight or a mark is none. */
bool snapshot_window_load(struct control_state *, const struct control_page *, const struct safe_tensor *,
			  const void *data);

#endif
