/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer state in shares: what each part's file has of each tensor, and that files of any division make the
 * whole again, and of nothing else. Pure: no files, no engine. */
#include "engine/snapshot_files.h"
#include "support/suite.h"

#include <check.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 6, NAME = 40 };

/* Two groups of dtypes; the first tensor is cut by each division, "odd" has a name like a slice's. */
static const struct {
	const char *name;
	uint64_t start, count;
	int64_t shape[2];
	uint32_t n_dims, group;
	int32_t alias;
} rows[TENSORS] = {
	{ "w", 0, 300 * 160, { 300, 160 }, 2, 0, -1 }, { "odd[0:5]", 48000, 33, { 33 }, 1, 0, -1 },
	{ "scalar", 48064, 1, { 0 }, 0, 0, -1 },       { "half", 49152, 20000, { 20000 }, 1, 1, -1 },
	{ "half.b", 69152, 7, { 7 }, 1, 1, -1 },       { "tied", 0, 300 * 160, { 300, 160 }, 2, 0, 0 },
};

static struct job {
	struct plan p;
	struct plan_tensor tensor[TENSORS];
	char names[TENSORS * NAME];
} job;

static void setup(void)
{
	memset(&job, 0, sizeof(job));
	job.p = (struct plan){ .master = 1,
			       .n_groups = 2,
			       .group = { { .start = 0, .count = 49152, .param_dtype = DTYPE_F32 },
					  { .start = 49152, .count = 20480, .param_dtype = DTYPE_BF16 } },
			       .optim = { .type = OPTIM_ADAMW, .lr = 1, .beta1 = 0.5, .beta2 = 0.5, .eps = 1 },
			       .n_elements = 49152 + 20480,
			       .n_tensors = TENSORS,
			       .tensors_offset = offsetof(struct job, tensor),
			       .names_offset = offsetof(struct job, names),
			       .names_bytes = sizeof(job.names),
			       .n_parts = 1 };
	for (int i = 0; i < TENSORS; i++) {
		job.tensor[i] = (struct plan_tensor){ .start = rows[i].start,
						      .count = rows[i].count,
						      .dtype_group = rows[i].group,
						      .alias = rows[i].alias,
						      .n_dims = rows[i].n_dims,
						      .shape = { rows[i].shape[0], rows[i].shape[1] },
						      .name_offset = (uint64_t)i * NAME };
		snprintf(job.names + (size_t)i * NAME, NAME, "%s", rows[i].name);
	}
}

static struct snapshot_list list_of(uint32_t part, uint32_t n_parts)
{
	struct snapshot_list l;
	job.p.part = part;
	job.p.n_parts = n_parts;
	job.p.n_shards = n_parts;
	ck_assert_int_eq(snapshot_list_init(&l, &job.p, CHECKPOINT_OPTIMIZER, 0, snapshot_span_own(&job.p)), ST_OK);
	return l;
}

static char why[256];

/* All of the share's tensors. */
static enum status add_all(struct snapshot_cover *c, const struct snapshot_list *l)
{
	enum status st = ST_OK;
	for (uint64_t i = 0; i < l->n && !st; i++) {
		const struct snapshot_entry *e = &l->entry[i];
		uint64_t entry, from;
		st = snapshot_cover_add(c, "f", &e->safe, &entry, &from, why, sizeof(why));
		if (st)
			break;
		const struct snapshot_entry *of = &c->whole->entry[entry];
		ck_assert_uint_eq(of->offset + from * sizeof(float), e->offset);
		ck_assert_int_eq(c->whole->section[of->section].role, l->section[e->section].role);
	}
	return st;
}

