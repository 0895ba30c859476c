/* SPDX-License-Identifier: Apache-2.0 */
/* Shares that other parts own than the ones with their numbers, and gathers inside groups of parts; of each
 * implementation. */
#include "rig.h"

#include "support/suite.h"

#include <check.h>
#include <string.h>

/* Parts 0 to 5 in groups of 3. Two shares of each third of the memory: parts 0 and 3 own one each of the first third, 1
 * and 4 of the second, 2 and 5 of the last. */
static const struct coll_division thirds = { .n_shares = 3, .owns = { 0, 1, 2, 0, 1, 2 }, .group = 3 },
				  halves = { .n_shares = 6, .owns = { 0, 2, 4, 1, 3, 5 }, .group = 3, .across = 1 },
				  all = { .n_shares = 6, .owns = { 0, 2, 4, 1, 3, 5 } };
static const uint64_t by_third[] = { 0, 100, 204, 300 }, by_half[] = { 0, 40, 100, 152, 204, 204, 300 };

struct summed {
	unsigned char *out;
	uint32_t n_sources;
};

static enum status sum_bytes(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	struct summed *t = arg;
	t->n_sources = n;
	for (size_t i = 0; i < p->n; i++)
		for (uint32_t s = 0; s < n; s++)
			t->out[p->from + i] =
				(unsigned char)(t->out[p->from + i] * 2 + ((const unsigned char *)source[s])[i]);
	return ST_OK;
}

static enum status mark(void *arg, const struct coll_piece *p)
{
	memset((unsigned char *)arg + p->from, 0x55, p->n);
	return ST_OK;
}

/* What a sum over all parts has at byte i, by sum_bytes: part s has given s + i / 10 there. */
static unsigned char sum_at(uint32_t i)
{
	unsigned char sum = 0;
	for (uint32_t s = 0; s < 6; s++)
		sum = (unsigned char)(sum * 2 + s + i / 10);
	return sum;
}

static bool owns(const struct coll_division *d, const uint64_t *bounds, uint32_t part, uint32_t i)
{
	return i >= bounds[d->owns[part]] && i < bounds[d->owns[part] + 1];
}

/* The sum of each half is made by one part, and given to the other that has the same third; then each group gathers
 * what it has changed of the thirds. */
static void act_groups(struct actor *a)
{
	unsigned char in[300], out[300] = { 0 };
	struct summed t = { out, 0 };
	for (uint32_t i = 0; i < 300; i++)
		in[i] = (unsigned char)(a->part + i / 10);
	const struct coll_exchange x = { in, by_half, 8, 4, sum_bytes, &t, &all };
	a->status = coll_exchange(a->c, &x);
	for (uint32_t i = 0; i < 300 && !a->status; i++)
		if (out[i] != (owns(&all, by_half, a->part, i) ? sum_at(i) : 0))
			a->wrong = "the sum of a share is not at its owner, or elsewhere";
	struct coll_gather g = { .buffer = out, .bounds = by_half, .piece = 7, .division = &halves };
	if (!a->status)
		a->status = coll_gather(a->c, &g);
	for (uint32_t i = 0; i < 300 && !a->status && !a->wrong; i++)
		if (out[i] != (owns(&thirds, by_third, a->part, i) ? sum_at(i) : 0))
			a->wrong = "a part has not the sum of its third, or another's";
	memset(out, (int)a->part, sizeof(out));
	g = (struct coll_gather){ .buffer = out, .bounds = by_third, .piece = 7, .division = &thirds };
	if (a->part == 4) {
		g.produce = mark;
		g.arg = out;
	}
	if (!a->status)
		a->status = coll_gather(a->c, &g);
	for (uint32_t i = 0; i < 300 && !a->status && !a->wrong; i++) {
		const uint32_t owner = (i < 100 ? 0 : i < 204 ? 1 : 2) + a->part / 3 * 3;
		if (out[i] != (owner == 4 ? 0x55 : owner))
			a->wrong = "a part has not the thirds of its own group";
	}
}

START_TEST(groups_share_among_themselves)
{
	struct rig r = { 0 };
	struct actor a[6];
	rig_open(&r, 6);
	rig_join(&r);
	rig_run(&r, a, act_groups, 0, NULL);
	for (uint32_t part = 0; part < 6; part++)
		ck_assert_msg(!a[part].status && !a[part].wrong, "part %u: status %d, %s", part, (int)a[part].status,
			      a[part].wrong ? a[part].wrong : "");
	rig_close(&r);
}
END_TEST

int main(void)
{
	Suite *s = suite_create(over_gloo ? "coll_groups over Gloo" : "coll_groups");
	TCase *t = tcase_create("coll_groups");
	tcase_add_test(t, groups_share_among_themselves);
	suite_add_tcase(s, t);
	return suite_run(s);
}
