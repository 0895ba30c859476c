/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of a job: started, heard, started again, given up. */
#include "edge/live_job.h"

#include "base/log.h"
#include "edge/live_restoring.h"
#include "edge/live_saving.h"
#include "engine/engine.h"
#include "proto/failpoint.h"
#include "runtime/engine_proc.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- its first word ---- */

/* Another engine may find what this one lacked; none will find other memory. */
static bool may_pass(const struct engine_answer *a)
{
	return a->status == ST_NO_MEMORY || a->status == ST_IO_ERROR || a->status == ST_INVALID_CONFIG;
}

static void on_refusal(struct live_job *l, const struct engine_answer *a)
{
	snprintf(l->engine_refusal, sizeof(l->engine_refusal), "%s", a->status ? a->text : "it is of another version");
	if (may_pass(a))
		return; /* its exit follows */
	char why[256];
	snprintf(why, sizeof(why), "the engine refuses its memory: %s", l->engine_refusal);
	coord_end(l->coord, ST_SEGMENT_CORRUPT, why, daemon_now(l->d));
}

/* What gaccd knew of pushes, and what the engine before had counted and not told. A cell that is not counted has the
 * time of an earlier window's push, or of one whose engine died. */
static void restore_pushes(struct live_job *l, const struct control_state *s)
{
	struct control_page page;
	if (!live_control_page(l, &page))
		return;
	for (uint32_t rank = 0; rank < s->r.ranks; rank++) {
		double weight = 0;
		int64_t last = 0;
		for (uint32_t micro = 0; micro < s->r.micro_size; micro++) {
			const struct ledger_cell *c = control_page_ledger(&page, rank, micro);
			weight += control_bit(s->counted, s->r.max_micro_size, rank, micro) ? c->weight : 0;
			last = c->unix_nanos > last ? c->unix_nanos : last;
		}
		job_restore_pushes(l->job, rank, weight, last);
	}
}

static void on_hello(struct live_job *l, const struct engine_answer *a)
{
	if (a->status || a->version != ENGINE_CHANNEL_VERSION) {
		on_refusal(l, a);
		return;
	}
	struct control_state state;
	enum status st = live_read_control(l, &state);
	if (st == ST_NO_MEMORY) {
		engine_proc_kill(l->engine, "gaccd has no memory to read what it has left");
		return;
	}
	if (st) {
		coord_end(l->coord, st, "the control segment (role 1) is damaged: neither record is valid",
			  daemon_now(l->d));
		return;
	}
	restarts_on_hello(&l->restarts, &state.r, daemon_now(l->d));
	if (job_on_engine_up(l->job, &state, daemon_now(l->d)))
		coord_end(l->coord, ST_SEGMENT_CORRUPT,
			  "the control segment (role 1) is damaged: its last valid record lacks what was acknowledged",
			  daemon_now(l->d));
	else
		restore_pushes(l, &state);
	control_state_fini(&state);
	FAILPOINT(gaccd_hello_taken);
	l->changed = true;
	saving_on_engine_up(l);
	live_submit_done(l, ST_OK, NULL);
}

static void on_answer(void *arg, const struct engine_answer *a)
{
	struct live_job *l = arg;
	FAILPOINT(gaccd_answer_before);
	if (a->op == ENGINE_ATTACH)
		FAILPOINT(gaccd_attach_stored);
	restarts_on_answer(&l->restarts, a);
	if (a->op == ENGINE_START)
		on_hello(l, a);
	else if (a->op == ENGINE_CHECKPOINT)
		saving_on_answer(l, a);
	else if (a->op == ENGINE_RESTORE)
		restoring_on_answer(l, a);
	else
		job_on_answer(l->job, a, daemon_now(l->d));
	if (a->op == ENGINE_COMMIT && !a->status)
		saving_on_committed(l);
}

/* ---- its end, and what follows ---- */

static void give_up(struct live_job *l, struct now now)
{
	const struct restarts *r = &l->restarts;
	double age_s = (double)(now.mono_ns - r->since_ns) / 1e9;
	char text[256];
	if (r->had_come_up)
		snprintf(text, sizeof(text),
			 "the engine has failed %u times in %.1f s, and nothing was counted meanwhile: %s", r->failures,
			 age_s, r->cause);
	else
		snprintf(text, sizeof(text), "the engine cannot be started (%u tries in %.1f s): %s", r->failures,
			 age_s, r->cause);
	live_submit_done(l, ST_ENGINE_FAILED, text);
	coord_end(l->coord, ST_ENGINE_FAILED, text, now);
}

