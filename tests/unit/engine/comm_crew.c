/* SPDX-License-Identifier: Apache-2.0 */
/* Several struct comm that meet through a board; main thread of a test. */
#include "comm_crew.h"

#include "base/clock.h"
#include "coll/coll_gloo.h"
#include "coll/coll_local.h"

#include <poll.h>

#define LONG_NS (60 * CLOCK_NS_PER_S)

static struct comm *new_comm(struct crew *w, uint32_t part)
{
	static uint64_t lives = 100;
	struct comm *c;
	w->life[part] = ++lives;
	ck_assert_int_eq(comm_new(w->net, w->life[part], LONG_NS, 0, &c), ST_OK);
	return c;
}

void crew_open(struct crew *w, uint32_t n, bool over_gloo)
{
	const struct coll_gloo_config config = { .address = "127.0.0.1" };
	*w = (struct crew){ .n = n, .id = { .job = 7, .epoch = 1, .term = 1 } };
	w->net = over_gloo ? coll_gloo_new(&config, NULL) : coll_local_new();
	w->board = board_new();
	ck_assert(w->net && w->board);
	for (uint32_t s = 0; s < n; s++)
		w->comm[s] = new_comm(w, s);
}

void crew_close(struct crew *w)
{
	for (uint32_t s = 0; s < w->n; s++)
		ck_assert(comm_free(w->comm[s], COLL_ABORT_NS));
	coll_net_free(w->net);
	board_free(w->board);
}

void crew_new_life(struct crew *w, uint32_t part)
{
	ck_assert(comm_free(w->comm[part], COLL_ABORT_NS));
	w->has_event[part] = false;
	w->comm[part] = new_comm(w, part);
}

enum status crew_offer(struct crew *w, uint32_t part)
{
	const void *blob;
	size_t n;
	struct coll_failure why;
	enum status st = comm_join(w->comm[part], &w->id, part, w->n, LONG_NS, &blob, &n, &why);
	if (st)
		return st;
	ck_assert_int_eq(board_open(w->board, &w->id, w->n), ST_OK);
	return board_put(w->board, &w->id, part, w->life[part], blob, n);
}

void crew_tell(struct crew *w, uint32_t part)
{
	uint32_t n;
	const struct coll_address *a = board_addresses(w->board, &w->id, &n);
	ck_assert(a && n == w->n);
	for (uint32_t s = 0; s < n; s++)
		ck_assert_int_eq(comm_address(w->comm[part], &w->id, s, a[s].life, a[s].blob, a[s].n_blob), ST_OK);
}

void crew_join(struct crew *w, uint64_t k)
{
	w->id.k = k;
	for (uint32_t s = 0; s < w->n; s++)
		ck_assert_int_eq(crew_offer(w, s), ST_OK);
	for (uint32_t s = 0; s < w->n; s++)
		crew_tell(w, s);
	for (uint32_t s = 0; s < w->n; s++) {
		struct comm_event e = crew_wait(w, s);
		ck_assert_msg(e.kind == COMM_EVENT_JOINED && e.status == ST_OK, "part %u: %s", s, e.text);
		ck_assert(e.task == COMM_JOIN && !coll_id_compare(&e.id, &w->id) && e.connected == w->n - 1);
		ck_assert_int_eq(comm_state(w->comm[s]), COMM_READY);
	}
}

/* All of them go on, as engines do; one event of each is kept. */
static void go_on(struct crew *w, int ms)
{
	struct pollfd fd[CREW];
	for (uint32_t s = 0; s < w->n; s++) {
		fd[s] = (struct pollfd){ .fd = comm_fd(w->comm[s]), .events = POLLIN };
		if (!w->has_event[s])
			w->has_event[s] = comm_next(w->comm[s], &w->event[s]);
	}
	poll(fd, w->n, ms);
}

/* Within so many ms. */
static bool next(struct crew *w, uint32_t part, int64_t ms, struct comm_event *e)
{
	int64_t until = clock_ns(CLOCK_MONOTONIC) + ms * MS;
	while (!w->has_event[part] && clock_ns(CLOCK_MONOTONIC) < until)
		go_on(w, 1);
	*e = w->event[part];
	bool has = w->has_event[part];
	w->has_event[part] = false;
	return has;
}

struct comm_event crew_wait(struct crew *w, uint32_t part)
{
	struct comm_event e = { .kind = COMM_EVENT_DONE };
	ck_assert_msg(next(w, part, 20000, &e), "no event of part %u", part);
	return e;
}

void crew_expect_nothing(struct crew *w, uint32_t part)
{
	struct comm_event e;
	ck_assert(!next(w, part, 50, &e));
}

void crew_wait_idle(struct crew *w, uint32_t part)
{
	struct comm_event e;
	int64_t until = clock_ns(CLOCK_MONOTONIC) + COLL_ABORT_NS;
	while (comm_is_working(w->comm[part])) {
		ck_assert(!next(w, part, 1, &e));
		ck_assert(clock_ns(CLOCK_MONOTONIC) < until);
	}
}
