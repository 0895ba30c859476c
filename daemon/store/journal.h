/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's durable records: what must be true after every death. Kept in one SQLite file.
 *
 * A record is durable when journal_commit has returned ST_OK, and not before; a batch is durable as a whole or not at
 * all, and costs one fsync whatever its length, so callers group what waits. Every batch is guarded by the term: once
 * a newer coordinator has taken the journal, an older one can write nothing.
 *
 * Calls block (disk); they are meant for a pool thread and never run two at once on one journal. A failed write is
 * final: after ST_STORE_FAILED the journal refuses everything, nobody can tell whether the last batch is on the disk,
 * and the process is to exit with code 74 and read the journal anew. Trying an fsync again would lie (it may succeed
 * without the lost pages).
 */
#ifndef GACC_STORE_JOURNAL_H
#define GACC_STORE_JOURNAL_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOURNAL_KEEP_PAYLOADS 16 /* windows per job whose payload is kept */
#define JOURNAL_FORGET_WINDOWS 4096
#define JOURNAL_MAX_BYTES (64u << 20)		      /* of a spec, a tensor set or a payload */
#define JOURNAL_MAX_PLACEMENT (2 * JOURNAL_MAX_BYTES) /* which has both of the first */

struct journal;

struct journal_bytes {
	const void *data;
	size_t n;
};

/* A job as it stands: written in parts by the records below. When read, pointers live until the callback returns. */
struct journal_job {
	uint64_t id; /* > 0, chosen by the caller, unique for ever */
	uint8_t uuid[16];
	uint8_t request_id[16]; /* unique among the jobs of this uid */
	uint32_t uid;
	const char *user;
	int64_t created_unix_ns;
	struct journal_bytes spec; /* n = 0 when read of an ended job that has a view: journal_read_job has it */
	/* not part of JOURNAL_JOB: */
	struct journal_bytes tensors; /* n = 0: not declared yet */
	bool params_ready;
	uint64_t epoch;	      /* 1 for a new job */
	uint64_t next_window; /* windows committed so far */
	bool ended;
	uint32_t end_state; /* gacc.v1.JobState */
	const char *end_reason;
	int64_t ended_unix_ns;
	const char *hold_reason;    /* why it is paused; NULL: it is not */
	struct journal_bytes base;  /* the caller's: of the checkpoint that it began with; n = 0: it began anew */
	struct journal_bytes exits; /* the caller's: how its ranks' processes ended; n = 0: not known */
	struct journal_bytes view;  /* the caller's: what is shown of it when it has ended; n = 0: not known */
};

/* The outcome of one window. */
struct journal_window {
	uint64_t job, epoch, window;
	uint64_t applied_step, term, attempt;
	uint32_t outcome; /* gacc.v1.StepOutcome */
	int64_t unix_ns;
	struct journal_bytes payload; /* the caller's; n = 0 when read later than JOURNAL_KEEP_PAYLOADS windows after */
};

/* Values of a job that change from a window on. */
struct journal_update {
	uint64_t job, window;
	struct journal_bytes payload; /* the caller's */
};

/* A complete checkpoint. */
struct journal_checkpoint {
	uint64_t job, id;
	uint8_t request_id[16];
	const char *path;
	struct journal_bytes sha256; /* of its manifest */
	uint64_t window, applied_step, carried, bytes;
	int64_t started_unix_ns, ended_unix_ns;
};

/* A part of a job that another gaccd coordinates. When read, pointers live until the callback returns. */
struct journal_part {
	uint64_t job; /* no id of a job of this journal */
	uint32_t part;
	uint8_t uuid[16];		/* the job's */
	struct journal_bytes placement; /* the caller's */
	/* not part of JOURNAL_PART: */
	struct journal_bytes tensors; /* declared since; n = 0: not, or they are in the placement */
	bool begun;		      /* the job has had its parameters since */
};