START_TEST(shares_of_any_division_are_the_whole)
{
	struct snapshot_list whole = list_of(0, 1);
	struct snapshot_cover c;
	ck_assert_uint_eq(whole.n, 2 * 5 + 2); /* m and v of all but the alias, masters of two */
	ck_assert_int_eq(snapshot_cover_init(&c, &whole), ST_OK);
	for (uint32_t s = 0; s < (uint32_t)_i; s++) {
		struct snapshot_list l = list_of(s, (uint32_t)_i);
		const struct snapshot_span own = snapshot_span_own(&job.p);
		uint64_t elements = 0;
		for (uint64_t i = 0; i < l.n; i++) {
			const struct snapshot_entry *e = &l.entry[i];
			uint64_t n = 1;
			for (int k = 0; k < e->safe.n_dims; k++)
				n *= e->safe.shape[k];
			elements += n;
			ck_assert_uint_ge(e->offset, own.from * sizeof(float));
			ck_assert_uint_le(e->offset + n * sizeof(float), own.end * sizeof(float));
		}
		ck_assert(elements <= 3 * (own.end - own.from));
		ck_assert_msg(!add_all(&c, &l), "%s", why);
		if (s + 1 < (uint32_t)_i)
			ck_assert_int_eq(snapshot_cover_end(&c, why, sizeof(why)), ST_MALFORMED);
		snapshot_list_fini(&l);
	}
	ck_assert_msg(!snapshot_cover_end(&c, why, sizeof(why)), "%s", why);
	snapshot_cover_fini(&c);
	snapshot_list_fini(&whole);
}
END_TEST

START_TEST(a_share_names_what_it_has_of_a_tensor)
{
	struct snapshot_list l = list_of(1, 3); /* from 24576 to 49152 */
	ck_assert_str_eq(l.entry[0].safe.name, "w.exp_avg[24576:48000]");
	ck_assert(l.entry[0].safe.n_dims == 1 && l.entry[0].safe.shape[0] == 48000 - 24576);
	ck_assert_str_eq(l.entry[1].safe.name, "odd[0:5].exp_avg");
	ck_assert(l.entry[2].safe.n_dims == 0 && !strcmp(l.entry[2].safe.name, "scalar.exp_avg"));
	ck_assert_uint_eq(l.n, 6);
	snapshot_list_fini(&l);
	l = list_of(2, 3);
	ck_assert_str_eq(l.entry[0].safe.name, "half.master");
	ck_assert_uint_eq(l.n, 6);
	snapshot_list_fini(&l);
	l = list_of(3, 16); /* of a tensor both ends are cut */
	ck_assert_str_eq(l.entry[0].safe.name, "w.exp_avg[8192:16384]");
	snapshot_list_fini(&l);
}
END_TEST

START_TEST(parameters_are_whole_in_each_part)
{
	struct snapshot_list l;
	job.p.part = 1;
	job.p.n_parts = 3;
	job.p.n_shards = 3;
	ck_assert_int_eq(snapshot_list_init(&l, &job.p, CHECKPOINT_MODEL, 0, snapshot_span_all(&job.p)), ST_OK);
	ck_assert_uint_eq(l.n, 5);
	ck_assert_str_eq(l.entry[0].safe.name, "w");
	snapshot_list_fini(&l);
}
END_TEST

START_TEST(names_of_slices)
{
	static const struct {
		const char *name;
		size_t n_name; /* 0: it is no slice */
		uint64_t from, end;
	} cases[] = {
		{ "w.exp_avg[0:8192]", 9, 0, 8192 },
		{ "a[1:2].exp_avg[10:20]", 14, 10, 20 },
		{ "[0:1]", 0, 0, 0 }, /* overwritten below: a name may be empty here */
		{ "w.exp_avg", 0, 0, 0 },
		{ "w.exp_avg[0:8192", 0, 0, 0 },
		{ "w.exp_avg[0:8192] ", 0, 0, 0 },
		{ "w.exp_avg[:8192]", 0, 0, 0 },
		{ "w.exp_avg[0:]", 0, 0, 0 },
		{ "w.exp_avg[-1:5]", 0, 0, 0 },
		{ "w.exp_avg[ 1:5]", 0, 0, 0 },
		{ "w.exp_avg[01:5]", 0, 0, 0 },
		{ "w.exp_avg[1-5]", 0, 0, 0 },
		{ "a[0:5].exp_avg", 0, 0, 0 },
	};
	struct snapshot_slice s;
	size_t n;
	const bool is = snapshot_slice_of(cases[_i].name, &n, &s);
	if (_i == 2) {
		ck_assert(is && n == 0);
		return;
	}
	ck_assert_int_eq(is, cases[_i].n_name != 0);
	ck_assert_uint_eq(n, is ? cases[_i].n_name : strlen(cases[_i].name));
	ck_assert(!is || (s.from == cases[_i].from && s.end == cases[_i].end));
}
END_TEST

