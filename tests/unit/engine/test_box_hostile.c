/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes at any time: requests that arrive byte by byte in any order, and memory that is scribbled over. */
#include "box_rig.h"

#include "support/box.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define SCRIBBLES 1000000
#define ORDERS 2000
#define PUBLISHED 100000

static uint64_t random_state;

static uint64_t draw(uint64_t below) /* splitmix64 */
{
	uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return (z ^ z >> 31) % below;
}

/* ---- requests that are torn ---- */

/* Stores the bytes of `q` in this order over what the cell holds, and looks after each. */
static void arrive(struct box_rig *r, const struct gacc_box_request *q, const unsigned char *order)
{
	struct box_request got;
	unsigned char *to = (unsigned char *)&r->mem->request[3];
	enum box_look found = BOX_NOTHING;
	for (size_t i = 0; i < sizeof(*q); i++) {
		ck_assert_int_eq(found, BOX_NOTHING);
		to[order[i]] = ((const unsigned char *)q)[order[i]];
		found = box_rig_look(r, 3, &got);
		bool whole = memcmp(to, q, sizeof(*q)) == 0;
		ck_assert_int_eq(found, whole ? BOX_TAKEN : BOX_NOTHING);
		if (whole)
			break;
	}
	ck_assert_int_eq(found, BOX_TAKEN);
	ck_assert_mem_eq(&got.q, q, sizeof(*q));
	box_answer(&r->cells, 3, q->seq, &(struct gacc_box_answer){ .result = 1 });
	memcpy(to, q, sizeof(*q));
}

static void shuffle(unsigned char *order, size_t n)
{
	for (size_t i = n; i-- > 1;) {
		size_t j = draw(i + 1);
		unsigned char swap = order[i];
		order[i] = order[j];
		order[j] = swap;
	}
}

START_TEST(bytes_in_any_order)
{
	struct box_rig r;
	box_rig_make(&r, RIG_TENSORS);
	for (unsigned n = 0; n < ORDERS; n++) {
		unsigned char order[sizeof(struct gacc_box_request)];
		for (size_t i = 0; i < sizeof(order); i++) /* upwards, downwards, the number first, last, at random */
			order[i] =
				(unsigned char)(n % 3 == 1 ? sizeof(order) - 1 - i : (i + 8 * (n % 3)) % sizeof(order));
		if (n >= 3)
			shuffle(order, sizeof(order));
		struct gacc_box_request q = box_rig_push((n + 1) * UINT64_C(0x9e3779b97f4a7c15));
		q.micro = (uint32_t)draw(UINT32_MAX), q.window = draw(UINT64_MAX), q.data_key = draw(UINT64_MAX);
		q.weight = 1 + (double)draw(1000), q.slot = (uint32_t)draw(RIG_SLOTS), q.lr = (double)draw(9);
		q.check = box_crc(&q, GACC_BOX_REQUEST_CHECKED);
		arrive(&r, &q, order);
	}
	box_rig_free(&r);
}
END_TEST

/* ---- requests that come while a turn goes on ---- */

static struct box_trainer interrupter;

/* A trainer that comes between any two instructions of the engine, and fills free cells in any order. */
static void publish_some(int signal_number)
{
	static uint64_t state = 1;
	for (unsigned i = 0; i < 2 * GACC_BOX_CELLS && interrupter.seq < PUBLISHED; i++) {
		uint32_t cell = (uint32_t)(state >> 33) % GACC_BOX_CELLS;
		state = state * UINT64_C(6364136223846793005) + 1;
		if (interrupter.mem->answer[cell].seq == interrupter.mem->request[cell].seq)
			box_publish(&interrupter, cell, box_rig_push(0), NULL);
	}
}

static void interrupt_every(suseconds_t us)
{
	const struct itimerval often = { { 0, us }, { 0, us } };
	ck_assert_int_eq(setitimer(ITIMER_REAL, &often, NULL), 0);
}

/* Each is taken, and none before an earlier one. */
START_TEST(requests_are_taken_in_the_order_in_which_they_were_published)
{
	struct box_rig r;
	struct box_request got[GACC_BOX_CELLS];
	const struct sigaction action = { .sa_handler = publish_some };
	uint32_t unready;
	uint64_t last = 0;
	box_rig_make(&r, RIG_TENSORS);
	interrupter = (struct box_trainer){ .mem = r.mem, .n_tensors = RIG_TENSORS };
	ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
	interrupt_every(50);
	while (last < PUBLISHED) {
		uint32_t n = box_look_all(&r.cells, got, &unready);
		for (uint32_t i = 0; i < n; i++, last++) {
			ck_assert_uint_eq(got[i].q.seq, last + 1);
			box_answer(&r.cells, got[i].cell, got[i].q.seq, &(struct gacc_box_answer){ .result = 1 });
		}
	}
	interrupt_every(0);
	box_rig_free(&r);
}
END_TEST

/* ---- scribbles ---- */

static double any_double(void)
{
	const double row[] = { 0, 1, -1, NAN, INFINITY, 5e-324, 1e308, 3 };
	return row[draw(sizeof(row) / sizeof(row[0]))];
}

static uint32_t any_small(void)
{
	const uint32_t row[] = { 0, 0, 0, 1, 2, 3, 8, 9, UINT32_MAX, 1u << 31 };
	return row[draw(sizeof(row) / sizeof(row[0]))];
}

