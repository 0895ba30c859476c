/* SPDX-License-Identifier: Apache-2.0 */
/* Node, ports, trainers and coordinator of the tests of a part. One thread. */
#include "part_rig.h"

#include "base/log.h"
#include "engine/channel.h"
#include "engine/engine.h"
#include "host/process.h"
#include "rpc/pool.h"
#include "runtime/engine_proc.h"
#include "runtime/prepared.h"
#include "support/hanging_net.h"
#include "support/small_job.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TURN_MS 10
#define PATIENCE_S 60

struct node node;
struct conf *conf;
struct said said;
struct answers answers;

static uv_timer_t tick;
static void (*change_spec)(Gacc__V1__JobSpec *);
static struct session_key key[RIG_RANKS];
static uint64_t n_calls, n_orders;
static time_t patience;
static const char *waits_for;

int rig_engine(void)
{
	signal(SIGPIPE, SIG_IGN);
	log_init("engine", LOG_TEXT, LOG_ERROR);
	return engine_main(ENGINE_CHANNEL_FD, &hanging_net, NULL);
}

/* ---- ports ---- */

static void on_reply(void *ctx, uint64_t call, const struct reply *r)
{
	ck_assert_uint_lt(call, RIG_CALLS);
	ck_assert_msg(!said.answered[call], "call %d is answered twice", (int)call);
	said.answered[call] = true;
	said.reply[call] = *r;
}

static void on_report(void *ctx, const struct report *r)
{
	ck_assert_uint_le(r->n_ranks, RIG_RANKS);
	said.reports++;
	said.report = *r;
	memcpy(said.rank, r->rank, r->n_ranks * sizeof(*r->rank));
	said.counted = r->n_words ? r->counted[0] : 0;
	said.report.rank = said.rank;
	said.report.counted = &said.counted;
}

static void on_event(void *ctx, bool warning, const char *reason, int64_t rank, const char *text)
{
	said.events++;
	snprintf(said.event, sizeof(said.event), "%s", reason);
	snprintf(said.event_text, sizeof(said.event_text), "%s", text);
}

static void on_placed(void *ctx, enum status st, const char *why)
{
	said.placed++;
	said.engine_up += st == ST_OK;
	said.placed_status = st;
	snprintf(said.placed_why, sizeof(said.placed_why), "%s", why ? why : "");
}

/* The journal is slower than the call. */
static void on_kept_late(uv_timer_t *t)
{
	struct part *p = part_first(&node, (uint64_t)(uintptr_t)t->data);
	uv_close((uv_handle_t *)t, (uv_close_cb)free);
	if (p)
		part_on_tensors_kept(p, answers.kept);
}

static enum status on_keep_tensors(void *ctx)
{
	struct part *p = ctx;
	said.asked_keep++;
	if (answers.keep)
		return answers.keep;
	ck_assert_int_eq(part_pack_tensors(p), ST_OK);
	uv_timer_t *t = malloc(sizeof(*t));
	uv_timer_init(&node.loop, t);
	t->data = (void *)(uintptr_t)p->id;
	return uv_timer_start(t, on_kept_late, 1, 0) ? ST_NO_MEMORY : ST_OK;
}

static enum status on_fits(void *ctx, uint64_t bytes, char *why, size_t n_why)
{
	said.asked_fits++;
	said.fits_bytes = bytes;
	snprintf(why, n_why, "%s", answers.fits ? "no room on this node" : "");
	return answers.fits;
}

static void on_saved(void *ctx, const struct part_saved *is)
{
	said.n_saved++;
	said.saved = *is;
}

static const struct part_ports ports = { .reply = on_reply,
					 .report = on_report,
					 .event = on_event,
					 .placed = on_placed,
					 .keep_tensors = on_keep_tensors,
					 .fits = on_fits,
					 .saved = on_saved };

/* ---- the node ---- */

static void on_tick(uv_timer_t *t)
{
	fdstore_tick(node.fdstore, node_now().mono_ns);
	for (uint32_t i = 0; i < node.n_parts; i++)
		part_tick(node.part[i], node_now());
}

static void open_node(void)
{
	static const char *const set[] = { "engine.threads=2", NULL };
	conf = small_conf(set);
	conf->log.level = LOG_ERROR;
	node.conf = conf;
	node.incarnation = 1;
	node.collected = (struct rpc_quota){ .most = 1 << 20 };
	ck_assert_int_eq(uv_loop_init(&node.loop), 0);
	ck_assert_int_eq(rpc_pool_new(&node.loop, &node.pool), ST_OK);
	ck_assert_int_eq(fdstore_open(&node.fdstore, &node.stored, &node.n_stored), ST_OK);
	ck_assert_int_eq(fdstore_start(node.fdstore, &node.loop), ST_OK);
	uv_timer_init(&node.loop, &tick);
	uv_timer_start(&tick, on_tick, TURN_MS, TURN_MS);
	uv_unref((uv_handle_t *)&tick);
	rig_manager_listen();
}

