/* SPDX-License-Identifier: Apache-2.0 */
/* Converts decisions and updates to messages and back, and checks those that come in. For the journal, for
 * checkpoints and for the messages between gaccds. Any thread; no state. */
#include "cluster/commit_message.h"

#include "gacc/internal/v1/commit.pb-c.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

struct message_bounds message_bounds_of(const struct job_spec *s)
{
	return (struct message_bounds){ s->ranks, s->max_micro_size, s->parts };
}

/* ---- fields that are the same on both sides ---- */

#define COMMIT_FIELDS(X)                                                                                               \
	X(job_id)                                                                                                      \
	X(epoch)                                                                                                       \
	X(window)                                                                                                      \
	X(term)                                                                                                        \
	X(attempt)                                                                                                     \
	X(applied_step)                                                                                                \
	X(outcome)                                                                                                     \
	X(skip_reason)                                                                                                 \
	X(micro_size)                                                                                                  \
	X(next_micro_size)                                                                                             \
	X(scale)                                                                                                       \
	X(clip_value)                                                                                                  \
	X(lr)                                                                                                          \
	X(loss_scale)                                                                                                  \
	X(usual_norm)                                                                                                  \
	X(total_weight)                                                                                                \
	X(divisor)                                                                                                     \
	X(grad_norm)                                                                                                   \
	X(mean_loss)                                                                                                   \
	X(micro_count)                                                                                                 \
	X(last_rank)                                                                                                   \
	X(final)                                                                                                       \
	X(last_lag_ns)                                                                                                 \
	X(unix_nanos)                                                                                                  \
	X(wait_fraction)                                                                                               \
	X(digest)                                                                                                      \
	X(params_before)                                                                                               \
	X(params_digest)
#define SCALE_FIELDS(X) X(scale) X(good) X(allowance)
#define NORM_FIELDS(X) X(sum) X(weight) X(steps) X(refused)
#define COUNTER_FIELDS(X)                                                                                              \
	X(applied)                                                                                                     \
	X(skipped_nonfinite)                                                                                           \
	X(skipped_outlier)                                                                                             \
	X(dropped)                                                                                                     \
	X(empty)                                                                                                       \
	X(rejected_micros)                                                                                             \
	X(partial)

/* ---- commits ---- */

struct whole_commit {
	Gacc__Internal__V1__Commit m; /* first: its address is the message's */
	Gacc__Internal__V1__Carry next;
	Gacc__Internal__V1__LossScale scale;
	Gacc__Internal__V1__NormMean norms;
	Gacc__V1__Counters counters;
};

_Static_assert(sizeof(struct whole_commit) <= sizeof(struct commit_room), "there is room for all");

struct Gacc__Internal__V1__Commit *commit_to_message(const struct commit *k, struct commit_room *room)
{
	struct whole_commit *w = (struct whole_commit *)room;
	gacc__internal__v1__commit__init(&w->m);
	gacc__internal__v1__carry__init(&w->next);
	gacc__internal__v1__loss_scale__init(&w->scale);
	gacc__internal__v1__norm_mean__init(&w->norms);
	gacc__v1__counters__init(&w->counters);
#define X(field) w->m.field = k->field;
	COMMIT_FIELDS(X)
#undef X
#define X(field) w->scale.field = k->next.scale.field;
	SCALE_FIELDS(X)
#undef X
#define X(field) w->norms.field = k->next.norms.field;
	NORM_FIELDS(X)
#undef X
#define X(field) w->counters.field = k->next.counters.field;
	COUNTER_FIELDS(X)
#undef X
	w->m.next = &w->next;
	w->next.scale = &w->scale;
	w->next.norms = &w->norms;
	w->next.counters = &w->counters;
	return &w->m;
}

static bool is_finite_sum(double v)
{
	return isfinite(v) && v >= 0;
}

