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

/* A tensor of a file and where its values lie: in the data of its section's role. */
struct snapshot_entry {
	struct safe_tensor safe;
	uint32_t section; /* of the file */
	uint64_t offset;
};

/* The tensors of one file in the order of its data, sections one after the other, each in the order of the arena. */
struct snapshot_list {
	struct snapshot_section section[SNAPSHOT_MAX_SECTIONS];
	uint32_t n_sections;
	struct snapshot_entry *entry;
	uint64_t n;
	char *names;
};

/* MODEL, OPTIMIZER or CARRY (whose values are those of half x). No entries: the job has no such file. ST_NO_MEMORY. */
enum status snapshot_list_init(struct snapshot_list *out, const struct plan *, enum checkpoint_part, uint32_t x);
void snapshot_list_fini(struct snapshot_list *);

/* The open window as tensors, for ranks * micro_size: who is in the sum, and what the ledger says of it. */
#define WINDOW_TENSORS 6
enum { WINDOW_STATE, WINDOW_WEIGHT, WINDOW_LOSS, WINDOW_DATA_KEY, WINDOW_UNIX_NANOS, WINDOW_FLUSHED };
enum { MICRO_MISSING = 0, MICRO_COUNTED = 1, MICRO_VOID = 2 }; /* values of "state" */
void snapshot_window_tensors(struct safe_tensor out[WINDOW_TENSORS], uint32_t ranks, uint32_t micro_size);
/* Bytes of all their data. */
uint64_t snapshot_window_bytes(uint32_t ranks, uint32_t micro_size);
/* Their data from the record and the ledger, and back. */
void snapshot_window_save(const struct control_state *, const struct control_page *, const struct safe_tensor *,
			  void *out);
/* false: a state, a weight or a mark is none. */
bool snapshot_window_load(struct control_state *, const struct control_page *, const struct safe_tensor *,
			  const void *data);

#endif
