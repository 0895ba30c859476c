/* SPDX-License-Identifier: Apache-2.0 */
/* The life of the engine process: takes its memory, reads gaccd's commands and hands them to push.c, window.c, step.c
 * saving.c and joining.c, runs the passes, and ends. Called by main.c; the engine's main thread. */
#include "engine/engine.h"

#include "engine/arith_host.h"
#include "engine/process.h"
#include "engine/progress.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/packet.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#define BURST 256 /* commands read before a pass gets its turn */
#define EVENTS 64 /* of one turn; the others stay for the next */

struct packet {
	struct engine_command c;
	unsigned char present[ENGINE_MAX_PRESENT];
};

static bool watch(int epoll, int fd, uint64_t data)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = data };
	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev) == 0;
}

static void first_record(struct engine *e)
{
	const struct plan *p = e->mem.plan;
	struct control_record *r = &e->state.r;
	r->job_id = p->job_id;
	r->micro_size = p->micro_size;
	r->loss_scale = p->loss_scale;
	r->last_rank = UINT32_MAX;
	r->ranges_hash = plan_ranges_hash(p);
}

static enum status adopt_record(struct engine *e, const struct engine_command *c, char *why, size_t n_why)
{
	const struct control_record *r = &e->state.r;
	if (r->job_id != e->mem.plan->job_id || r->ranges_hash != plan_ranges_hash(e->mem.plan)) {
		snprintf(why, n_why, "the control record is of job %" PRIu64 " or of another plan", r->job_id);
		return ST_SEGMENT_CORRUPT;
	}
	for (uint32_t i = 0; i < r->n_zero; i++)
		if (r->zero_slot[i] >= e->mem.plan->slots) {
			snprintf(why, n_why, "the control record names slot %u of %u", r->zero_slot[i],
				 e->mem.plan->slots);
			return ST_SEGMENT_CORRUPT;
		}
	if (c->epoch < r->epoch) {
		snprintf(why, n_why, "epoch %" PRIu64 ", the record is of %" PRIu64, c->epoch, r->epoch);
		return ST_STALE_EPOCH;
	}
	bool resumes = true;
	if (r->phase == WINDOW_APPLYING)
		arith_need("reading the undo stamps",
			   e->arith->ops->update_can_resume(e->arith, r->commit_window, &resumes));
	if (!resumes) {
		snprintf(why, n_why, "the undo stamps are not those of window %" PRIu64, r->commit_window);
		return ST_SEGMENT_CORRUPT;
	}
	return ST_OK;
}

/* The record in force, or the first one of a new segment. An older one than a predecessor's answers relied on is in
 * force only because the newest is damaged. */
/* A slot that is the sum is one of the plan's. */
static bool sum_is_inside(const struct engine *e)
{
	return !e->mem.plan->in_slot || e->state.r.filled <= e->mem.plan->slots;
}

static enum status read_record(struct engine *e, const struct engine_command *c, char *why, size_t n_why)
{
	const uint64_t told = atomic_load(&e->mem.progress->told);
	bool corrupt, found = control_page_read(&e->mem.page, &e->state, &corrupt);
	if (found && e->state.r.seq < told) {
		snprintf(why, n_why,
			 "the control segment (role 1) is damaged: its last valid record lacks what was acknowledged "
			 "(record %" PRIu64 " of %" PRIu64 ")",
			 e->state.r.seq, told);
		return ST_SEGMENT_CORRUPT;
	}
	if (found && sum_is_inside(e))
		return adopt_record(e, c, why, n_why);
	if (found || corrupt || told) {
		snprintf(why, n_why, "neither control record is valid");
		return ST_SEGMENT_CORRUPT;
	}
	first_record(e);
	return ST_OK;
}

/* Of this process, for its log. */
static const char *name_process(const struct engine_command *c)
{
	static char ident[32]; /* log_init keeps it */
	snprintf(ident, sizeof(ident), "engine %" PRIu64, c->job_id);
	log_init(ident, (enum log_format)c->log_format, (enum log_level)c->log_level);
	return ident;
}

/* Who computes, and where the arenas lie. On a device only now, as the engine before this one is gone: it held the
 * lock.
 */
static enum status open_arith(struct engine *e, const struct engine_command *c, char *why, size_t n_why)
{
	enum status st;
	if (e->arith) /* by ALLOCATE */
		return ST_OK;
	if (e->mem.plan->device != PLAN_HOST) {
		char gpu[STATUS_GPU_BYTES + 1];
		progress_gpu(e->mem.progress, gpu);
		st = on_device_open(&e->on_device, e->mem.plan, gpu, e->plugin, name_process(c), c, why, n_why);
		if (!st)
			st = on_device_adopt(&e->on_device, &e->mem, why, n_why);
		if (!st)
			st = on_device_slots(&e->on_device, &e->mem, why, n_why);
		return st ? st : on_device_arith(&e->on_device, &e->mem, c->others_are_over, &e->arith, why, n_why);
	}
	st = arith_host_open(&e->arith, &e->mem, c->kernels, e->workers);
	if (st == ST_INVALID_CONFIG)
		snprintf(why, n_why, "this CPU cannot run the %.16s kernels", c->kernels);
	return st;
}

