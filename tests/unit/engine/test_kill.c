/* SPDX-License-Identifier: Apache-2.0 */
/* Death at any moment, in passes, flips, updates and between: a successor over the same descriptors, to which the
 * unanswered commands are sent again, ends with the very bits of an undisturbed run. */
#include "rig.h"

#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOWS 6
#define MAX_OPEN 32

/* gaccd's part: the commands that have no answer yet, in the order in which they were sent. */
struct driver {
	struct rig rig;
	struct engine_command open[MAX_OPEN];
	int n_open;
	uint64_t random;
	enum { SPARE, KILL, EXHAUST } how; /* SIGKILL from outside, or CPU time that runs out inside */
	long cpu_us;			   /* of a life, at most: more with every death, so that slow builds get on */
	int kills, in_update, in_update_held, in_pass, after_flip; /* where the deaths were */
};

/* What a run leaves behind. */
struct trace {
	void *data[4];
	size_t bytes[4];
	uint64_t digest[WINDOWS];
	double sumsq[WINDOWS], sum_weight[WINDOWS];
	uint64_t sum_digest[WINDOWS], count[WINDOWS];
};

static uint64_t draw(struct driver *d, uint64_t below)
{
	return (d->random = rig_mix(d->random)) % below;
}

static void post(struct driver *d, struct engine_command c)
{
	ck_assert_int_lt(d->n_open, MAX_OPEN);
	c.id = rig_send(&d->rig, c);
	d->open[d->n_open++] = c;
}

static void note_death(struct driver *d)
{
	bool corrupt;
	d->kills++;
	if (!control_page_read(&d->rig.page, &d->rig.state, &corrupt))
		return;
	d->in_pass += d->rig.state.r.n_zero == 0 && d->rig.state.r.phase == WINDOW_OPEN && d->n_open;
	d->after_flip += d->rig.state.r.n_zero != 0;
	d->in_update += d->rig.state.r.phase == WINDOW_APPLYING;
	for (uint32_t i = 0; d->rig.state.r.phase == WINDOW_APPLYING && i < d->rig.page.shares; i++)
		if (control_page_stamp(&d->rig.page, i)->state & UNDO_HELD) {
			d->in_update_held++;
			return;
		}
}

/* A successor may die before its HELLO, too: while it finishes what its predecessor began. */
static void succeed(struct driver *d)
{
	struct engine_answer hello;
	for (;;) {
		rig_kill(&d->rig);
		note_death(d);
		d->cpu_us += d->cpu_us / 64;
		d->rig.cpu_us = d->how == EXHAUST ? 1 + (long)draw(d, (uint64_t)d->cpu_us) : 0;
		rig_spawn(&d->rig);
		if (d->how == KILL && draw(d, 3) == 0)
			for (volatile uint64_t i = draw(d, UINT64_C(1) << (8 + draw(d, 14))); i; i--)
				;
		else if (rig_receive(&d->rig, &hello))
			break;
	}
	ck_assert_msg(hello.op == ENGINE_START && hello.status == ST_OK, "start: %u %s", hello.status, hello.text);
	for (int i = 0; i < d->n_open; i++)
		d->open[i].id = rig_send(&d->rig, d->open[i]);
}

static uint64_t stamps(const struct rig *r)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < r->page.shares; i++)
		sum += atomic_load(&control_page_stamp(&r->page, i)->state) * (i + 1);
	return sum;
}

static uint64_t newest(const struct rig *r)
{
	uint64_t a = *(volatile uint64_t *)r->page.base;
	uint64_t b = *(volatile uint64_t *)(r->page.base + r->page.record_bytes);
	return a > b ? a : b;
}

/* Waits a bounded while for a moment worth dying in, then a little longer. */
static void lie_in_wait(struct driver *d, bool for_update)
{
	const struct rig *r = &d->rig;
	size_t bytes = rig_bytes(r, SEG_ACCUM0, 0), at = draw(d, bytes / 8);
	volatile uint64_t *sum[2] = { rig_data(r, SEG_ACCUM0, 0), rig_data(r, SEG_ACCUM1, 0) };
	uint64_t what = for_update ? 0 : draw(d, 4), spin = UINT64_C(1) << (4 + draw(d, 12)),
		 before[2] = { sum[0][at], sum[1][at] };
	uint64_t stamp = stamps(r), seq = newest(r);
	for (int i = 0; i < 100000; i++)
		if ((what == 0 && stamps(r) != stamp) ||				   /* an update moves */
		    (what == 1 && newest(r) != seq) ||					   /* a record was published */
		    (what == 2 && (sum[0][at] != before[0] || sum[1][at] != before[1])) || /* a pass came by */
		    (what == 3 && i == 1000))
			break;
	for (volatile uint64_t i = draw(d, spin); i; i--)
		;
}

