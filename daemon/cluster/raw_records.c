/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the journal's records of earlier gaccds, which were memory images of structs. For job_records.c and
 * view_record.c. Any thread; no state. */
#include "cluster/raw_records.h"

#include "cluster/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the structs, as they were ---- */

struct raw_carry {
	struct {
		double scale;
		uint32_t good, allowance;
	} scale;
	struct {
		double sum, weight;
		uint32_t steps, refused;
	} norms;
	uint64_t applied, skipped_nonfinite, skipped_outlier, dropped, empty, rejected_micros, partial;
};

struct raw_commit {
	uint64_t job_id, epoch, window, term, attempt, applied_step;
	uint32_t outcome, skip_reason, micro_size, next_micro_size;
	double scale, clip_value, lr, loss_scale, usual_norm, total_weight, divisor, grad_norm, mean_loss;
	uint64_t micro_count;
	uint32_t last_rank, final;
	int64_t last_lag_ns, unix_nanos;
	double wait_fraction;
	uint64_t digest, params_before, params_digest;
	struct raw_carry next;
};
_Static_assert(sizeof(struct raw_commit) == 296, "as it was written");
#define BEFORE_AT offsetof(struct raw_commit, params_before)
#define BEFORE_BYTES sizeof(uint64_t) /* what the older form lacks: params_before */
_Static_assert(BEFORE_AT == 184, "as it was written");

struct raw_commit_head {
	uint32_t version, n_words;
};
enum { COMMIT_OLDER = 2, COMMIT_NEWER = 3 };

struct raw_update {
	uint64_t window;
	uint32_t set, unused;
	uint32_t micro_size, unused_too;
	double lr, clip_norm, clip_value;
};

struct raw_update_record {
	uint32_t version, reserved;
	struct raw_update update;
};
_Static_assert(sizeof(struct raw_update_record) == 56, "as it was written");
enum { UPDATE_VERSION = 1 };

/* The updates follow; version 1 ends before n_updates. */
struct raw_restored {
	uint32_t version, has_last;
	uint64_t window, applied_step;
	struct raw_commit last;
	uint64_t n_updates;
};
_Static_assert(sizeof(struct raw_restored) == 328, "as it was written");
enum { RESTORED_BARE = 1, RESTORED_UPDATES = 2 };

/* A packed gacc.v1.Job follows. */
struct raw_view {
	uint32_t version, settled;
	uint32_t ranks, micro_size, max_micro_size, launch_mode, optimizer, reserved;
	int64_t grace_ns;
	uint8_t spec_sum[16];
};
_Static_assert(sizeof(struct raw_view) == 56, "as it was written");
enum { VIEW_VERSION = 1 };

/* The ranks follow, then the tail. */
struct raw_exits {
	uint32_t version, n_ranks, n_tail, reserved;
	uint32_t phase, result, charged, unused;
	uint8_t known, unused_too[3];
	uint32_t rank;
	int64_t pid;
	int32_t exit_status;
	uint32_t unused_three;
	int64_t unix_ns;
};
_Static_assert(sizeof(struct raw_exits) == 64, "as it was written");
struct raw_exits_rank {
	uint32_t state, unused;
	int64_t pid;
	int32_t exit_status;
	uint32_t restarts;
	int64_t due_ns;
};
_Static_assert(sizeof(struct raw_exits_rank) == 32, "as it was written");
enum { EXITS_VERSION = 1 };

/* ---- conversion ---- */

static void to_commit(const struct raw_commit *r, struct commit *k)
{
#define X(field) k->field = r->field
	*k = (struct commit){ .next.scale = { r->next.scale.scale, r->next.scale.good, r->next.scale.allowance } };
	X(job_id), X(epoch), X(window), X(term), X(attempt), X(applied_step);
	X(outcome), X(skip_reason), X(micro_size), X(next_micro_size);
	X(scale), X(clip_value), X(lr), X(loss_scale), X(usual_norm);
	X(total_weight), X(divisor), X(grad_norm), X(mean_loss);
	X(micro_count), X(last_rank), X(final), X(last_lag_ns), X(unix_nanos), X(wait_fraction);
	X(digest), X(params_before), X(params_digest);
	X(next.norms.sum), X(next.norms.weight), X(next.norms.steps), X(next.norms.refused);
#undef X
#define X(field) k->next.counters.field = r->next.field
	X(applied), X(skipped_nonfinite), X(skipped_outlier), X(dropped), X(empty), X(rejected_micros), X(partial);
#undef X
}

/* Reads a commit from bytes that need not be aligned. The older form lacks params_before, which is then 0. Returns
 * where it ends. */
static const char *take_commit(const char *from, bool older, struct commit *k)
{
	struct raw_commit r;
	size_t after = BEFORE_AT + BEFORE_BYTES, rest = sizeof(r) - after;
	memset(&r, 0, sizeof(r));
	memcpy(&r, from, BEFORE_AT);
	from += BEFORE_AT;
	if (!older)
		memcpy(&r.params_before, from, BEFORE_BYTES), from += BEFORE_BYTES;
	memcpy((char *)&r + after, from, rest);
	to_commit(&r, k);
	return from + rest;
}

static struct update to_update(const struct raw_update *r)
{
	return (struct update){ r->window, r->set, { r->micro_size, r->lr, r->clip_norm, r->clip_value } };
}

/* ---- records ---- */

bool raw_record_is(const void *bytes, size_t n)
{
	uint32_t form = record_form(bytes, n);
	return form > 0 && form <= COMMIT_NEWER;
}