void rig_open(void)
{
	log_init("test", LOG_TEXT, LOG_ERROR);
	unsetenv("NOTIFY_SOCKET");
	open_node();
}

void rig_open_managed(void)
{
	log_init("test", LOG_TEXT, LOG_ERROR);
	rig_manager_open();
	open_node();
}

/* What the loop still has to do comes to its end, engines and freed memory included. */
static void drain(void)
{
	uv_run(&node.loop, UV_RUN_DEFAULT);
}

static void drop_stored(void)
{
	for (size_t i = 0; i < node.n_stored; i++)
		if (node.stored[i].fd >= 0)
			close(node.stored[i].fd);
	free(node.stored);
	node.stored = NULL;
	node.n_stored = 0;
}

static void free_parts(void)
{
	while (node.n_parts)
		part_free(node.part[0]);
}

void rig_close(void)
{
	free_parts();
	drain();
	ck_assert_uint_eq(node.host_bytes, 0);
	rpc_pool_free(node.pool);
	fdstore_close(node.fdstore);
	uv_close((uv_handle_t *)&tick, NULL);
	rig_manager_close();
	drain();
	ck_assert_int_eq(uv_loop_close(&node.loop), 0);
	drop_stored();
	rpc_quota_fini(&node.collected);
	free(node.part);
	conf_free(conf);
}

void rig_restart(void)
{
	free_parts();
	drain();
	drop_stored();
	node.stored = calloc(RIG_KEPT, sizeof(*node.stored));
	for (int i = 0; i < n_kept; i++) {
		node.stored[i] = kept[i];
		node.stored[i].fd = fcntl(kept[i].fd, F_DUPFD_CLOEXEC, 3);
	}
	node.n_stored = (size_t)n_kept;
	node.incarnation++;
	n_calls = 0;
	said = (struct said){ 0 };
}

void rig_wait_begins(const char *what)
{
	patience = time(NULL) + PATIENCE_S;
	waits_for = what;
}

void rig_turn(void)
{
	ck_assert_msg(time(NULL) < patience, "waited %d s for: %s; last event %s: %s; hindrance \"%s\", failed \"%s\"",
		      PATIENCE_S, waits_for, said.event, said.event_text, said.report.hindrance,
		      said.report.failed.text);
	uv_ref((uv_handle_t *)&tick);
	uv_run(&node.loop, UV_RUN_ONCE);
	uv_unref((uv_handle_t *)&tick);
}

/* ---- parts ---- */

void rig_change_spec(void (*change)(Gacc__V1__JobSpec *))
{
	change_spec = change;
}

static struct prepared *prepare(void)
{
	struct small_job small;
	small_job(&small);
	small_job_add(&small, "w", 8, 5);
	small_job_add(&small, "b", RIG_ELEMENTS - 40, 0);
	if (change_spec)
		change_spec(&small.spec);
	return prepared_new(&small.spec);
}

static struct part *make(uint64_t job, bool bare)
{
	struct part *p;
	struct prepared *ready = prepare();
	ck_assert_msg(ready->status == ST_OK, "%s", ready->why);
	struct specification *text = specification_new(ready);
	const struct part_origin o = { .job = job,
				       .epoch = 1,
				       .n_parts = 1,
				       .uid = getuid(),
				       .user = "ana",
				       .uuid = "of the rig's job",
				       .text = text };
	ck_assert_int_eq(part_new(&node, &o, &ports, &p), ST_OK);
	specification_drop(text); /* the part holds it */
	if (!bare)
		job_take_tensors(p->job, &ready->set);
	prepared_free(ready);
	ck_assert_int_eq(part_publish(p), ST_OK);
	return p;
}

struct part *rig_part(uint64_t job)
{
	return make(job, false);
}

struct part *rig_bare_part(uint64_t job)
{
	return make(job, true);
}

struct part *rig_adopting_part(uint64_t job)
{
	struct part *p = make(job, false);
	p->begun = p->tensors.durable = true;
	return p;
}

struct part *rig_running_part(void)
{
	struct part *p = rig_part(RIG_JOB);
	job_allocate(p->job);
	rig_run_part(p);
	return p;
}

void rig_run_part(struct part *p)
{
	UNTIL(said.report.start == START_PARAMS);
	for (uint32_t rank = 0; rank < RIG_RANKS; rank++)
		rig_attach(p, rank);
	struct order o = rig_order(p, WANT_NOTHING);
	part_on_order(p, &o);
}

/* ---- trainers ---- */

void rig_attach(struct part *p, uint32_t rank)
{
	uint64_t call = n_calls++;
	const struct attach_args a = { .rank = rank,
				       .world_size = RIG_RANKS,
				       .uid = getuid(),
				       .pid = getpid(),
				       .start_time = process_start_time(getpid()),
				       .nonce = { (uint8_t)(rank + 1) },
				       .shared_memory = true };
	job_attach(p->job, call, &a, node_now());
	UNTIL(said.answered[call]);
	const struct reply *r = &said.reply[call];
	ck_assert_msg(r->status == ST_OK, "%s", r->text);
	key[rank] = (struct session_key){ .rank = rank, .uid = getuid(), .pid = getpid() };
	memcpy(key[rank].token, r->attach.token, sizeof(key->token));
	job_on_mapped(p->job, rank, r->attach.generation);
}

