/* SPDX-License-Identifier: Apache-2.0 */
#include "support/box.h"

#include "engine/accum.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#define WAIT_RESULT 1

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "box: %s: %s\n", what, strerror(errno));
	_exit(99);
}

uint32_t box_crc(const void *p, size_t n)
{
	return (uint32_t)crc32(0, p, (uInt)n);
}

/* ---- what outlives the server ---- */

static size_t page_bytes(const struct box_world *w)
{
	return control_page_bytes(w->ranks, w->micro_size, 1, w->n_tensors);
}

void box_world_make(struct box_world *w, uint32_t ranks, uint32_t micro_size, uint64_t n_tensors)
{
	char why[160];
	*w = (struct box_world){ .ranks = ranks, .micro_size = micro_size, .slots = 2, .n_tensors = n_tensors };
	for (uint32_t i = 0; i < ranks; i++) {
		struct mailbox_owner o = { .job = 7, .sgen = 1, .rank = i, .slots = w->slots, .n_tensors = n_tensors };
		if (mailbox_make(&w->fds[i], &o, why, sizeof(why)))
			die(why);
	}
	w->page = mmap(NULL, page_bytes(w), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (w->page == MAP_FAILED)
		die("mmap");
}

void box_world_free(struct box_world *w)
{
	for (uint32_t i = 0; i < w->ranks; i++)
		mailbox_close_fds(&w->fds[i]);
	munmap(w->page, page_bytes(w));
}

/* ---- the server ---- */

struct server {
	const struct box_world *w;
	struct control_page page;
	struct control_state s;
	struct accum accum;
	struct plan plan; /* only what judge.c asks */
	struct mailbox box[BOX_RANKS];
	uint64_t wait[BOX_RANKS][GACC_BOX_CELLS]; /* window + 1 that an open WAIT is for; 0: none */
};

static void answer(struct server *v, uint32_t rank, uint32_t cell, uint64_t window, enum status st, uint32_t result)
{
	struct box_cells *c = &v->box[rank].cells;
	box_answer(c, cell, c->open[cell],
		   &(struct gacc_box_answer){ .status = (uint32_t)st,
					      .result = result,
					      .window = window,
					      .counted = v->s.rank[rank].counted,
					      .micro_size = v->s.r.micro_size });
}

/* Judges a push as the engine does, and queues it if it may wait for its turn. */
static struct verdict offer(struct server *v, uint32_t rank, struct box_request *r)
{
	const struct window_state w = { &v->plan, &v->s, control_page_ledger(&v->page, 0, 0), &v->accum };
	const struct gacc_box_request *q = &r->q;
	const uint64_t asker = (uint64_t)rank << 32 | r->cell;
	const struct push push = { rank,      q->micro, q->slot, v->s.rank[rank].sgen, q->window,  q->data_key,
				   q->weight, q->loss,	q->lr,	 q->loss_scale,	       r->present, q->n_present };
	struct verdict found = accum_judge(&w, &push);
	if (found.ruling == PUSH_JOINS)
		accum_join(&v->accum.entry[found.entry], asker);
	if (found.ruling == PUSH_QUEUES)
		accum_queue(&v->accum, &(struct accum_entry){ .asker = { asker },
							      .n_askers = 1,
							      .sgen = push.sgen,
							      .rank = rank,
							      .micro = q->micro,
							      .slot = accum_first_slot(&w, rank) + q->slot,
							      .weight = q->weight,
							      .loss = q->loss,
							      .data_key = q->data_key,
							      .window_lr = q->lr,
							      .present = r->present });
	return found;
}

static void write_step(struct server *v, uint32_t rank)
{
	const struct control_record *r = &v->s.r;
	box_write_step(&v->box[rank].cells, &(struct gacc_box_step){ .window = r->window - 1,
								     .applied_step = r->applied_step,
								     .outcome = 1,
								     .total_weight = r->prepared_sumsq,
								     .next_loss_scale = 1,
								     .next_micro_size = r->micro_size });
}

/* Answers the WAITs of this rank whose window is over. */
static void end_waits(struct server *v, uint32_t rank)
{
	for (uint32_t c = 0; c < GACC_BOX_CELLS; c++) {
		uint64_t behind = v->wait[rank][c];
		if (!behind || behind > v->s.r.window)
			continue;
		v->wait[rank][c] = 0;
		if (behind == v->s.r.window)
			write_step(v, rank);
		answer(v, rank, c, behind - 1, behind == v->s.r.window ? ST_OK : ST_WINDOW_FORGOTTEN,
		       behind == v->s.r.window ? WAIT_RESULT : 0);
	}
}

static void on_request(struct server *v, uint32_t rank, struct box_request *r)
{
	if (r->q.kind == GACC_BOX_WAIT) {
		v->wait[rank][r->cell] = r->q.window + 1;
		if (r->q.window + 1 == 0) /* no window comes behind the last number */
			answer(v, rank, r->cell, r->q.window, ST_NOT_CURRENT_WINDOW, 0);
		return;
	}
	struct verdict found = offer(v, rank, r);
	if (found.ruling != PUSH_QUEUES)
		free(r->present);
	if (found.ruling != PUSH_QUEUES && found.ruling != PUSH_JOINS)
		answer(v, rank, r->cell, r->q.window, found.status, found.result);
}

static bool is_complete(const struct server *v)
{
	return v->s.r.count == (uint64_t)v->w->ranks * v->w->micro_size;
}

static void next_window(struct server *v)
{
	struct control_record *r = &v->s.r;
	memcpy(v->s.last_counted, v->s.counted, v->s.n_words * sizeof(*v->s.counted));
	memset(v->s.counted, 0, v->s.n_words * sizeof(*v->s.counted));
	for (uint32_t i = 0; i < r->ranks; i++)
		v->s.rank[i].counted = 0;
	r->prepared_sumsq = r->sum_weight; /* no tensors, so no norm: the field is free */
	r->sum_weight = 0;
	r->count = 0;
	r->commit_window = r->window++;
	r->commit_outcome = 1;
	r->applied_step++;
	control_page_publish(&v->page, &v->s);
}

/* Adds those whose turn it is: one record, then the answers. */
static bool pass(struct server *v)
{
	struct accum_entry *e[GACC_BOX_CELLS], done[GACC_BOX_CELLS];
	uint32_t n = accum_next(&v->accum, &v->s, e, GACC_BOX_CELLS);
	for (uint32_t i = 0; i < n; i++) {
		done[i] = *e[i];
		*control_page_ledger(&v->page, e[i]->rank, e[i]->micro) =
			(struct ledger_cell){ e[i]->weight, e[i]->loss, e[i]->data_key, 0 };
		control_set_bit(v->s.counted, v->w->micro_size, e[i]->rank, e[i]->micro);
		v->s.rank[e[i]->rank].counted++;
		v->s.r.window_lr = e[i]->window_lr;
		v->s.r.count++;
		v->s.r.sum_weight += e[i]->weight;
	}
	if (n)
		control_page_publish(&v->page, &v->s);
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < done[i].n_askers; k++)
			answer(v, done[i].rank, (uint32_t)done[i].asker[k], v->s.r.window, ST_OK, PUSH_COUNTED);
		accum_remove(&v->accum, accum_find(&v->accum, done[i].rank, done[i].micro));
	}
	if (is_complete(v))
		next_window(v);
	return n > 0;
}