/* And room for what the other parts have touched. */
static enum status view_touched(struct engine *e)
{
	const uint32_t n_parts = e->mem.plan->n_parts;
	e->touched = touched_view(e->mem.plan, &e->mem.page);
	if (!e->touched.plan || n_parts == 1)
		return ST_OK;
	e->touched_sets = calloc(n_parts, e->touched.n_bytes);
	return e->touched_sets ? ST_OK : ST_NO_MEMORY;
}

/* Builds everything but the memory; START can still fail here. */
static enum status build(struct engine *e, const struct engine_command *c, char *why, size_t n_why)
{
	const struct plan *p = e->mem.plan;
	enum status st = memory_lock(&e->mem);
	if (!st)
		st = control_state_init(&e->state, p->ranks, p->max_micro_size);
	if (!st)
		st = accum_init(&e->accum, p->slots, p->max_micro_size, p->canonical);
	if (!st)
		st = workers_new(&e->workers, p->threads);
	if (!st)
		workers_set_heartbeat(e->workers, joining_at_work, e);
	if (!st)
		st = open_arith(e, c, why, n_why);
	if (!st) {
		e->arith->at_work = joining_at_work;
		e->arith->at_work_arg = e;
	}
	if (!st)
		st = view_touched(e);
	if (!st)
		st = snapshot_new(&e->snapshot, &e->mem, e->arith, e->workers, segment_memory_available);
	if (!st && !watch(e->epoll, snapshot_fd(e->snapshot), WATCH_SNAPSHOT))
		st = ST_IO_ERROR;
	return st;
}

/* All memory is mapped: becomes the job's engine, finishes what a predecessor began, sends HELLO. */
static enum status start(struct engine *e, const struct engine_command *c, char *why, size_t n_why)
{
	name_process(c);
	prctl(PR_SET_PDEATHSIG, 0); /* set by ALLOCATE */
	enum status st = FAILPOINT_ERROR(engine_start_fds);
	if (!st)
		st = joining_start(e, c);
	if (!st)
		st = build(e, c, why, n_why);
	if (!st)
		st = read_record(e, c, why, n_why);
	if (st)
		return st;
	e->state.r.epoch = c->epoch;
	e->state.r.incarnation = c->incarnation;
	engine_publish(e);
	push_zero_slots(e);
	if (e->state.r.phase == WINDOW_APPLYING)
		(apply_is_wanted(e, e->state.r.commit_outcome) ? apply_resume : step_finish)(e);
	engine_show_status(e);
	engine_show_ranks(e);
	e->running = true;
	log_job(c->job_id, LOG_INFO, "EngineStarted", "window %" PRIu64 ", record %" PRIu64 ", %s kernels, %u threads",
		e->state.r.window, e->state.r.seq, e->arith->name, e->mem.plan->threads);
	FAILPOINT(engine_hello_before);
	engine_reply(e, c, ST_OK, NULL);
	return ST_OK;
}

/* Answers ALLOCATE with all descriptors, at most a packet's at a time. */
static void send_descriptors(struct engine *e, const struct engine_command *c, const int *fds, int n)
{
	struct engine_answer a = engine_answer_to(e, c, ST_OK);
	a.n_device = (uint32_t)n;
	for (int at = 0; at < n && !e->ended; at += ENGINE_MAX_FDS)
		engine_send_fds(e, &a, fds + at, n - at < ENGINE_MAX_FDS ? n - at : ENGINE_MAX_FDS);
}

static enum status allocate(struct engine *e, const struct engine_command *c, char *why, size_t n_why)
{
	const int *fds = NULL;
	int n = 0;
	if (e->mem.plan->device == PLAN_HOST) {
		snprintf(why, n_why, "ALLOCATE is for jobs on a device, and this one is not");
		return ST_INVALID_ARGUMENT;
	}
	/* If gaccd dies meanwhile, so does this process, at once: nobody will ask for this memory, and there may be no
	 * room for that of the next gaccd's engine beside it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	enum status st =
		on_device_open(&e->on_device, e->mem.plan, e->mem.plan->gpu, e->plugin, name_process(c), c, why, n_why);
	if (!st)
		st = on_device_allocate(&e->on_device, e->mem.plan, c->generation, &fds, &n, why, n_why);
	/* with its tables, as a job that has no room for those does not fit either */
	if (!st)
		st = on_device_slots(&e->on_device, &e->mem, why, n_why);
	if (!st)
		st = on_device_arith(&e->on_device, &e->mem, true, &e->arith, why, n_why);
	if (!st)
		progress_note_gpu(e->mem.progress, on_device_name(&e->on_device));
	if (!st)
		send_descriptors(e, c, fds, n);
	return st;
}

