/* SPDX-License-Identifier: Apache-2.0 */
#include "posted_rig.h"

#include "lib/channel.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum status __wrap_push_attempt(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure);

struct posted_rig posted_rig;

static struct gacc_client client;
static char endpoint[] = "dns:nowhere";
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of held */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool held;

static void take(struct push *p, const struct real_answer *a)
{
	p->is_void = a->result == 4;
	p->duplicate = a->result == 2 || a->result == 3;
	p->count = a->counted;
	p->micro_size = MICRO;
}

enum status __wrap_push_attempt(struct gacc_job *j, void *arg, int64_t timeout_ms, struct rpc_failure *failure)
{
	struct push *p = arg;
	struct real_push r = { p->window, p->data_key, (uint32_t)j->rank, p->micro, p->slot,
			       p->weight, p->loss,     p->loss_scale,	  p->lr };
	struct real_answer a = { .st = posted_rig.say };

	pthread_mutex_lock(&lock);
	while (held)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	posted_rig.order[posted_rig.by_rpc++ % 64] = p->micro;
	posted_rig.present = p->present ? p->present[0] : 255;
	posted_rig.say = ST_OK;
	if (!a.st)
		a = real_receive(real_send(&r));
	snprintf(failure->message, sizeof(failure->message), "%s", a.text);
	take(p, &a);
	return failure->status = a.st;
}

/* ---- a trainer of each rank ---- */

void posted_rig_open_mailbox(uint32_t rank)
{
	struct cells_fds fds = real_fds(rank);
	struct cells_owner o = {
		.job = REAL_JOB, .sgen = 1, .rank = rank, .slots = REAL_SLOTS, .n_tensors = real_tensors()
	};
	char why[160] = "";

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, posted_rig.line[rank]), 0);
	ck_assert_msg(cells_open(&posted_rig.job[rank].memory.cells, &fds, &o, posted_rig.line[rank][0], why,
				 sizeof(why)) == ST_OK,
		      "%s", why);
}

void posted_rig_begin(bool given)
{
	real_begin(given);
	posted_rig.by_rpc = 0;
	posted_rig.say = ST_OK;
	client = (struct gacc_client){ .endpoint = endpoint, .pid = getpid() };
	for (uint32_t i = 0; i < RANKS; i++) {
		posted_rig.job[i] = (struct gacc_job){ .client = &client,
						       .id = REAL_JOB,
						       .rank = (int)i,
						       .generation = 1,
						       .memory.socket = -1,
						       .held_slot = -1,
						       .registered = true,
						       .running = true,
						       .layout = { .slots = REAL_SLOTS, .n = real_tensors() } };
		for (int s = 0; s < REAL_SLOTS; s++)
			posted_rig.job[i].memory.slot[s] =
				(struct mapping){ .base = posted_rig.slot[s], .bytes = sizeof(posted_rig.slot[s]) };
		ck_assert_int_eq(window_begin(&posted_rig.job[i].window, 0, 0, MICRO, 1), ST_OK);
		posted_rig_open_mailbox(i);
	}
}

void posted_rig_end(void)
{
	for (uint32_t i = 0; i < RANKS; i++) {
		while (posted_rig.job[i].posted.n)
			posted_drop(&posted_rig.job[i].posted);
		cells_close(&posted_rig.job[i].memory.cells);
		words_close(&posted_rig.job[i].memory.words);
		window_fini(&posted_rig.job[i].window);
		free(posted_rig.job[i].kept_as.present);
		close(posted_rig.line[i][0]);
		close(posted_rig.line[i][1]);
	}
	real_end();
}

gacc_status posted_rig_push(uint32_t rank, gacc_push_opts o, gacc_push_info *info)
{
	void *buffer;
	gacc_status st = gacc_grad_buffer(&posted_rig.job[rank], &buffer, NULL);

	o.struct_size = sizeof(o);
	return st ? st : gacc_push(&posted_rig.job[rank], &o, info);
}

void posted_rig_push_window(void)
{
	for (uint32_t m = 0; m < MICRO; m++)
		for (uint32_t r = 0; r < RANKS; r++) {
			gacc_push_opts o = { .weight = 1 + 2 * m + r, .loss = 0.25 + m, .data_key = 77 + m };
			gacc_push_info info;

			posted_rig.job[r].held_slot = (int)m; /* each of its own, as asynchronous pushes have */
			ck_assert_int_eq(posted_rig_push(r, o, &info), GACC_OK);
			ck_assert(info.window == 0 && info.micro == m && info.count == m + 1);
			ck_assert(info.micro_size == MICRO && !info.duplicate);
		}
}

void posted_rig_await_answers(uint32_t rank)
{
	const struct gacc_box *mem = posted_rig.job[rank].memory.cells.mem;

	for (uint32_t i = 0; i < GACC_BOX_CELLS; i++)
		while (__atomic_load_n(&mem->answer[i].seq, __ATOMIC_ACQUIRE) != mem->request[i].seq)
			usleep(1000);
}

void posted_rig_again(uint32_t rank)
{
	ck_assert_int_eq(window_begin(&posted_rig.job[rank].window, 0, 0, MICRO, 1), ST_OK);
}

void posted_rig_hold(bool on)
{
	pthread_mutex_lock(&lock);
	held = on;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

uint32_t posted_rig_next(uint32_t rank)
{
	uint32_t micro = MICRO;
	bool last;

	window_next(&posted_rig.job[rank].window, &micro, &last);
	return micro;
}