enum journal_kind {
	JOURNAL_JOB = 1,      /* .job: a new job */
	JOURNAL_TENSORS,      /* .tensors: the tensor set is declared */
	JOURNAL_PARAMS_READY, /* .params_ready: initial parameters are complete on all nodes */
	JOURNAL_EPOCH,	      /* .epoch: windows >= base_window are void */
	JOURNAL_COMMIT,	      /* .commit */
	JOURNAL_END,	      /* .end: terminal; only EXITS, VIEW and FORGET follow for this job */
	/* .forget: an ended job leaves, at most JOURNAL_FORGET_WINDOWS windows of it at a time, itself with the last */
	JOURNAL_FORGET,
	JOURNAL_HOLD,		 /* .hold: the job is paused, or goes on */
	JOURNAL_UPDATE,		 /* .update */
	JOURNAL_RESTORED,	 /* .restored: the job begins with this window, not with 0; before its first COMMIT */
	JOURNAL_CHECKPOINT,	 /* .checkpoint: it may be offered */
	JOURNAL_CHECKPOINT_GONE, /* .gone: it was deleted */
	JOURNAL_EXITS,		 /* .exits: takes the place of an earlier one; also of an ended job */
	JOURNAL_VIEW,		 /* .view: takes the place of that of END */
	/* of jobs that are not this journal's: */
	JOURNAL_PART,	      /* .part: takes the place of an earlier one of this job and number */
	JOURNAL_PART_TENSORS, /* .part_tensors */
	JOURNAL_PART_BEGUN,   /* .part_begun */
	JOURNAL_PART_GONE     /* .part_gone: nothing is left of it */
};

struct journal_record {
	enum journal_kind kind;
	union {
		struct journal_job job;
		struct {
			uint64_t job;
			struct journal_bytes set;
		} tensors;
		struct {
			uint64_t job;
		} params_ready;
		struct {
			uint64_t job, epoch, base_window;
			const char *reason;
			int64_t unix_ns;
		} epoch;
		struct journal_window commit;
		struct {
			uint64_t job;
			uint32_t state;
			const char *reason;
			int64_t unix_ns;
			struct journal_bytes view; /* the caller's; n = 0: none yet */
		} end;
		struct {
			uint64_t job;
		} forget;
		struct {
			uint64_t job;
			const char *reason; /* NULL: the job goes on */
		} hold;
		struct journal_update update;
		struct {
			uint64_t job, window;
			struct journal_bytes base; /* the caller's */
		} restored;
		struct journal_checkpoint checkpoint;
		struct {
			uint64_t job;
			struct journal_bytes exits; /* the caller's */
		} exits;
		struct {
			uint64_t job;
			struct journal_bytes view; /* the caller's */
		} view;
		struct {
			uint64_t job, id;
		} gone;
		struct journal_part part;
		struct {
			uint64_t job;
			uint32_t part;
			struct journal_bytes set; /* the caller's */
		} part_tensors;
		struct {
			uint64_t job;
			uint32_t part;
		} part_begun, part_gone;
	};
};

/* The schema that this build writes: it reads this one and all before. */
uint32_t journal_schema(void);
/* The schema that the file has, its write-ahead log included; 0: there is no file, or an empty one. Nothing is locked
 * or changed, and a gaccd may have it open: another process, as this one's locks on it would be lost. ST_MALFORMED: no
 * SQLite file. ST_STORE_FAILED, ST_NO_MEMORY. On failure `why` has the reason. */
enum status journal_schema_of(const char *path, uint32_t *out, char *why, size_t n_why);
/* Opens or creates the file (mode 0600), checks it and takes it for this process alone. Where it stands is noted a
 * second time, in PATH.anchor: what was acknowledged and is missing or altered is found. ST_UNAVAILABLE: another
 * process has it. ST_VERSION_SKEW: written by a newer gaccd. ST_STORE_FAILED: it cannot be read or written.
 * ST_MALFORMED: it is damaged, or something is missing; the log says what, and nothing has been changed. */
enum status journal_open(const char *path, struct journal **out);
/* The same, and it is noted a third time, in memory that whoever keeps descriptors for this process can keep. `kept`:
 * what an earlier life had (taken), or -1. */
