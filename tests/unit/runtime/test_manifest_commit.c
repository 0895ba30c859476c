/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/manifest_commit.h"
#include "runtime/manifest_updates.h"
#include "support/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every byte has a value, so that a field which is left out is missed. */
static struct commit full(void)
{
	struct commit k;
	uint8_t *bytes = (uint8_t *)&k;
	for (size_t i = 0; i < sizeof(k); i++)
		bytes[i] = (uint8_t)(1 + i % 59); /* 59 keeps doubles finite, > 0 */
	k.window = 41;
	k.applied_step = 40;
	k.outcome = OUTCOME_APPLIED;
	k.skip_reason = SKIP_OUTLIER;
	k.next_micro_size = 3;
	k.loss_scale = 0.1;
	k.lr = 1e-3;
	k.grad_norm = INFINITY;
	k.last_lag_ns = -5;
	k.digest = UINT64_MAX;
	return k;
}

/* The names in checkpoints that are out there: a field may be added, and none renamed. */
static const char *const names[] = { "window",
				     "applied_step",
				     "outcome",
				     "skip_reason",
				     "micro_size",
				     "next_micro_size",
				     "scale",
				     "clip_value",
				     "lr",
				     "loss_scale",
				     "usual_norm",
				     "total_weight",
				     "divisor",
				     "grad_norm",
				     "mean_loss",
				     "micro_count",
				     "last_rank",
				     "last_lag_ns",
				     "unix_nanos",
				     "wait_fraction",
				     "digest",
				     "params_digest",
				     "next.scale.scale",
				     "next.scale.good",
				     "next.scale.allowance",
				     "next.norms.sum",
				     "next.norms.weight",
				     "next.norms.steps",
				     "next.norms.refused",
				     "next.counters.applied",
				     "next.counters.skipped_nonfinite",
				     "next.counters.skipped_outlier",
				     "next.counters.dropped",
				     "next.counters.empty",
				     "next.counters.rejected_micros",
				     "next.counters.partial" };

static void write_manifest(const struct commit *k, const struct update *u, uint32_t n_updates, char **text, size_t *n)
{
	struct manifest m = { .name = "n",
			      .optimizer = "sgd",
			      .accumulate_dtype = "f32",
			      .spec = "x",
			      .n_spec = 1,
			      .file = { [CHECKPOINT_MODEL] = { .bytes = 1 } } };
	manifest_put_commit(&m, k);
	manifest_put_updates(&m, u, n_updates);
	ck_assert_int_eq(manifest_encode(&m, text, n), ST_OK);
}

START_TEST(an_outcome_goes_through_a_manifest)
{
	struct commit k = full(), back;
	struct manifest *m;
	char *text, why[200];
	size_t n;
	write_manifest(&k, NULL, 0, &text, &n);
	ck_assert_msg(!manifest_decode("m", text, n, &m, why, sizeof(why)), "%s", why);
	ck_assert(manifest_take_commit(m, &back));
	ck_assert_uint_eq(m->n_last, sizeof(names) / sizeof(*names));
	for (size_t i = 0; i < m->n_last; i++)
		ck_assert_str_eq(m->last[i].name, names[i]);
	/* what a decision is for its own job alone */
	k.job_id = k.epoch = k.term = k.attempt = k.final = k.params_before = 0;
	ck_assert_mem_eq(&back, &k, sizeof(k));
	manifest_free(m);
	free(text);
}
END_TEST

START_TEST(senseless_outcomes_are_none)
{
	struct commit k = full(), back;
	struct manifest m = { .n_last = 0 };
	ck_assert(!manifest_take_commit(&m, &back));
	manifest_put_commit(&m, &k);
	ck_assert(manifest_take_commit(&m, &back));
	for (size_t i = 0; i < m.n_last; i++) {
		struct manifest_value was = m.last[i];
		if (!strcmp(was.name, "outcome"))
			m.last[i].whole = 9;
		else if (!strcmp(was.name, "next.scale.good"))
			m.last[i].whole = UINT64_C(1) << 32;
		else if (!strcmp(was.name, "next.scale.scale"))
			m.last[i].real = 0;
		else
			continue;
		ck_assert_msg(!manifest_take_commit(&m, &back), "%s", was.name);
		m.last[i] = was;
	}
}
END_TEST

START_TEST(updates_go_through_a_manifest)
{
	struct commit k = full();
	struct update u[UPDATES_MAX_PENDING + 1], back[MANIFEST_MAX_UPDATES];
	struct manifest *m;
	const char *unknown;
	char *text, why[200];
	size_t n;
	for (uint32_t i = 0; i <= UPDATES_MAX_PENDING; i++)
		u[i] = (struct update){ i == 3 ? UINT64_MAX : i, 1 + i % 15, { 4 + i, 0.1 * i, 2, 0 } };
	write_manifest(&k, u, UPDATES_MAX_PENDING + 1, &text, &n);
	ck_assert(strstr(text, "\"version\": 2"));
	ck_assert_msg(!manifest_decode("m", text, n, &m, why, sizeof(why)), "%s", why);
	ck_assert_uint_eq(manifest_take_updates(m, back, &unknown), UPDATES_MAX_PENDING + 1);
	ck_assert_ptr_null(unknown);
	for (uint32_t i = 0; i <= UPDATES_MAX_PENDING; i++) {
		struct values was = { 0 }, is = { 0 };
		ck_assert(back[i].window == u[i].window && back[i].set == u[i].set);
		update_apply(&was, &u[i]);
		update_apply(&is, &back[i]);
		ck_assert(is.micro_size == was.micro_size && is.lr == was.lr && is.clip_norm == was.clip_norm &&
			  is.clip_value == was.clip_value);
	}
	m->update[5].to[0].name = "momentum";
	manifest_take_updates(m, back, &unknown);
	ck_assert_str_eq(unknown, "momentum");
	m->update[0].to[0] = (struct manifest_value){ .name = "micro_size", .whole = UINT64_C(1) << 32 };
	manifest_take_updates(m, back, &unknown);
	ck_assert_uint_eq(back[0].to.micro_size, 0); /* which no job accepts */
	manifest_free(m);
	free(text);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("manifest");
	TCase *c = tcase_create("manifest");
	suite_add_tcase(s, c);
	tcase_add_test(c, an_outcome_goes_through_a_manifest);
	tcase_add_test(c, senseless_outcomes_are_none);
	tcase_add_test(c, updates_go_through_a_manifest);
	return suite_run(s);
}
