/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoints of a job as users see them, in the order of ids. Loop thread. */
#ifndef GACC_RUNTIME_SAVED_LIST_H
#define GACC_RUNTIME_SAVED_LIST_H

#include <stddef.h>
#include <stdint.h>

enum saved_state { SAVED_WRITING = 1, SAVED_COMPLETE = 2, SAVED_FAILED = 3 }; /* gacc.v1.CheckpointState */

/* A checkpoint as users see it. */
struct saved {
	uint64_t id;
	enum saved_state state;
	uint8_t request_id[16];
	char *path, *message; /* "" until they are known */
	uint64_t window, applied_step, carried, bytes;
	uint64_t state_bytes; /* of the file with the trainers' own states; 0: there is none */
	int64_t started_unix_ns, ended_unix_ns;
};

/* Zeroed: empty. */
struct saved_list {
	struct saved *saved;
	size_t n;
	uint32_t capacity;
};

/* Pointers are good until the list changes. */
struct saved *saved_add(struct saved_list *, uint64_t id, const uint8_t request_id[16]); /* WRITING; NULL: no memory */
struct saved *saved_find(const struct saved_list *, uint64_t id);			 /* NULL: none */
void saved_remove(struct saved_list *, uint64_t id);
/* The last failure is kept for whoever asks; earlier ones are in the log. */
void saved_forget_failures(struct saved_list *, uint64_t but);
#define SAVED_MAX_PAGE 1000
/* The newest `limit` (0: SAVED_MAX_PAGE, which is also the most) of those with an id below before_id (0: of all),
 * oldest first: where the first one is, and in *out_n how many there are. */
size_t saved_page(const struct saved_list *, uint64_t before_id, uint32_t limit, size_t *out_n);
size_t saved_complete(const struct saved_list *);
const struct saved *saved_newest(const struct saved_list *); /* complete; NULL: none */
void saved_set_text(char **to, const char *text);
void saved_fini(struct saved_list *);

#endif