/* Right checks, any fields. */
static void forge(struct box_rig *r, uint32_t cell)
{
	size_t bytes = gacc_box_present_bytes(r->cells.n_tensors);
	struct gacc_box_request q = { .seq = draw(50), .kind = 1 + (uint32_t)draw(2), .window = draw(4), .weight = 1 };
	if (draw(2)) {
		q.flags = any_small(), q.micro = any_small(), q.slot = any_small();
		q.weight = any_double(), q.loss = any_double(), q.loss_scale = any_double(), q.lr = any_double();
		q.ready_at = any_small(), q.ready_value = draw(3), q.reserved0 = draw(8) ? 0 : any_small();
	}
	if (draw(2)) {
		unsigned char *bits = (unsigned char *)r->mem + gacc_box_present_at(r->cells.n_tensors, cell);
		q.n_present = draw(4) ? (uint32_t)bytes : any_small();
		q.present_check = draw(4) ? box_crc(bits, bytes) : any_small();
	}
	box_rig_put(r, cell, q);
}

static void scribble(struct box_rig *r)
{
	unsigned char *at = (unsigned char *)r->mem;
	switch (draw(4)) {
	case 0: /* anywhere */
		at[draw(r->bytes)] = (unsigned char)draw(256);
		break;
	case 1: /* in the cells */
		at[128 + draw(1664 - 128)] = (unsigned char)draw(256);
		break;
	default:
		forge(r, (uint32_t)draw(GACC_BOX_CELLS));
	}
}

struct tally {
	unsigned long taken, refused, unready;
	uint64_t open[GACC_BOX_CELLS];
};

/* One look at each cell, as in a turn; some are answered, now or later. */
static void turn(struct box_rig *r, struct tally *t)
{
	struct box_request got, all[GACC_BOX_CELLS];
	uint32_t unready, n = draw(8) ? 0 : box_look_all(&r->cells, all, &unready);
	for (uint32_t i = 0; i < n; i++) {
		ck_assert(!t->open[all[i].cell] && (i == 0 || all[i].q.seq > all[i - 1].q.seq));
		t->taken++;
		t->open[all[i].cell] = all[i].q.seq;
		free(all[i].present);
	}
	for (uint32_t c = 0; c < GACC_BOX_CELLS; c++) {
		enum box_look found = box_rig_look(r, c, &got);
		t->refused += found == BOX_REFUSED;
		t->unready += found == BOX_UNREADY;
		if (found == BOX_TAKEN) {
			ck_assert(!t->open[c] && got.q.seq);
			t->taken++;
			t->open[c] = got.q.seq;
		}
		if (t->open[c] && draw(4) == 0) {
			box_answer(&r->cells, c, t->open[c], &(struct gacc_box_answer){ .result = 1 });
			t->open[c] = 0;
		}
	}
}

/* All that a turn may change are the answers, and the hint in the header. */
static void check_untouched(const struct box_rig *r, unsigned char *before)
{
	const unsigned char *now = (const unsigned char *)r->mem;
	const size_t answers = offsetof(struct gacc_box, answer), step = offsetof(struct gacc_box, step);
	const size_t cpu = offsetof(struct gacc_box_header, engine_cpu);
	ck_assert(memcmp(now, before, cpu) == 0);
	ck_assert(memcmp(now + cpu + 4, before + cpu + 4, answers - cpu - 4) == 0);
	ck_assert(memcmp(now + step, before + step, r->bytes - step) == 0);
}

START_TEST(a_million_scribbles)
{
	struct box_rig mine, other;
	struct tally t = { 0 };
	box_rig_make(&mine, RIG_TENSORS);
	box_rig_make(&other, RIG_TENSORS);
	box_rig_put(&other, 1, box_rig_push(1));
	unsigned char *before = malloc(mine.bytes), *others = malloc(other.bytes);
	memcpy(others, other.mem, other.bytes);
	for (unsigned long i = 0; i < SCRIBBLES; i++) {
		scribble(&mine);
		bool look_closely = i % 16 == 0;
		if (look_closely)
			memcpy(before, mine.mem, mine.bytes);
		turn(&mine, &t);
		if (look_closely)
			check_untouched(&mine, before);
		if (i % 5000 == 0) { /* a successor */
			box_rig_restart(&mine);
			memset(t.open, 0, sizeof(t.open));
		}
	}
	ck_assert_mem_eq(others, other.mem, other.bytes);
	ck_assert(t.taken > SCRIBBLES / 100 && t.refused > SCRIBBLES / 100 && t.unready > SCRIBBLES / 1000);
	struct box_request got;
	ck_assert_int_eq(box_rig_look(&other, 1, &got), BOX_TAKEN);
	free(before);
	free(others);
	box_rig_free(&mine);
	box_rig_free(&other);
}
END_TEST

Suite *box_hostile_suite(void);
Suite *box_hostile_suite(void)
{
	Suite *s = suite_create("mailbox, any bytes");
	TCase *t = tcase_create("hostile");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, bytes_in_any_order);
	tcase_add_test(t, requests_are_taken_in_the_order_in_which_they_were_published);
	tcase_add_test(t, a_million_scribbles);
	suite_add_tcase(s, t);
	return s;
}