static void turn(struct server *v)
{
	struct box_request r[GACC_BOX_CELLS];
	uint32_t unready;
	for (uint32_t rank = 0; rank < v->w->ranks; rank++) {
		uint32_t n = box_look_all(&v->box[rank].cells, r, &unready);
		for (uint32_t i = 0; i < n; i++)
			on_request(v, rank, &r[i]);
	}
	while (pass(v))
		;
	for (uint32_t rank = 0; rank < v->w->ranks; rank++) {
		end_waits(v, rank);
		box_ring(&v->box[rank].cells, v->box[rank].answer);
	}
}

/* As an engine starts: its record first, then the mailboxes. */
static void begin(struct server *v, const struct box_world *w)
{
	bool corrupt;
	v->w = w;
	v->plan.ranks = w->ranks;
	v->plan.slots = w->ranks * w->slots;
	v->plan.slots_per_rank = w->slots;
	v->plan.n_tensors = w->n_tensors;
	control_page_view(&v->page, w->page, w->ranks, w->micro_size, 1, w->n_tensors);
	if (control_state_init(&v->s, w->ranks, w->micro_size) ||
	    accum_init(&v->accum, w->ranks * w->slots, w->micro_size, true))
		die("memory");
	if (!control_page_read(&v->page, &v->s, &corrupt)) {
		if (corrupt)
			die("no valid record");
		v->s.r.micro_size = w->micro_size;
		v->s.r.loss_scale = 1;
		control_page_publish(&v->page, &v->s);
	}
	if (is_complete(v))
		next_window(v);
}

