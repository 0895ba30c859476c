/* SPDX-License-Identifier: Apache-2.0 */
/* The journal's records COMMIT, UPDATE and RESTORED: packed from control's structs, and read back. They are messages of
 * gacc/internal/v1/record.proto (record.h); those of earlier gaccds are read, too.
 *
 * Readers judge what they read. ST_VERSION_SKEW: `why` is one sentence that names what is wrong, and the caller sets
 * the job aside; ST_NO_MEMORY. *out is written only with ST_OK. Any thread; no state.
 */
#ifndef GACC_CLUSTER_JOB_RECORDS_H
#define GACC_CLUSTER_JOB_RECORDS_H

#include "cluster/commit_message.h"

struct Gacc__Internal__V1__CommitRecord;

#define RESTORED_MAX_UPDATES (UPDATES_MAX_PENDING + 1)

/* A window's outcome and what was counted in it. */
struct decided {
	struct commit commit;
	uint64_t *counted; /* for free() */
	uint32_t n_words;
};

/* Where a job stands that began with a checkpoint. */
struct restored {
	uint64_t window, applied_step; /* its first window; the steps before it */
	bool has_last;
	struct commit last; /* of the window before */
	uint32_t n_updates;
	struct update update[RESTORED_MAX_UPDATES];
};

/* Records for free(); NULL: no memory. */
void *commit_record_pack(const struct commit *, const uint64_t *counted, uint32_t n_words, size_t *out_n);
void *update_record_pack(const struct update *, size_t *out_n);
void *restored_record_pack(const struct restored *, size_t *out_n);

/* `window`: of the journal's row, which the record must be of. COMMIT is of a job with these bounds. */
enum status commit_record_read(const void *bytes, size_t n, const struct message_bounds *, uint64_t window,
			       struct decided *out, char *why, size_t n_why);
/* The same from the message. `n_ranks`: whose bits `counted` has; the job's, or those of a part. */
enum status commit_record_from_message(const struct Gacc__Internal__V1__CommitRecord *, const struct message_bounds *,
				       uint32_t n_ranks, struct decided *out, char *why, size_t n_why);
enum status update_record_read(const void *bytes, size_t n, uint64_t window, struct update *out, char *why,
			       size_t n_why);
enum status restored_record_read(const void *bytes, size_t n, struct restored *out, char *why, size_t n_why);

#endif