/* Everything has come that was to come. */
static bool is_complete(const struct engine *e, const struct engine_command *c)
{
	return memory_missing(&e->mem) == 0 &&
	       (e->on_device.has_memory || c->op == ENGINE_ALLOCATE || e->mem.n_device >= (int)c->n_device);
}

/* START or ALLOCATE */
static void on_start(struct engine *e, const struct engine_command *c, const int *fds, int n_fds)
{
	char why[sizeof(((struct engine_answer *)0)->text)] = "";
	enum status st = ST_OK;
	for (int i = 0; i < n_fds; i++) {
		if (st)
			close(fds[i]);
		else
			st = memory_take(&e->mem, fds[i], c->generation, why, sizeof(why));
	}
	if (st == ST_OK && e->mem.plan && c->job_id != e->mem.plan->job_id) {
		snprintf(why, sizeof(why), "START is of job %" PRIu64 ", the plan of job %" PRIu64, c->job_id,
			 e->mem.plan->job_id);
		st = ST_INVALID_ARGUMENT;
	}
	if (st == ST_OK && is_complete(e, c))
		st = (c->op == ENGINE_ALLOCATE ? allocate : start)(e, c, why, sizeof(why));
	if (st == ST_OK)
		return;
	engine_reply(e, c, st, why[0] ? why : status_info(st)->text);
	e->exit_code = ENGINE_EXIT_REFUSED;
	e->ended = true;
}

static void on_stop(struct engine *e, const struct engine_command *c)
{
	if (e->running) {
		push_refuse(e, UINT32_MAX, UINT64_MAX, ST_ENGINE_DOWN);
		window_disarm(e, ST_ENGINE_DOWN);
		step_drop_sum(e, ST_ENGINE_DOWN);
		fill_drop(e, ST_ENGINE_DOWN);
		apply_drop(e, ST_ENGINE_DOWN);
	}
	engine_reply(e, c, ST_OK, NULL);
	e->ended = true;
}

static void dispatch(struct engine *e, const struct packet *p)
{
	const struct engine_command *c = &p->c;
	switch (c->op) {
	case ENGINE_ATTACH:
		window_attach(e, c);
		break;
	case ENGINE_ADD:
		push_look(e, c->rank); /* the micro-batch before this one may lie in a cell */
		push_add(e, c, p->present);
		break;
	case ENGINE_FLUSH:
		push_look(e, c->rank);
		window_flush(e, c);
		step_vote_if_due(e);
		break;
	case ENGINE_CLOSE:
		window_close(e, c);
		break;
	case ENGINE_GO:
		(e->mem.plan->n_parts > 1 ? step_go_parts : step_go)(e, c);
		break;
	case ENGINE_DISARM:
		step_disarm(e, c);
		break;
	case ENGINE_COMMIT:
		(apply_is_wanted(e, c->outcome) ? apply_commit : step_commit)(e, c);
		break;
	case ENGINE_PUT_PARAMS:
		step_put_params(e, c);
		break;
	case ENGINE_INIT_PARAMS:
		step_init_params(e, c);
		break;
	case ENGINE_ACK_STEP:
		step_ack(e, c);
		break;
	case ENGINE_PING:
		engine_reply(e, c, ST_OK, "");
		break;
	case ENGINE_JOIN:
		joining_join(e, c);
		break;
	case ENGINE_ADDRESS:
		joining_address(e, c, p->present);
		break;
	case ENGINE_ABORT:
		joining_abort(e, c);
		break;
	case ENGINE_FILL:
		fill_begin(e, c);
		break;
	case ENGINE_MAKE_SLOTS:
		slots_make(e, c);
		break;
	case ENGINE_CHECKPOINT:
		saving_begin(e, c, p->present);
		break;
	case ENGINE_RESTORE:
		saving_restore(e, c, p->present);
		break;
	default:
		engine_reply(e, c, ST_INVALID_ARGUMENT, "no such command, or not now");
	}
}