static enum status check_carry(const struct carry *c, char *why, size_t n_why)
{
	if (!isfinite(c->scale.scale) || c->scale.scale <= 0)
		snprintf(why, n_why, "Commit.next.scale.scale is %g, and must be finite and > 0", c->scale.scale);
	else if (!is_finite_sum(c->norms.sum) || !is_finite_sum(c->norms.weight))
		snprintf(why, n_why, "Commit.next.norms is %g / %g, and both must be finite and >= 0", c->norms.sum,
			 c->norms.weight);
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

static enum status check_bounds(const struct commit *k, const struct message_bounds *b, char *why, size_t n_why)
{
	const uint64_t most = (uint64_t)b->ranks * b->max_micro_size;
	if (k->last_rank >= b->ranks)
		snprintf(why, n_why, "Commit.last_rank is %u, and the job has %u ranks", k->last_rank, b->ranks);
	else if (k->micro_size > b->max_micro_size || k->next_micro_size > b->max_micro_size)
		snprintf(why, n_why, "Commit.micro_size is %u and next_micro_size %u, and the job has at most %u",
			 k->micro_size, k->next_micro_size, b->max_micro_size);
	else if (k->micro_count > most)
		snprintf(why, n_why, "Commit.micro_count is %" PRIu64 ", and the job has at most %" PRIu64,
			 k->micro_count, most);
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

enum status commit_check(const struct commit *k, const struct message_bounds *bounds, char *why, size_t n_why)
{
	if (k->outcome < OUTCOME_APPLIED || k->outcome > OUTCOME_DROPPED)
		snprintf(why, n_why, "Commit.outcome is %u, and must be %d to %d", k->outcome, OUTCOME_APPLIED,
			 OUTCOME_DROPPED);
	else if (k->skip_reason > SKIP_OUTLIER)
		snprintf(why, n_why, "Commit.skip_reason is %u, and must be at most %d", k->skip_reason, SKIP_OUTLIER);
	else if (!k->next_micro_size)
		snprintf(why, n_why, "Commit.next_micro_size is 0");
	else if (check_carry(&k->next, why, n_why) || (bounds && check_bounds(k, bounds, why, n_why)))
		return ST_VERSION_SKEW;
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

static void take_carry(const Gacc__Internal__V1__Carry *m, struct carry *c)
{
#define X(field) c->scale.field = m->scale->field;
	SCALE_FIELDS(X)
#undef X
	if (m->norms) {
#define X(field) c->norms.field = m->norms->field;
		NORM_FIELDS(X)
#undef X
	}
	if (m->counters) {
#define X(field) c->counters.field = m->counters->field;
		COUNTER_FIELDS(X)
#undef X
	}
}

enum status commit_from_message(const struct Gacc__Internal__V1__Commit *m, const struct message_bounds *bounds,
				struct commit *out, char *why, size_t n_why)
{
	struct commit k = { 0 };
	if (!m->next || !m->next->scale) {
		snprintf(why, n_why, "Commit.next.scale is missing");
		return ST_VERSION_SKEW;
	}
#define X(field) k.field = m->field;
	COMMIT_FIELDS(X)
#undef X
	take_carry(m->next, &k.next);
	enum status st = commit_check(&k, bounds, why, n_why);
	if (!st)
		*out = k;
	return st;
}

/* ---- updates ---- */

/* X(BIT, field) */
#define UPDATE_FIELDS(X)                                                                                               \
	X(MICRO_SIZE, micro_size)                                                                                      \
	X(LR, lr)                                                                                                      \
	X(CLIP_NORM, clip_norm)                                                                                        \
	X(CLIP_VALUE, clip_value)
#define X(BIT, field) | VALUE_##BIT
enum { UPDATE_SET = 0 UPDATE_FIELDS(X) };
#undef X

void update_to_message(const struct update *u, struct Gacc__Internal__V1__Update *m)
{
	assert(!(u->set & ~(uint32_t)UPDATE_SET));
	gacc__internal__v1__update__init(m);
	m->window = u->window;
#define X(BIT, field)                                                                                                  \
	if (u->set & VALUE_##BIT) {                                                                                    \
		m->field##_value_case = GACC__INTERNAL__V1__UPDATE__##BIT##_VALUE_##BIT;                               \
		m->field = u->to.field;                                                                                \
	}
	UPDATE_FIELDS(X)
#undef X
}

enum status update_judge(const struct update *u, char *why, size_t n_why)
{
	if (u->set && !(u->set & ~(uint32_t)UPDATE_SET))
		return ST_OK;
	snprintf(why, n_why, u->set ? "Update has a value that this gaccd does not know" : "Update sets no value");
	return ST_VERSION_SKEW;
}

enum status update_from_message(const struct Gacc__Internal__V1__Update *m, struct update *out, char *why, size_t n_why)
{
	struct update u = { .window = m->window };
#define X(BIT, field)                                                                                                  \
	if (m->field##_value_case == GACC__INTERNAL__V1__UPDATE__##BIT##_VALUE_##BIT) {                                \
		u.set |= VALUE_##BIT;                                                                                  \
		u.to.field = m->field;                                                                                 \
	}
	UPDATE_FIELDS(X)
#undef X
	if (m->base.n_unknown_fields) {
		snprintf(why, n_why, "Update has a value that this gaccd does not know (field %u)",
			 m->base.unknown_fields[0].tag);
		return ST_VERSION_SKEW;
	}
	enum status st = update_judge(&u, why, n_why);
	if (!st)
		*out = u;
	return st;
}
