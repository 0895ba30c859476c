/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator of coord_comm_rig.h, with its fake nodes and store. */
#include "coord_comm_rig.h"

#include "coll/board.h"
#include "control/coord_impl.h"
#include "engine/control_page.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

bool limited, slots_free, slots_wanted, slots_held;
unsigned n_slots_given;
bool collectives, spec_restores, spec_inits, unchecked;
struct job_spec spec;
struct coord *coord;
struct now now;
struct report node[D];
struct order order[D];
struct part_board board;
uint64_t lives[D];
char bytes[D][40];
unsigned n_boards[D];
struct commit stored;
char last_event[32], last_text[400], end_reason[300];

static struct rank_progress rank[D];
static uint64_t bits[D];
static const struct part_ranks parts[D] = { { 1, (const uint32_t[]){ 0 } },
					    { 1, (const uint32_t[]){ 1 } },
					    { 1, (const uint32_t[]){ 2 } } };

/* ---- ports ---- */

static void on_order(void *ctx, uint32_t part, const struct order *o)
{
	order[part] = *o;
	if (unchecked)
		return;
	ck_assert(!o->fill_part || o->comm);
	ck_assert(!collectives || o->want != WANT_GO || (o->comm && o->comm <= o->attempt));
}
static void on_board(void *ctx, uint32_t part, const struct part_board *b)
{
	ck_assert_uint_eq(b->n_parts, D);
	board = *b;
	for (uint32_t i = 0; i < D; i++) {
		lives[i] = b->address[i].life;
		snprintf(bytes[i], sizeof(bytes[i]), "%.*s", (int)b->address[i].n_blob,
			 (const char *)b->address[i].blob);
	}
	n_boards[part]++;
}
static void on_persist(void *ctx, const struct commit *k, const uint64_t *counted, uint32_t n)
{
	stored = *k;
}
static void on_end(void *ctx, uint64_t job, enum status st, const char *reason)
{
	snprintf(end_reason, sizeof(end_reason), "%s: %s", status_info(st)->name, reason);
}
static void on_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t r, const char *text)
{
	snprintf(last_event, sizeof(last_event), "%s", reason);
	snprintf(last_text, sizeof(last_text), "%s", text);
}
static void on_changed(void *ctx, uint64_t job)
{
}
static void on_norms(void *ctx, const struct commit *k)
{
}

static bool on_ask(void *ctx, struct now n)
{
	slots_wanted = true;
	slots_held |= slots_free;
	return slots_held;
}
static void on_give(void *ctx, struct now n)
{
	ck_assert(slots_wanted);
	slots_wanted = slots_held = false;
	n_slots_given++;
}
static void on_waits(void *ctx, char *text, size_t n, struct now at)
{
	snprintf(text, n, "an exchange slot on node b: job 3 exchanges");
}

static const struct coord_ports ports = { .order = on_order,
					  .board = on_board,
					  .persist_commit = on_persist,
					  .persist_end = on_end,
					  .event = on_event,
					  .changed = on_changed,
					  .norms = on_norms };

/* ---- the coordinator ---- */

void reopen(uint64_t term)
{
	struct coord_ports own = ports;
	if (limited) {
		own.exchange_ask = on_ask;
		own.exchange_give = on_give;
		own.exchange_waits = on_waits;
	}
	coord_free(coord);
	memset(order, 0, sizeof(order));
	ck_assert_int_eq(coord_new(&coord, 1, &spec, term, D, parts, &own), ST_OK);
	if (collectives)
		ck_assert_int_eq(coord_set_collectives(coord, STALL), ST_OK);
}

void open_coord(void)
{
	static struct spec_init init;
	spec.restores = spec_restores;
	spec.init = spec_inits ? &init : NULL;
	spec.n_init = spec_inits;
	*last_event = *last_text = *end_reason = '\0';
	reopen(5);
}

void setup(void)
{
	const char *field;
	char why[200];
	spec = (struct job_spec){ .name = "t", .ranks = D, .micro_size = 2, .master_f32 = true };
	spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_OK);
	now = (struct now){ 1000 * SECOND, 5000 * SECOND };
	collectives = true;
	limited = slots_wanted = slots_held = false;
	slots_free = true;
	n_slots_given = 0;
	spec_restores = spec_inits = unchecked = false;
	coord = NULL;
	memset(n_boards, 0, sizeof(n_boards));
	for (uint32_t i = 0; i < D; i++) {
		rank[i] = (struct rank_progress){ .rank = i, .attached = 1 };
		node[i] = (struct report){ .job_id = 1, .epoch = 1, .incarnation = 1, .start = START_ALLOCATED };
		node[i].life = 100 + i;
		bits[i] = 3;
	}
}

void teardown(void)
{
	coord_free(coord);
}