/* fds are those of the packet; only a START or ALLOCATE before HELLO, and a MAILBOX or SLOTS after it, may have any. */
static void on_packet(struct engine *e, const struct packet *p, size_t n, const int *fds, int n_fds)
{
	const struct engine_command *c = &p->c;
	if (n < sizeof(*c)) {
		log_error("a packet of %zu bytes is no command", n);
		e->ended = true;
		return;
	}
	bool whole = n == sizeof(*c) + (size_t)c->n_present;
	if (whole && (c->op == ENGINE_START || c->op == ENGINE_ALLOCATE) && !e->running) {
		on_start(e, c, fds, n_fds);
		return;
	}
	if (whole && c->op == ENGINE_MAILBOX && e->running) {
		boxes_take(e, c, fds, n_fds);
		return;
	}
	if (whole && c->op == ENGINE_SLOTS && e->running) {
		slots_exchange(e, c, fds, n_fds);
		return;
	}
	for (int i = 0; i < n_fds; i++)
		close(fds[i]);
	if (!whole)
		engine_reply(e, c, ST_INVALID_ARGUMENT, "the packet's length is not that of its bitmap");
	else if (c->op == ENGINE_STOP)
		on_stop(e, c);
	else if (!e->running)
		engine_reply(e, c, ST_NOT_READY, "START comes first");
	else
		dispatch(e, p);
}

/* Before HELLO gaccd is told why: the cause may be temporary. */
static void on_unreadable(struct engine *e, int error)
{
	const struct engine_command start = { .op = ENGINE_START };
	char why[128];
	snprintf(why, sizeof(why), "reading a command: %s", strerror(error));
	log_error("%s", why);
	if (e->running)
		return;
	engine_reply(e, &start, ST_IO_ERROR, why);
	e->exit_code = ENGINE_EXIT_REFUSED;
}

/* Reads the commands that have arrived, at most a burst. */
static void read_commands(struct engine *e, struct packet *p)
{
	for (int i = 0; i < BURST && !e->ended; i++) {
		int fds[ENGINE_MAX_FDS], n_fds = ENGINE_MAX_FDS;
		int n = packet_recv(e->fd, p, sizeof(*p), fds, &n_fds);
		if (n == -EAGAIN)
			return;
		if (n > 0) {
			on_packet(e, p, (size_t)n, fds, n_fds);
			continue;
		}
		if (n < 0 && n != -ECONNRESET) /* closed with answers unread: an end of file */
			on_unreadable(e, -n);
		e->ended = true;
	}
}

static void destroy(struct engine *e)
{
	joining_fini(e);
	snapshot_free(e->snapshot);
	if (e->arith)
		e->arith->ops->close(e->arith);
	on_device_fini(&e->on_device);
	workers_free(e->workers);
	free(e->touched_sets);
	boxes_fini(&e->boxes);
	accum_fini(&e->accum);
	control_state_fini(&e->state);
	memory_fini(&e->mem);
	close(e->fd);
}

/* How long there may be nothing to do, in ms; -1: for ever. */
static int patience(struct engine *e)
{
	if (e->running && push_has_work(e))
		return 0;
	return e->boxes.n_listed[LIST_LOOK] ? BOXES_LOOK_AGAIN_MS : comm_patience_ms(e->comm);
}

static void turn(struct engine *e, struct packet *packet)
{
	struct epoll_event ev[EVENTS];
	bool commands = false, joined = false;
	int n = epoll_wait(e->epoll, ev, EVENTS, patience(e));
	if (e->workers)
		workers_begin_turn(e->workers);
	for (int i = 0; i < n; i++) {
		if (ev[i].data.u64 == WATCH_SNAPSHOT)
			saving_end(e);
		commands = commands || ev[i].data.u64 == WATCH_CHANNEL;
		joined = joined || ev[i].data.u64 == WATCH_COMM;
	}
	if (commands)
		read_commands(e, packet);
	if (!e->running || e->ended)
		return;
	joining_go_on(e, joined);
	for (int i = 0; i < n; i++)
		if (ev[i].data.u64 < WATCH_COMM)
			push_look(e, (uint32_t)ev[i].data.u64);
	push_look_again(e);
	push_pass(e);
	window_flush_waiting(e);
	engine_ring(e);
	step_vote_if_due(e);
}

int engine_main(int channel_fd, const struct engine_net *net, const char *plugin)
{
	struct engine e = { .fd = channel_fd,
			    .mem = MEMORY_NONE,
			    .program_net = net,
			    .plugin = plugin,
			    .exit_code = ENGINE_EXIT_OK,
			    .on_device = { .at_work = joining_at_work, .at_work_arg = &e },
			    .said_ns = clock_ns(CLOCK_MONOTONIC) };
	struct packet *packet = malloc(sizeof(*packet));
	signal(SIGXFSZ, SIG_IGN); /* a checkpoint that grows too large is an error, not the end */
	e.epoll = epoll_create1(EPOLL_CLOEXEC);
	if (!packet || e.epoll < 0 || !watch(e.epoll, channel_fd, WATCH_CHANNEL)) {
		close(channel_fd);
		return ENGINE_EXIT_REFUSED;
	}
	while (!e.ended)
		turn(&e, packet);
	free(packet);
	destroy(&e);
	close(e.epoll);
	return e.exit_code;
}