static void perhaps_kill(struct driver *d)
{
	bool commit = d->n_open && d->open[0].op == ENGINE_COMMIT; /* rare, and the longest way to get lost on */
	while (d->how == KILL && draw(d, commit ? 2 : 4) == 0) {
		lie_in_wait(d, commit);
		succeed(d);
	}
}

/* Next answer, taken off the open commands. Answers of a former life were lost with its socket. */
static struct engine_answer await(struct driver *d, struct engine_command *of)
{
	struct engine_answer a;
	perhaps_kill(d);
	while (!rig_receive(&d->rig, &a)) {
		ck_assert_int_eq(d->how, EXHAUST);
		succeed(d);
	}
	for (int i = 0; i < d->n_open; i++)
		if (d->open[i].id == a.id) {
			*of = d->open[i];
			memmove(&d->open[i], &d->open[i + 1], (size_t)(--d->n_open - i) * sizeof(d->open[0]));
			ck_assert_msg(a.status == ST_OK, "op %u: status %u %s", a.op, a.status, a.text);
			return a;
		}
	ck_abort_msg("an answer to nothing");
	return a;
}

static struct engine_answer ask(struct driver *d, struct engine_command c)
{
	struct engine_command of;
	post(d, c);
	return await(d, &of);
}

static bool is_bad(uint64_t window, uint32_t k)
{
	return rig_mix(window * 64 + k) % 7 == 0;
}

static bool zeroes(uint32_t k)
{
	return k % 2;
}

static bool slot_is_zero(const struct rig *r, uint32_t slot)
{
	const unsigned char *p = rig_data(r, SEG_SLOT, slot);
	return p[0] == 0 && memcmp(p, p + 1, r->plan->slot_bytes - 1) == 0;
}

static void check_push(struct driver *d, const struct engine_command *c, const struct engine_answer *a, uint64_t window)
{
	bool bad = d->rig.config.reject_nonfinite && is_bad(window, c->slot);
	ck_assert_int_eq(c->op, ENGINE_ADD);
	ck_assert_msg(bad ? a->result == VOID : a->result == COUNTED || a->result == DUPLICATE, "result %u", a->result);
	ck_assert(slot_is_zero(&d->rig, c->slot) == zeroes(c->slot));
}

/* All pushes of a window, up to a few at a time: ranks in a random order, each with its own in ascending order. */
static void push_all(struct driver *d, uint64_t window)
{
	struct rig *r = &d->rig;
	uint32_t n = r->plan->slots, m = r->config.micro_size, order[16], next[16] = { 0 };
	struct engine_command of;
	rig_shuffle(order, n, draw(d, UINT64_MAX));
	for (uint32_t i = 0; i < n; i++) {
		uint32_t rank = order[i] / m, k = rank * m + next[rank]++;
		rig_fill_slot(r, k, window * 100 + k);
		if (is_bad(window, k) && r->config.reject_nonfinite)
			rig_set_gradient(r, k, 0, k * 100, INFINITY);
		struct engine_command c = rig_add_command(r, k / m, k % m, 1 + k);
		c.zero_after = zeroes(k);
		post(d, c);
	}
	while (d->n_open) {
		struct engine_answer a = await(d, &of);
		check_push(d, &of, &a, window);
	}
}

static void run_window(struct driver *d, uint64_t window, struct trace *t)
{
	struct rig *r = &d->rig;
	bool client = r->config.optim.type == OPTIM_CLIENT;
	r->window = window;
	push_all(d, window);
	struct engine_answer a = ask(d, (struct engine_command){ .op = ENGINE_CLOSE, .window = window });
	t->count[window] = a.count;
	t->sum_weight[window] = a.sum_weight;
	a = ask(d, (struct engine_command){ .op = ENGINE_GO, .window = window, .term = 1, .attempt = 1 });
	t->sumsq[window] = a.sumsq;
	t->sum_digest[window] = a.digest;
	r->applied_step = window - window / 3; /* every third is skipped */
	bool applied = window % 3 != 2;
	struct engine_command c = rig_commit_command(r, applied ? 1 : 2, 0.125, 0.01);
	a = ask(d, c);
	t->digest[window] = a.digest;
	struct status_page *page = rig_data(r, SEG_STATUS, 0);
	ck_assert_uint_eq(page->seq % 2, 0);
	ck_assert_uint_eq(page->window, window + 1);
	if (client && applied) {
		/* trainers read their gradient, then say so */
		const uint32_t *v = rig_data(r, SEG_ACCUM0 + 1 - a.x, 0);
		t->digest[window] = 0;
		for (uint64_t i = 0; i < r->plan->n_elements; i++)
			t->digest[window] += rig_mix(i ^ (uint64_t)v[i] << 32);
		ask(d, (struct engine_command){ .op = ENGINE_ACK_STEP, .window = window, .last = true });
	}
}