static void open_boxes(struct server *v, int epoll)
{
	char why[160];
	for (uint32_t i = 0; i < v->w->ranks; i++) {
		struct mailbox_fds f = { dup(v->w->fds[i].memory), dup(v->w->fds[i].submit), dup(v->w->fds[i].answer),
					 -1 };
		if (mailbox_open(&v->box[i], &f, v->w->n_tensors, v->w->slots, why, sizeof(why)) ||
		    mailbox_watch(&v->box[i], epoll, i))
			die(why);
	}
}

void box_serve(const struct box_world *w)
{
	struct server v = { .w = w };
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	begin(&v, w);
	open_boxes(&v, epoll);
	for (;;) {
		struct epoll_event e[BOX_RANKS];
		turn(&v);
		if (epoll_wait(epoll, e, BOX_RANKS, -1) < 0 && errno != EINTR)
			die("epoll_wait");
	}
}

pid_t box_spawn(const struct box_world *w)
{
	pid_t pid = fork();
	if (pid < 0)
		die("fork");
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	box_serve(w);
}

void box_kill(pid_t pid)
{
	int ws = 0;
	kill(pid, SIGKILL);
	if (waitpid(pid, &ws, 0) != pid || !WIFSIGNALED(ws) || WTERMSIG(ws) != SIGKILL)
		die("the server has ended by itself");
}

/* ---- a trainer ---- */

void box_trainer_open(struct box_trainer *t, const struct mailbox_fds *f, uint64_t n_tensors)
{
	*t = (struct box_trainer){ .n_tensors = n_tensors, .submit = f->submit, .waits = f->waits };
	t->mem = mmap(NULL, gacc_box_bytes(n_tensors), PROT_READ | PROT_WRITE, MAP_SHARED, f->memory, 0);
	if (t->mem == MAP_FAILED)
		die("mmap");
}

void box_trainer_close(struct box_trainer *t)
{
	munmap(t->mem, gacc_box_bytes(t->n_tensors));
}

uint64_t box_publish(struct box_trainer *t, uint32_t cell, struct gacc_box_request q, const unsigned char *present)
{
	struct gacc_box_request *to = &t->mem->request[cell];
	if (q.n_present) {
		memcpy((unsigned char *)t->mem + gacc_box_present_at(t->n_tensors, cell), present, q.n_present);
		q.present_check = box_crc(present, q.n_present);
	}
	q.seq = ++t->seq;
	q.check = box_crc(&q, GACC_BOX_REQUEST_CHECKED);
	memcpy((unsigned char *)to + sizeof(q.seq), (unsigned char *)&q + sizeof(q.seq), sizeof(q) - sizeof(q.seq));
	__atomic_store_n(&to->seq, q.seq, __ATOMIC_RELEASE);
	return q.seq;
}

void box_bell(struct box_trainer *t)
{
	const uint64_t one = 1;
	if (write(t->submit, &one, sizeof(one)) != (ssize_t)sizeof(one))
		die("the submit bell");
}

static bool read_answer(const struct box_trainer *t, uint32_t cell, uint64_t seq, struct gacc_box_answer *out)
{
	const struct gacc_box_answer *from = &t->mem->answer[cell];
	if (__atomic_load_n(&from->seq, __ATOMIC_ACQUIRE) != seq)
		return false;
	memcpy(out, from, sizeof(*out));
	return out->seq == seq && out->check == box_crc(out, GACC_BOX_ANSWER_CHECKED);
}

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

bool box_await(struct box_trainer *t, uint32_t cell, uint64_t seq, struct gacc_box_answer *out, int ms)
{
	int64_t end = 0;
	while (!read_answer(t, cell, seq, out)) {
		struct epoll_event e;
		int64_t now = now_ms();
		if (!end)
			end = now + ms;
		if (now > end)
			return false;
		epoll_wait(t->waits, &e, 1, (int)(end - now));
	}
	return true;
}

bool box_read_step(const struct box_trainer *t, uint64_t window, struct gacc_box_step *out)
{
	memcpy(out, &t->mem->step, sizeof(*out));
	return out->check == box_crc(out, GACC_BOX_STEP_CHECKED) && out->window == window;
}