static void on_failure(struct live_job *l, const char *event, const char *cause, bool outside, struct now now)
{
	struct restarts *r = &l->restarts;
	int64_t patience_ns = l->spec.stall_abort_ns;
	char text[256];
	r->patient |= l->params_durable;
	enum restarts_verdict v = restarts_on_failure(r, cause, outside, patience_ns, now);
	if (v == RESTARTS_NEWS)
		live_event(l, true, event, -1, cause);
	if (v == RESTARTS_GIVE_UP) {
		give_up(l, now);
	} else if (restarts_in_trouble(r)) {
		snprintf(text, sizeof(text), "the engine %s: %s; tried again for %lld s",
			 r->had_come_up ? "fails again and again" : "cannot be started", cause,
			 (long long)(patience_ns / 1000000000));
		coord_hinder(l->coord, text, now);
	}
}

static void describe_exit(const struct live_job *l, const struct engine_exit *e, char *out, size_t n)
{
	if (*l->engine_refusal)
		snprintf(out, n, "%s", l->engine_refusal);
	else if (*e->why)
		snprintf(out, n, "%s", e->why);
	else if (e->signal)
		snprintf(out, n, "the engine was killed by signal %d (%s)", e->signal, strsignal(e->signal));
	else
		snprintf(out, n, "the engine exited with status %lld", (long long)e->status);
}

static void on_exited(void *arg, const struct engine_exit *e)
{
	struct live_job *l = arg;
	struct now now = daemon_now(l->d);
	char cause[192];
	describe_exit(l, e, cause, sizeof(cause));
	l->engine = NULL;
	job_on_engine_down(l->job, now);
	saving_on_engine_down(l);
	on_failure(l, "EngineExited", cause, !*e->why && (e->signal == SIGKILL || e->signal == SIGTERM), now);
}

/* ---- its beginning ---- */

static enum status start(struct live_job *l, char *why, size_t n_why)
{
	static const struct engine_events events = { .answer = on_answer, .exited = on_exited };
	int *fds = calloc((size_t)l->n_segments + 1, sizeof(*fds));
	if (!fds) {
		snprintf(why, n_why, "%s", status_info(ST_NO_MEMORY)->text);
		return ST_NO_MEMORY;
	}
	fds[0] = l->plan_fd;
	for (int i = 0; i < l->n_segments; i++)
		fds[i + 1] = l->segment[i].fd;
	struct engine_start s = { .job_id = l->id,
				  .generation = LIVE_GENERATION,
				  .incarnation = l->d->node.incarnation,
				  .fds = fds,
				  .n_fds = l->n_segments + 1,
				  .log_level = l->d->node.conf->log.level,
				  .log_format = l->d->node.conf->log.format,
				  .kernels = strcmp(l->d->node.conf->engine.kernels, "auto")
						     ? l->d->node.conf->engine.kernels
						     : "" };
	enum status st = engine_proc_start(&l->d->node.loop, &s, &events, l, &l->engine, why, n_why);
	free(fds);
	return st;
}

void live_start_engine(struct live_job *l)
{
	char why[160];
	if (live_ended(l) || l->d->node.stopping)
		return; /* cancelled while its memory was made */
	l->engine_refusal[0] = '\0';
	l->engine_starts++;
	if (start(l, why, sizeof(why)))
		on_failure(l, "EngineNotStarted", why, false, daemon_now(l->d));
}

/* An engine that hangs is one that died and does not know it. */
static void check_engine(struct live_job *l)
{
	char text[160];
	int64_t timeout_ms = l->d->node.conf->engine.timeout_ms;
	if (l->spec.restores && !job_params_ready(l->job))
		return; /* it reads a checkpoint, however large that is, and hears nothing meanwhile */
	if (engine_proc_tick(l->engine, (uint32_t)(timeout_ms / NODE_TICK_MS)))
		return;
	snprintf(text, sizeof(text),
		 "the engine (pid %lld) has not answered for %.1f s (engine.timeout): it is killed and started anew",
		 (long long)engine_proc_pid(l->engine), (double)timeout_ms / 1e3);
	live_event(l, true, "EngineHung", -1, text);
	snprintf(text, sizeof(text), "it has not answered for %.1f s (engine.timeout)", (double)timeout_ms / 1e3);
	engine_proc_kill(l->engine, text);
}

void live_engine_due(struct live_job *l, struct now now)
{
	if (l->engine)
		check_engine(l);
	if (coord_held(l->coord))
		restarts_excuse(&l->restarts, now);
	if (restarts_recovered(&l->restarts, now))
		coord_hinder(l->coord, "", now);
	if (!l->engine && !l->released && !live_ended(l) && restarts_due(&l->restarts, now))
		live_start_engine(l);
}

bool live_engine_send(struct live_job *l, const struct engine_command *c, const void *present)
{
	if (c->op == ENGINE_ATTACH)
		FAILPOINT(gaccd_attach_before);
	return l->engine && !FAILPOINT_ERROR(gaccd_command_before) && engine_proc_send(l->engine, c, present);
}