unsigned boards_known(void)
{
	return board_count(coord->comm.board);
}

/* ---- nodes ---- */

void tell(uint32_t i)
{
	char why[200];
	node[i].part = i;
	node[i].number++;
	node[i].rank = &rank[i];
	node[i].n_ranks = 1;
	node[i].counted = node[i].phase >= WINDOW_CLOSED ? &bits[i] : NULL;
	node[i].n_words = 1;
	coord_on_report(coord, &node[i], now);
	if (unchecked)
		return;
	ck_assert_msg(!coord_counts_wrong(coord, why, sizeof(why)), "%s", why);
}

void tick(int64_t after_ns)
{
	char why[200];
	now.mono_ns += after_ns;
	now.unix_ns += after_ns;
	coord_tick(coord, now);
	ck_assert_msg(!coord_counts_wrong(coord, why, sizeof(why)), "%s", why);
}

const char *blob_of(uint32_t i)
{
	static char text[40];
	snprintf(text, sizeof(text), "engine %llu", (unsigned long long)node[i].life);
	return text;
}

struct part_blob blob(uint32_t i)
{
	const char *text = blob_of(i);
	return (struct part_blob){ .job_id = 1,
				   .epoch = 1,
				   .part = i,
				   .term = order[i].term,
				   .comm = order[i].comm,
				   .life = node[i].life,
				   .bytes = text,
				   .n = strlen(text) };
}

enum status say(uint32_t i)
{
	struct part_blob b = blob(i);
	return coord_on_blob(coord, &b, now);
}

void say_all(void)
{
	for (uint32_t i = 0; i < D; i++)
		ck_assert_int_eq(say(i), ST_OK);
}

void join(uint32_t i)
{
	node[i].term = order[i].term;
	node[i].comm = order[i].comm;
	tell(i);
}

void join_all(void)
{
	for (uint32_t i = 0; i < D; i++)
		join(i);
}

void start_all(void)
{
	for (uint32_t i = 0; i < D; i++)
		tell(i);
}

void form(void)
{
	open_coord();
	start_all();
	ck_assert_uint_eq(order[0].comm, collectives);
}

void params(uint32_t i, uint64_t digest)
{
	node[i].start = digest ? START_PARAMS : START_ALLOCATED;
	node[i].params_digest = digest;
	tell(i);
}

void run(void)
{
	for (uint32_t i = 0; i < D; i++) {
		node[i].start = START_PARAMS;
		node[i].params_digest = 9;
	}
	form();
	say_all();
	join_all();
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
}

void restart(uint32_t i)
{
	node[i].life += 100;
	node[i].comm = 0;
	tell(i);
}

void complete_but(uint32_t part, const char *waits)
{
	for (uint32_t i = 0; i < D; i++) {
		node[i].complete = i != part;
		snprintf(node[i].start_waits, sizeof(node[i].start_waits), "%s", i == part ? waits : "");
		rank[i].counted = 2;
		tell(i);
	}
}

void complete(void)
{
	complete_but(D, "");
}

void freeze(void)
{
	for (uint32_t i = 0; i < D; i++) {
		node[i].phase = WINDOW_CLOSED;
		node[i].count = node[i].sum_weight = 2;
		tell(i);
	}
}

void vote(uint32_t i)
{
	node[i].phase = WINDOW_PREPARED;
	node[i].count = node[i].sum_weight = 2;
	node[i].vote_term = order[i].term;
	node[i].vote_attempt = order[i].attempt;
	node[i].vote_status = ST_OK;
	node[i].digest = 77;
	tell(i);
}

void fail_vote(uint32_t i, uint64_t attempt, enum status st, uint64_t suspects, const char *text)
{
	node[i].vote_term = order[i].term;
	node[i].vote_attempt = attempt;
	node[i].vote_status = st;
	node[i].vote_suspects = suspects;
	snprintf(node[i].vote_text, sizeof(node[i].vote_text), "%s", text);
	node[i].comm = 0;
	tell(i);
}

void persisted(void)
{
	coord_on_persisted(coord, stored.window, ST_OK, now);
}

void vote_all(void)
{
	for (uint32_t i = 0; i < D; i++)
		vote(i);
	if (coord_phase(coord) == COORD_PERSIST)
		persisted();
}

void apply(void)
{
	for (uint32_t i = 0; i < D; i++) {
		const struct report was = node[i];
		node[i] = (struct report){ .job_id = 1, .epoch = 1, .incarnation = 1, .start = START_PARAMS };
		node[i].number = was.number;
		node[i].life = was.life;
		node[i].term = order[i].term;
		node[i].comm = order[i].comm;
		node[i].window = stored.window + 1;
		node[i].params_digest = 10 + stored.window;
		rank[i].counted = 0;
		tell(i);
	}
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
}