/* The tensor of a file of three shares, altered: which status and words, and behind which share. */
START_TEST(what_is_no_share_is_refused)
{
	static const struct {
		const char *name;
		int n_dims;
		uint64_t shape[2];
		enum safe_dtype dtype;
		enum status status;
		const char *says;
	} cases[] = {
		{ "w.exp_avg[24576:48000]", 1, { 23424 }, SAFE_F32, ST_OK, "" },
		{ "w.exp_avg[24576:30000]", 1, { 5424 }, SAFE_F32, ST_OK, "" }, /* shares may be cut anywhere */
		{ "w.exp_avg[24575:48000]", 1, { 23425 }, SAFE_F32, ST_MALFORMED, "at element 24576" },
		{ "w.exp_avg[24577:48000]", 1, { 23423 }, SAFE_F32, ST_MALFORMED, "does not go on" },
		{ "w.exp_avg[24576:48001]", 1, { 23425 }, SAFE_F32, ST_MALFORMED, "does not go on" },
		{ "w.exp_avg[24576:24576]", 1, { 0 }, SAFE_F32, ST_MALFORMED, "does not go on" },
		{ "w.exp_avg", 2, { 300, 160 }, SAFE_F32, ST_MALFORMED, "does not go on" },
		{ "w.exp_avg[24576:48000]", 1, { 23425 }, SAFE_F32, ST_LAYOUT_MISMATCH, "another shape" },
		{ "w.exp_avg[48000:24576]", 1, { UINT64_MAX - 23423 }, SAFE_F32, ST_LAYOUT_MISMATCH, "another shape" },
		{ "w.exp_avg[24576:48000]", 2, { 23424, 1 }, SAFE_F32, ST_LAYOUT_MISMATCH, "another shape" },
		{ "w.exp_avg[24576:48000]", 1, { 23424 }, SAFE_F64, ST_LAYOUT_MISMATCH, "dtype" },
		{ "w.master[24576:48000]", 1, { 23424 }, SAFE_F32, ST_LAYOUT_MISMATCH, "no part of the job's state" },
		{ "x.exp_avg", 1, { 33 }, SAFE_F32, ST_LAYOUT_MISMATCH, "no part of the job's state" },
		{ "odd[0:5].exp_avg", 1, { 33 }, SAFE_F32, ST_OK, "" },
		{ "odd[0:5].exp_avg", 1, { 34 }, SAFE_F32, ST_LAYOUT_MISMATCH, "another shape" },
		{ "half", 1, { 20000 }, SAFE_F32, ST_LAYOUT_MISMATCH, "no part" },
		{ "half.exp_av", 1, { 20000 }, SAFE_F32, ST_LAYOUT_MISMATCH, "no part" },
		{ "half.exp_avg_sq", 1, { 20000 }, SAFE_F32, ST_OK, "" },
	};
	struct snapshot_list whole = list_of(0, 1), first = list_of(0, 3);
	struct snapshot_cover c;
	struct safe_tensor t = { .name = cases[_i].name, .dtype = cases[_i].dtype, .n_dims = cases[_i].n_dims };
	uint64_t entry, from;
	memcpy(t.shape, cases[_i].shape, sizeof(cases[_i].shape));
	ck_assert_int_eq(snapshot_cover_init(&c, &whole), ST_OK);
	ck_assert_msg(!add_all(&c, &first), "%s", why);
	ck_assert_int_eq(snapshot_cover_add(&c, "f", &t, &entry, &from, why, sizeof(why)), cases[_i].status);
	ck_assert_msg(!cases[_i].status || (strstr(why, cases[_i].says) && strstr(why, cases[_i].name)), "%s", why);
	snapshot_cover_fini(&c);
	snapshot_list_fini(&first);
	snapshot_list_fini(&whole);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("shares in files");
	TCase *t = tcase_create("shares in files");
	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_loop_test(t, shares_of_any_division_are_the_whole, 2, PLAN_MAX_PARTS + 1);
	tcase_add_test(t, a_share_names_what_it_has_of_a_tensor);
	tcase_add_test(t, parameters_are_whole_in_each_part);
	tcase_add_loop_test(t, names_of_slices, 0, 13);
	tcase_add_loop_test(t, what_is_no_share_is_refused, 0, 18);
	suite_add_tcase(s, t);
	return suite_run(s);
}
