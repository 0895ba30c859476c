/* SPDX-License-Identifier: Apache-2.0 */
/* The eventfds of echo.h and the process behind them, for bench_mailbox and bench_push. */
#include "echo.h"

#include "bench.h"
#include "engine/control_page.h"
#include "math/kernels.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define WEIGHT 8

/* ---- the server ---- */

struct server {
	const struct kernels *kernels;
	struct control_page page;
	struct control_state state;
};

static void *share(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (p == MAP_FAILED)
		bench_die("mmap: %s", strerror(errno));
	return p;
}

static void serve_begin(struct server *s, const struct echo *e)
{
	s->kernels = kernels_get(NULL);
	if (e->work != ECHO_RECORD)
		return;
	control_page_view(&s->page, share(control_page_bytes(1, e->window, 1, 1)), 1, e->window, 1, 1);
	if (control_state_init(&s->state, 1, e->window))
		bench_die("no memory");
}

/* As engine/pass.c does for an arena that stays in the cache. */
static void add(const struct server *s, const struct echo *e)
{
	const struct kernel_src src = { e->slot, WEIGHT };
	const float *from = e->sum[e->calls % 2];
	bool first = e->calls % e->window == 0;
	uint64_t nonfinite = 0;
	s->kernels->accumulate_cached(e->sum[1 - e->calls % 2], first ? NULL : from, first, DTYPE_F32, &src, 1,
				      DTYPE_F32, ECHO_ELEMENTS, &nonfinite, NULL);
	if (nonfinite)
		bench_die("the gradient is not finite");
}

static void record(struct server *s, const struct echo *e)
{
	struct control_record *r = &s->state.r;
	uint32_t micro = (uint32_t)(e->calls % e->window);
	if (micro == 0)
		memset(s->state.counted, 0, s->state.n_words * sizeof(*s->state.counted));
	control_set_bit(s->state.counted, r->max_micro_size, 0, micro);
	r->count = micro + 1;
	r->x = 1 - e->calls % 2;
	control_page_publish(&s->page, &s->state);
}

static _Noreturn void serve(struct echo *e)
{
	struct server s = { 0 };
	uint64_t n;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	serve_begin(&s, e);
	for (; read(e->there, &n, sizeof(n)) == (ssize_t)sizeof(n); e->calls++) {
		if (e->work >= ECHO_PASS)
			add(&s, e);
		if (e->work == ECHO_RECORD)
			record(&s, e);
		if (write(e->back, &(uint64_t){ 1 }, sizeof(n)) != (ssize_t)sizeof(n))
			break;
	}
	_exit(1);
}

/* ---- the caller ---- */

/* Sums of these are exact. */
static void make_gradient(struct echo *e)
{
	e->slot = share(ECHO_ELEMENTS * sizeof(*e->slot));
	for (int i = 0; i < 2; i++)
		e->sum[i] = share(ECHO_ELEMENTS * sizeof(*e->sum[i]));
	for (int i = 0; i < ECHO_ELEMENTS; i++)
		e->slot[i] = (float)(i % 64 + 1) / 64;
}

void echo_start(struct echo *e, enum echo_work work, uint32_t window)
{
	*e = (struct echo){
		.there = eventfd(0, EFD_CLOEXEC), .back = eventfd(0, EFD_CLOEXEC), .work = work, .window = window
	};
	if (work != ECHO_BELL)
		make_gradient(e);
	e->pid = fork();
	if (e->there < 0 || e->back < 0 || e->pid < 0)
		bench_die("eventfd, fork: %s", strerror(errno));
	if (e->pid == 0)
		serve(e);
}

void echo_call(struct echo *e)
{
	uint64_t n = 1;
	if (write(e->there, &n, sizeof(n)) < 0 || read(e->back, &n, sizeof(n)) < 0)
		bench_die("eventfd: %s", strerror(errno));
	e->calls++;
}

void echo_check(const struct echo *e)
{
	if (e->work == ECHO_BELL || e->calls == 0)
		return;
	const float n = (float)((e->calls - 1) % e->window + 1);
	for (int i = 0; i < ECHO_ELEMENTS; i++)
		if (e->sum[e->calls % 2][i] != n * WEIGHT * e->slot[i])
			bench_die("the limit's sum is wrong at %d", i);
}