enum status journal_open_kept(const char *path, int kept, struct journal **out);
/* The operator has said that it counts as it is (journal_accept): for this opening, and not for the next. */
bool journal_was_accepted(const struct journal *);
int journal_kept(const struct journal *); /* that memory's descriptor, borrowed; -1: none */
void journal_close(struct journal *);

/* What has been noted outside of the file becomes durable, too: to be called some time after a commit, for the case
 * that the power fails. ST_STORE_FAILED. */
enum status journal_settle(struct journal *);

/* What journal_accept has to tell, one line at a time. */
typedef void (*journal_tell)(void *arg, const char *line);
/* The operator's word that a journal which journal_open refuses counts as it is. Copies its files to a new folder
 * beside it, PATH.damaged-TIME, and makes a journal of what can be read: jobs that have lost records, and are not over,
 * end with `end_state` and a reason; terms, incarnations and job ids never start again. journal_open_kept then takes it
 * whatever it is told by `kept`. ST_UNAVAILABLE: a gaccd runs with it. ST_STORE_FAILED (logged). */
enum status journal_accept(const char *path, uint32_t end_state, int64_t unix_ns, journal_tell, void *arg);

/* This daemon's start counter, one more than ever before. */
enum status journal_take_incarnation(struct journal *, uint64_t *out_incarnation);

/* A new coordinator's first act, before it reads anything: fences every earlier term. */
enum status journal_take_term(struct journal *, uint64_t *out_term);

/* Makes all records durable in their order, or none. ST_STALE_TERM: a newer term exists. ST_STALE_EPOCH: a COMMIT of
 * another epoch than the job's, or an EPOCH that is not newer. ST_JOB_NOT_FOUND: of a part, too. ST_JOB_ENDED.
 * ST_ALREADY_EXISTS: id or request_id is in use; a PART of a job of this journal, or with another uuid than the job's
 * other parts. ST_INVALID_ARGUMENT: a COMMIT of another window than the job's next or of another term than the
 * batch's, a RESTORED after a COMMIT, or bytes over JOURNAL_MAX_BYTES (JOURNAL_MAX_PLACEMENT). ST_RESOURCE_EXHAUSTED:
 * the disk is full, nothing was written, and the batch has a JOB, TENSORS or those of a part, for which the reserve is
 * not used. ST_STORE_FAILED: see above. */
enum status journal_commit(struct journal *, uint64_t term, const struct journal_record *, size_t n);

/* The journal's reserve, in MiB: room inside its file that commits use when the disk is full (store/reserve.h). Adds
 * one MiB if there are fewer than `wanted_mib` and the disk has room; returns how many there are now. */
uint32_t journal_reserve(struct journal *, uint32_t wanted_mib);

/* The highest job id ever given out, or of a part that was ever here; 0: none. */
enum status journal_last_job(struct journal *, uint64_t *out_id);

/* Calls `fn` for each job in the order of ids, for those not ended unless `all`; stops at the first status other than
 * ST_OK and returns it. `fn` must not call the journal. */
enum status journal_each_job(struct journal *, bool all, enum status (*fn)(void *arg, const struct journal_job *),
			     void *arg);

/* Calls `fn` once for this job, with its spec; ST_JOB_NOT_FOUND without. */
enum status journal_read_job(struct journal *, uint64_t job, enum status (*fn)(void *arg, const struct journal_job *),
			     void *arg);

/* The same for the last `last` windows of a job, oldest first. */
enum status journal_each_window(struct journal *, uint64_t job, uint64_t last,
				enum status (*fn)(void *arg, const struct journal_window *), void *arg);

/* The same for the checkpoints of a job, in the order of ids. */
enum status journal_each_checkpoint(struct journal *, uint64_t job,
				    enum status (*fn)(void *arg, const struct journal_checkpoint *), void *arg);

/* Calls `fn` for each part of jobs that others coordinate, in the order of jobs and parts; stops as journal_each_job
 * does. */
enum status journal_each_part(struct journal *, enum status (*fn)(void *arg, const struct journal_part *), void *arg);

/* Calls `fn` for all updates of a job, in the order in which they were made. */
enum status journal_each_update(struct journal *, uint64_t job,
				enum status (*fn)(void *arg, const struct journal_update *), void *arg);

#endif
