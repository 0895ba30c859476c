/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator of coord_rig.h, its fake node and store. */
#include "coord_rig.h"

#include <check.h>
#include <stdio.h>

struct job_spec spec;
struct coord *coord;
struct now now;
struct report node;
struct rank_progress rank[2];
struct order order;
struct commit stored;
uint64_t n_stored, norms_window;
char last_event[32], last_text[256], end_reason[256];

static void on_order(void *ctx, uint32_t n, const struct order *o)
{
	order = *o;
}
static void on_persist(void *ctx, const struct commit *k, const uint64_t *counted, uint32_t n)
{
	stored = *k;
	n_stored++;
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
	norms_window = k ? k->window : UINT64_MAX - 1;
}

const struct coord_ports ports = { .order = on_order,
				   .persist_commit = on_persist,
				   .persist_end = on_end,
				   .event = on_event,
				   .changed = on_changed,
				   .norms = on_norms };

void tell(void)
{
	node.rank = rank;
	node.n_ranks = 2;
	coord_on_report(coord, &node, now);
}

void setup(void)
{
	const char *field;
	char why[200];
	spec = (struct job_spec){ .name = "t", .ranks = 2, .micro_size = 2, .master_f32 = true };
	spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_OK);
	now = (struct now){ 1000 * SECOND, 5000 * SECOND };
	n_stored = norms_window = 0;
	last_event[0] = end_reason[0] = '\0';
	node = (struct report){ .job_id = 1, .epoch = 1, .incarnation = 1, .start = START_PARAMS };
	for (uint32_t i = 0; i < 2; i++)
		rank[i] = (struct rank_progress){ .rank = i, .attached = 1 };
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, NULL, &ports), ST_OK);
	tell();
}

void teardown(void)
{
	coord_free(coord);
}

void fill(void)
{
	uint32_t size = coord_values(coord)->micro_size;
	for (int i = 0; i < 2; i++) {
		rank[i].counted = size;
		rank[i].ready_ns = rank[i].waiting_ns = 1;
	}
	node.complete = true;
	tell();
}

void finish(void)
{
	static uint64_t bits[2];
	uint64_t window = node.window;
	for (int i = 0; i < 8 && node.window == window; i++) {
		if (order.want == WANT_GO && node.phase < WINDOW_PREPARED) {
			uint32_t size = coord_values(coord)->micro_size;
			node.count = 2 * size;
			node.sum_weight = 2 * size;
			bits[0] = (1u << size) - 1;
			bits[1] = bits[0];
			node.counted = bits;
			node.n_words = 2; /* 2 ranks * 64 */
			node.phase = WINDOW_PREPARED;
			node.vote_term = order.term;
			node.vote_attempt = order.attempt;
			node.sumsq = 16;
		} else if (coord_phase(coord) == COORD_PERSIST) {
			coord_on_persisted(coord, window, ST_OK, now);
			continue;
		} else if (order.want == WANT_COMMIT) {
			node = (struct report){
				.job_id = 1, .epoch = 1, .incarnation = 1, .start = START_PARAMS, .window = window + 1
			};
			rank[0].counted = rank[1].counted = 0;
			rank[0].waiting_ns = rank[1].waiting_ns = rank[0].ready_ns = rank[1].ready_ns = 0;
		}
		tell();
	}
}
