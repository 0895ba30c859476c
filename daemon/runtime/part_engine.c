/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of a part: starts it, takes its answers to the state machine, replaces one that has died or hangs, and
 * gives up after a crash loop (control's restarts decide which). For part.c and part_memory.c. Loop thread. */
#include "engine/engine.h"
#include "proto/failpoint.h"
#include "runtime/engine_proc.h"
#include "runtime/part.h"
#include "runtime/stored.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- its first answer ---- */

/* A new engine may get what this one lacked, but it is given the same segments. */
static bool may_pass(const struct engine_answer *a)
{
	return a->status == ST_NO_MEMORY || a->status == ST_IO_ERROR || a->status == ST_INVALID_CONFIG;
}

static void on_refusal(struct part *p, const struct engine_answer *a)
{
	snprintf(p->engine.refusal, sizeof(p->engine.refusal), "%s", a->status ? a->text : "it is of another version");
	if (may_pass(a))
		return; /* its exit follows */
	char why[256];
	snprintf(why, sizeof(why), "the engine refuses its memory: %s", p->engine.refusal);
	job_fail(p->job, ST_SEGMENT_CORRUPT, why, node_now());
}

/* Tells the state machine the weight of the counted pushes of each rank and the time of its last push, also of pushes
 * that the previous engine counted but did not report. The time in a cell that is not counted is that of a push in an
 * earlier window, or of one whose engine died. */
static void restore_pushes(struct part *p, const struct control_state *s)
{
	struct control_page page;
	if (!part_control_page(p, &page))
		return;
	for (uint32_t rank = 0; rank < s->r.ranks; rank++) {
		double weight = 0;
		int64_t last = 0;
		for (uint32_t micro = 0; micro < s->r.micro_size; micro++) {
			const struct ledger_cell *c = control_page_ledger(&page, rank, micro);
			weight += control_bit(s->counted, s->r.max_micro_size, rank, micro) ? c->weight : 0;
			last = c->unix_nanos > last ? c->unix_nanos : last;
		}
		job_restore_pushes(p->job, rank, weight, last);
	}
}

static void on_hello(struct part *p, const struct engine_answer *a)
{
	if (a->status || a->version != ENGINE_CHANNEL_VERSION) {
		on_refusal(p, a);
		return;
	}
	part_device_on_engine_up(p);
	struct control_state state;
	enum status st = part_read_control(p, &state);
	if (st == ST_NO_MEMORY) {
		engine_proc_kill(p->engine.proc, "gaccd has no memory to read what it has left");
		return;
	}
	if (st) {
		job_fail(p->job, st, "the control segment (role 1) is damaged: neither record is valid", node_now());
		return;
	}
	restarts_on_hello(&p->engine.restarts, &state.r, node_now());
	if (job_on_engine_up(p->job, &state, a->life, node_now()))
		job_fail(p->job, ST_SEGMENT_CORRUPT,
			 "the control segment (role 1) is damaged: its last valid record lacks what was acknowledged",
			 node_now());
	else
		restore_pushes(p, &state);
	control_state_fini(&state);
	FAILPOINT(gaccd_hello_taken);
	p->ports.placed(p, ST_OK, NULL);
	part_saving_look(p);
}

static void on_answer(void *arg, const struct engine_answer *a, const void *tail)
{
	struct part *p = arg;
	FAILPOINT(gaccd_answer_before);
	if (a->op == ENGINE_ATTACH)
		FAILPOINT(gaccd_attach_stored);
	restarts_on_answer(&p->engine.restarts, a);
	if (a->op == ENGINE_ALLOCATE)
		part_device_on_answer(p, a);
	else if (a->op == ENGINE_START)
		on_hello(p, a);
	else if (a->op == ENGINE_JOIN)
		job_on_joining(p->job, a, a->n_tail ? tail : NULL, node_now());
	else if (a->op != ENGINE_CHECKPOINT && a->op != ENGINE_RESTORE)
		job_on_answer(p->job, a, node_now());
	if (a->op == ENGINE_RESTORE)
		part_on_restored(p, a);
	if (a->op == ENGINE_CHECKPOINT)
		part_saving_on_answer(p, a);
	if (a->op == ENGINE_COMMIT)
		part_saving_look(p);
	if (a->op == ENGINE_SLOTS || a->op == ENGINE_MAKE_SLOTS)
		part_slots_on_answer(p, a);
}

/* ---- its end, and what follows ---- */

static void give_up(struct part *p, struct now now)
{
	const struct restarts *r = &p->engine.restarts;
	double age_s = (double)(now.mono_ns - r->since_ns) / 1e9;
	char text[256];
	if (r->had_come_up)
		snprintf(text, sizeof(text),
			 "the engine has failed %u times in %.1f s, and nothing was counted meanwhile: %s", r->failures,
			 age_s, r->cause);
	else
		snprintf(text, sizeof(text), "the engine cannot be started (%u tries in %.1f s): %s", r->failures,
			 age_s, r->cause);
	p->ports.placed(p, ST_ENGINE_FAILED, text);
	job_fail(p->job, ST_ENGINE_FAILED, text, node_now());
}

static void on_failure(struct part *p, const char *event, const char *cause, bool outside, struct now now)
{
	struct restarts *r = &p->engine.restarts;
	int64_t patience_ns = p->spec->stall_abort_ns;
	char text[256];
	r->patient |= p->begun;
	enum restarts_verdict v = restarts_on_failure(r, cause, outside, patience_ns, now);
	if (v == RESTARTS_NEWS)
		p->ports.event(p, true, event, -1, cause);
	if (v == RESTARTS_GIVE_UP) {
		give_up(p, now);
	} else if (restarts_in_trouble(r)) {
		snprintf(text, sizeof(text), "the engine %s: %s; tried again for %lld s",
			 r->had_come_up ? "fails again and again" : "cannot be started", cause,
			 (long long)(patience_ns / 1000000000));
		job_hinder(p->job, text, node_now());
	}
}

/* The network has held it up. */
static bool is_hang(const struct engine_exit *e)
{
	return !e->signal && e->status == ENGINE_EXIT_HANGS;
}

static void describe_exit(const struct part *p, const struct engine_exit *e, char *out, size_t n)
{
	if (*p->engine.refusal)
		snprintf(out, n, "%s", p->engine.refusal);
	else if (*e->why)
		snprintf(out, n, "%s", e->why);
	else if (is_hang(e))
		snprintf(out, n, "the engine could not end a call to the engines of other parts");
	else if (e->signal)
		snprintf(out, n, "the engine was killed by signal %d (%s)", e->signal, strsignal(e->signal));
	else
		snprintf(out, n, "the engine exited with status %lld", (long long)e->status);
}

static void on_exited(void *arg, const struct engine_exit *e)
{
	struct part *p = arg;
	struct now now = node_now();
	char cause[192];
	describe_exit(p, e, cause, sizeof(cause));
	p->engine.proc = NULL;
	part_device_on_engine_lost(p);
	job_on_engine_down(p->job, now);
	part_saving_on_engine_lost(p);
	part_slots_on_engine_lost(p);
	bool outside = is_hang(e) || e->signal == SIGKILL || e->signal == SIGTERM;
	on_failure(p, "EngineExited", cause, outside && !*e->why, now);
}

/* ---- its beginning ---- */

#define END_MS 20000 /* less than systemd's TimeoutStopSec */

/* fds: room for the plan's and those of all segments. */
static struct engine_start start_of(struct part *p, int *fds)
{
	const uint32_t n_device = part_device_segments(p);
	const int n = p->mem.n - (p->mem.making ? (int)n_device : 0);
	fds[0] = p->mem.plan_fd;
	for (int i = 0; i < n; i++)
		fds[i + 1] = p->mem.segment[i].fd;
	struct engine_start s = { .op = p->mem.making ? ENGINE_ALLOCATE : ENGINE_START,
				  .on_device = n_device != 0,
				  .n_device = p->mem.making ? 0 : n_device,
				  .others_are_over = p->engine.others_are_over,
				  .job_id = p->id,
				  .epoch = job_epoch(p->job),
				  .generation = STORED_GENERATION,
				  .incarnation = p->node->incarnation,
				  .fds = fds,
				  .n_fds = n + 1,
				  .end_ms = END_MS,
				  .log_level = p->node->conf->log.level,
				  .log_format = p->node->conf->log.format,
				  .kernels = strcmp(p->node->conf->engine.kernels, "auto")
						     ? p->node->conf->engine.kernels
						     : "" };
	if (p->n_parts > 1) {
		s.coll_address = p->node->conf->node.data_address;
		s.stall_ns = (int64_t)p->node->conf->coll.stall_ms * 1000000;
	}
	return s;
}

static enum status start(struct part *p, char *why, size_t n_why)
{
	static const struct engine_events events = { .answer = on_answer,
						     .descriptors = part_device_take,
						     .exited = on_exited };
	int *fds = calloc((size_t)p->mem.n + 1, sizeof(*fds));
	if (!fds) {
		snprintf(why, n_why, "%s", status_info(ST_NO_MEMORY)->text);
		return ST_NO_MEMORY;
	}
	const struct engine_start s = start_of(p, fds);
	enum status st = engine_proc_start(&p->node->loop, &s, &events, p, &p->engine.proc, why, n_why);
	free(fds);
	return st;
}

/* The engine that has made the memory goes on with it. */
static void go_on(struct part *p)
{
	int *fds = calloc((size_t)p->mem.n + 1, sizeof(*fds));
	const struct engine_start s = fds ? start_of(p, fds) : (struct engine_start){ .op = ENGINE_START };
	if (!fds || !engine_proc_go_on(p->engine.proc, &s))
		engine_proc_kill(p->engine.proc, status_info(ST_NO_MEMORY)->text);
	free(fds);
}

void part_start_engine(struct part *p)
{
	char why[160];
	if (job_ended(p->job) || p->node->stopping)
		return; /* cancelled while its memory was made */
	if (p->engine.proc) {
		go_on(p);
		return;
	}
	if (part_device_waits(p, node_now()))
		return;
	p->engine.refusal[0] = '\0';
	p->engine.starts++;
	part_device_note(p, 0);
	if (start(p, why, sizeof(why)))
		on_failure(p, "EngineNotStarted", why, false, node_now());
	else
		part_device_note(p, engine_proc_pid(p->engine.proc));
}

#define LEAST_TIMEOUT_MS 20000 /* an engine before it may hold the memory for COLL_ABORT_NS */

/* The engine of a job of several parts has less time: its main thread never waits for others, and they wait for it. */
static int64_t timeout_of(const struct part *p)
{
	const int64_t ms = (int64_t)p->node->conf->engine.timeout_ms;
	if (p->n_parts == 1 || ms <= LEAST_TIMEOUT_MS)
		return ms;
	return ms / 4 < LEAST_TIMEOUT_MS ? LEAST_TIMEOUT_MS : ms / 4;
}

/* An engine that hangs is killed, and then replaced like one that has died. */
static void check_engine(struct part *p)
{
	char text[160];
	int64_t timeout_ms = timeout_of(p);
	const struct control_state *s = job_record(p->job);
	if (p->spec->restores && (!s || !s->r.params_ready))
		return; /* it reads a checkpoint, however large that is, and hears nothing meanwhile */
	if (engine_proc_tick(p->engine.proc, (uint32_t)(timeout_ms / NODE_TICK_MS)))
		return;
	snprintf(text, sizeof(text),
		 "the engine (pid %lld) has not answered for %.1f s (engine.timeout): it is killed and started anew",
		 (long long)engine_proc_pid(p->engine.proc), (double)timeout_ms / 1e3);
	p->ports.event(p, true, "EngineHung", -1, text);
	snprintf(text, sizeof(text), "it has not answered for %.1f s (engine.timeout)", (double)timeout_ms / 1e3);
	engine_proc_kill(p->engine.proc, text);
}

void part_engine_tick(struct part *p, struct now now)
{
	if (p->engine.proc)
		check_engine(p);
	if (job_is_paused(p->job))
		restarts_excuse(&p->engine.restarts, now);
	if (restarts_recovered(&p->engine.restarts, now))
		job_hinder(p->job, "", node_now());
	if (p->engine.proc || p->mem.keeping || p->mem.released || job_ended(p->job))
		return;
	if (p->engine.awaits || restarts_due(&p->engine.restarts, now))
		part_start_engine(p);
}

void part_hear_engine(struct part *p)
{
	if (p->box && p->engine.proc)
		engine_proc_hear(p->engine.proc);
}

bool part_engine_send(void *part, uint64_t job, const struct engine_command *c, const void *present)
{
	struct part *p = part;
	if (c->op == ENGINE_ATTACH)
		FAILPOINT(gaccd_attach_before);
	int fds[3], n_fds = c->op == ENGINE_MAILBOX ? part_mailbox_fds(p, c, fds) : 0;
	return p->engine.proc && !FAILPOINT_ERROR(gaccd_command_before) &&
	       engine_proc_send(p->engine.proc, c, present, fds, n_fds);
}

bool part_engine_is_over(const struct part *p)
{
	return !p->engine.proc && !p->engine.awaits && !p->engine.restarts.due_ns;
}