static void take_trace(struct driver *d, struct trace *t)
{
	const struct rig *r = &d->rig;
	for (int i = 0; i < r->n_segments; i++) {
		uint32_t role = r->segment[i].header->role, k = role - SEG_PARAMS;
		if (role < SEG_PARAMS || role > SEG_STATE1)
			continue;
		t->bytes[k] = r->segment[i].data_bytes;
		t->data[k] = malloc(t->bytes[k]);
		memcpy(t->data[k], r->segment[i].data, t->bytes[k]);
	}
}

static void run(struct driver *d, const struct rig_config *c, uint64_t seed, int how, struct trace *t)
{
	d->n_open = 0;
	d->random = seed;
	d->how = how;
	d->cpu_us = 8000;
	memset(t, 0, sizeof(*t));
	rig_open(&d->rig, c);
	rig_start(&d->rig);
	if (how == EXHAUST)
		succeed(d);
	ask(d, (struct engine_command){ .op = ENGINE_INIT_PARAMS });
	for (uint32_t i = 0; i < c->ranks; i++)
		ask(d, (struct engine_command){ .op = ENGINE_ATTACH, .rank = i, .sgen = 1 });
	for (uint64_t w = 0; w < WINDOWS; w++)
		run_window(d, w, t);
	take_trace(d, t);
	rig_kill(&d->rig);
	rig_close(&d->rig);
}

static void assert_same(const struct trace *a, const struct trace *b)
{
	for (int i = 0; i < 4; i++) {
		ck_assert_uint_eq(a->bytes[i], b->bytes[i]);
		ck_assert(!a->bytes[i] || memcmp(a->data[i], b->data[i], a->bytes[i]) == 0);
	}
	ck_assert_mem_eq(a->digest, b->digest, sizeof(a->digest));
	ck_assert_mem_eq(a->sum_digest, b->sum_digest, sizeof(a->sum_digest));
	ck_assert_mem_eq(a->sumsq, b->sumsq, sizeof(a->sumsq));
	ck_assert_mem_eq(a->sum_weight, b->sum_weight, sizeof(a->sum_weight));
	ck_assert_mem_eq(a->count, b->count, sizeof(a->count));
}

static void free_trace(struct trace *t)
{
	for (int i = 0; i < 4; i++)
		free(t->data[i]);
}

static const struct {
	struct optim_config optim;
	bool reject, no_master;
	enum dtype acc;
	uint32_t threads;
} cases[] = {
	{ { .type = OPTIM_ADAMW, .lr = 1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
	  false,
	  false,
	  DTYPE_F32,
	  2 },
	{ { .type = OPTIM_SGD, .lr = 1, .momentum = 0.9 }, true, true, DTYPE_F32, 3 },
	{ { .type = OPTIM_ADAM, .lr = 1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8 }, true, false, DTYPE_F64, 1 },
	{ { .type = OPTIM_CLIENT, .lr = 1 }, false, false, DTYPE_F32, 2 },
	{ { .type = OPTIM_LAMB, .lr = 1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1 },
	  false,
	  false,
	  DTYPE_F32,
	  2 },
};
#define N_CASES 5
#define DEATHS(how) ((how) == KILL ? 150 : 60) /* of a case */

START_TEST(any_death_leaves_the_bits_of_an_undisturbed_run)
{
	struct rig_config c = rig_large();
	struct driver d = { .kills = 0 };
	struct trace want, got;
	c.optim = cases[_i % N_CASES].optim;
	c.reject_nonfinite = cases[_i % N_CASES].reject;
	c.no_master = cases[_i % N_CASES].no_master;
	c.acc_dtype = cases[_i % N_CASES].acc;
	c.threads = cases[_i % N_CASES].threads;
	c.micro_size = 3;
	c.tensor[0].shape[0] = 300001;
	c.init = (struct init_rule){ INIT_NORMAL, 0, 1 };
	run(&d, &c, 1, SPARE, &want);
	const int how = _i < N_CASES ? KILL : EXHAUST;
	for (uint64_t seed = 0; d.kills < DEATHS(how); seed++) {
		run(&d, &c, 100 * (uint64_t)_i + seed, how, &got);
		assert_same(&want, &got);
		free_trace(&got);
	}
	printf("case %d: %d deaths, %d with open pushes, %d in updates (%d with a held chunk), %d before zeroing\n", _i,
	       d.kills, d.in_pass, d.in_update, d.in_update_held, d.after_flip);
	free_trace(&want);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("kill");
	TCase *t = tcase_create("kill");
	tcase_set_timeout(t, 280);
	tcase_add_loop_test(t, any_death_leaves_the_bits_of_an_undisturbed_run, 0, 2 * N_CASES);
	suite_add_tcase(s, t);
	return suite_run(s);
}