bool raw_commit_read(const void *bytes, size_t n, struct commit *k, const void **words, uint32_t *n_words)
{
	struct raw_commit_head head;
	if (n < sizeof(head))
		return false;
	memcpy(&head, bytes, sizeof(head));
	bool older = head.version == COMMIT_OLDER;
	size_t fixed = sizeof(head) + sizeof(struct raw_commit) - (older ? BEFORE_BYTES : 0);
	if ((!older && head.version != COMMIT_NEWER) || n != fixed + head.n_words * sizeof(uint64_t))
		return false;
	*words = take_commit((const char *)bytes + sizeof(head), older, k);
	*n_words = head.n_words;
	return true;
}

bool raw_update_read(const void *bytes, size_t n, struct update *out)
{
	struct raw_update_record r;
	if (n != sizeof(r))
		return false;
	memcpy(&r, bytes, sizeof(r));
	*out = to_update(&r.update);
	return r.version == UPDATE_VERSION;
}

/* The version does not say whether the record has the older form of the commit. Only the size does, because an update
 * is larger than the member that the older form lacks. */
static bool is_older(uint32_t version, size_t n)
{
	_Static_assert(sizeof(struct raw_update) > BEFORE_BYTES, "the size tells them apart");
	return version == RESTORED_BARE ||
	       (n + BEFORE_BYTES - sizeof(struct raw_restored)) % sizeof(struct raw_update) == 0;
}

static bool take_updates(const char *from, size_t n, struct restored *out)
{
	uint64_t n_updates;
	struct raw_update u;
	memcpy(&n_updates, from, sizeof(n_updates));
	from += sizeof(n_updates);
	if (n_updates > RESTORED_MAX_UPDATES || n != sizeof(n_updates) + n_updates * sizeof(u))
		return false;
	for (; out->n_updates < n_updates; from += sizeof(u)) {
		memcpy(&u, from, sizeof(u));
		out->update[out->n_updates++] = to_update(&u);
	}
	return true;
}

bool raw_restored_read(const void *bytes, size_t n, struct restored *out)
{
	const size_t bare = offsetof(struct raw_restored, n_updates), at = offsetof(struct raw_restored, last);
	uint32_t version = record_form(bytes, n);
	struct raw_restored head;
	if ((version != RESTORED_BARE && version != RESTORED_UPDATES) || n + BEFORE_BYTES < bare)
		return false;
	bool older = is_older(version, n);
	size_t fixed = older ? bare - BEFORE_BYTES : bare;
	if (n < fixed + (version == RESTORED_UPDATES ? sizeof(head.n_updates) : 0))
		return false;
	memcpy(&head, bytes, at);
	memset(out, 0, sizeof(*out));
	out->window = head.window;
	out->applied_step = head.applied_step;
	out->has_last = head.has_last;
	take_commit((const char *)bytes + at, older, &out->last);
	return version == RESTORED_BARE ? n == fixed : take_updates((const char *)bytes + fixed, n - fixed, out);
}

bool raw_view_read(const void *bytes, size_t n, struct view_head *h, size_t *job)
{
	struct raw_view r;
	if (n < sizeof(r))
		return false;
	memcpy(&r, bytes, sizeof(r));
	*h = (struct view_head){ .settled = r.settled,
				 .ranks = r.ranks,
				 .micro_size = r.micro_size,
				 .max_micro_size = r.max_micro_size,
				 .launch_mode = (enum launch_mode)r.launch_mode,
				 .optimizer = (enum optim_type)r.optimizer,
				 .grace_ns = r.grace_ns };
	memcpy(h->spec_sum, r.spec_sum, sizeof(h->spec_sum));
	*job = sizeof(r);
	return r.version == VIEW_VERSION;
}

static enum status take_exits(const struct raw_exits *r, const char *from, struct exits *e)
{
	e->rank = malloc(r->n_ranks * sizeof(*e->rank) + r->n_tail + 1);
	if (!e->rank)
		return ST_NO_MEMORY;
	for (uint32_t i = 0; i < r->n_ranks; i++, from += sizeof(struct raw_exits_rank)) {
		struct raw_exits_rank k;
		memcpy(&k, from, sizeof(k));
		e->rank[i] = (struct launch_rank){ .state = (enum launch_rank_state)k.state,
						   .pid = k.pid,
						   .exit_status = k.exit_status,
						   .restarts = k.restarts };
	}
	memcpy(e->rank + r->n_ranks, from, r->n_tail);
	e->n_ranks = r->n_ranks;
	e->tail = e->rank + r->n_ranks;
	e->n_tail = r->n_tail;
	e->summary = (struct launch_summary){ .phase = (enum launch_phase)r->phase,
					      .result = (enum launch_result)r->result,
					      .charged = r->charged,
					      .cause = { r->known != 0, r->rank, r->pid, r->exit_status, r->unix_ns } };
	return ST_OK;
}

enum status raw_exits_read(const void *bytes, size_t n, uint32_t ranks, struct exits *e, char *why, size_t n_why)
{
	struct raw_exits r = { .version = record_form(bytes, n) };
	if (n >= sizeof(r))
		memcpy(&r, bytes, sizeof(r));
	if (r.version == EXITS_VERSION && n >= sizeof(r) && r.n_ranks == ranks &&
	    n == sizeof(r) + (size_t)ranks * sizeof(struct raw_exits_rank) + r.n_tail)
		return take_exits(&r, (const char *)bytes + sizeof(r), e);
	snprintf(why, n_why, "it has another form: %u in %zu bytes, with %u ranks", r.version, n, r.n_ranks);
	return ST_VERSION_SKEW;
}