static void fill(char *at, uint64_t n, float value)
{
	for (uint64_t i = 0; i < n; i++)
		((float *)(void *)at)[i] = value;
}

uint64_t rig_put(struct part *p, uint32_t rank, float value)
{
	uint64_t call = n_calls++, bytes = job_arena(p->job)->param_bytes;
	uint32_t n, slot = job_session_slots(p->job, rank, &n);
	const struct arena *a = job_arena(p->job);
	char *data = part_map(p, SEG_SLOT, slot, true);
	ck_assert_ptr_nonnull(data);
	for (uint64_t i = 0; i < a->n_tensors; i++)
		fill(data + a->tensor[i].param_offset, a->tensor[i].count, value);
	job_put_params(p->job, call, &key[rank], 0, 0, bytes, true, node_now());
	return call;
}

uint64_t rig_push(struct part *p, uint32_t rank, uint32_t micro, float value)
{
	uint64_t call = n_calls++;
	uint32_t n, slot = job_session_slots(p->job, rank, &n) + micro % 2;
	char *data = part_map(p, SEG_SLOT, slot, true);
	const struct arena *a = job_arena(p->job);
	ck_assert_ptr_nonnull(data);
	for (uint64_t i = 0; i < a->n_tensors; i++)
		fill(data + a->tensor[i].slot_offset, a->tensor[i].count, value);
	const struct push_args args = {
		.window = job_window(p->job), .micro = micro, .slot = micro % 2, .weight = 1, .loss = value
	};
	job_push(p->job, call, &key[rank], &args, node_now());
	return call;
}

uint64_t rig_wait_step(struct part *p, uint32_t rank, uint64_t window)
{
	uint64_t call = n_calls++;
	job_wait_step(p->job, call, &key[rank], window, 0, node_now());
	return call;
}

static bool is_counted(const struct part *p, uint32_t rank, uint32_t micro)
{
	const struct control_state *s = job_record(p->job);
	return control_bit(s->counted, s->r.max_micro_size, rank, micro);
}

void rig_push_all(struct part *p)
{
	for (uint32_t micro = 0; micro < RIG_MICROS; micro++)
		for (uint32_t rank = 0; rank < RIG_RANKS; rank++) {
			if (is_counted(p, rank, micro))
				continue;
			uint64_t call = rig_push(p, rank, micro, (float)(rank * RIG_MICROS + micro + 1));
			UNTIL(said.answered[call]);
			ck_assert_msg(!said.reply[call].status, "%s", said.reply[call].text);
			ck_assert_uint_eq(said.reply[call].push.result, PUSH_COUNTED);
		}
	UNTIL(said.report.complete && said.report.window == job_window(p->job));
}

/* ---- the coordinator ---- */

struct order rig_order(const struct part *p, enum want want)
{
	return (struct order){ .job_id = p->id,
			       .epoch = 1,
			       .term = 1,
			       .window = job_window(p->job),
			       .number = ++n_orders,
			       .want = want,
			       .attempt = want == WANT_GO,
			       .run = true };
}

struct order rig_commit(const struct part *p, uint64_t window)
{
	struct order o = rig_order(p, WANT_COMMIT);
	o.window = window;
	o.commit = (struct commit){ .job_id = p->id,
				    .epoch = 1,
				    .window = window,
				    .term = 1,
				    .attempt = 1,
				    .applied_step = window + 1,
				    .outcome = OUTCOME_APPLIED,
				    .micro_size = RIG_MICROS,
				    .next_micro_size = RIG_MICROS,
				    .scale = 0.25,
				    .lr = 0.5,
				    .loss_scale = 1,
				    .total_weight = 4,
				    .divisor = 4,
				    .micro_count = 4,
				    .next = { .scale = { .scale = 1 } } };
	return o;
}

void rig_go(struct part *p)
{
	struct order o = rig_order(p, WANT_GO);
	part_on_order(p, &o);
	UNTIL(said.report.phase == WINDOW_PREPARED && said.report.vote_attempt == 1 &&
	      said.report.window == job_window(p->job));
	ck_assert_int_eq(said.report.vote_status, ST_OK);
}

/* ---- looking ---- */

void rig_expect_params(struct part *p, float value)
{
	const char *data = part_map(p, SEG_PARAMS, 0, false);
	const struct arena *a = job_arena(p->job);
	ck_assert_ptr_nonnull(data);
	for (uint64_t i = 0; i < a->n_tensors; i++)
		for (uint64_t e = 0; e < a->tensor[i].count; e++)
			ck_assert_float_eq(((const float *)(const void *)(data + a->tensor[i].param_offset))[e], value);
}

int64_t rig_engine_pid(const struct part *p)
{
	return p->engine.proc ? engine_proc_pid(p->engine.proc) : 0;
}
