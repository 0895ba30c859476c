/* SPDX-License-Identifier: Apache-2.0 */
/* Two gaccds in one process, for unit tests; see the header. One thread. */
#include "pair_rig.h"

#include "base/log.h"
#include "cluster/save_message.h"
#include "edge/checkpoints.h"
#include "edge/hosted_ledger.h"
#include "edge/hosted_life.h"
#include "edge/hosted_ports.h"
#include "edge/hosted_seen.h"
#include "edge/hosted_tensors.h"
#include "edge/links.h"
#include "edge/part_ports.h"
#include "edge/parts.h"
#include "engine/channel.h"
#include "engine/engine.h"
#include "host/process.h"
#include "rpc/pool.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

struct daemon other;
struct hosted *job;
struct pair_seen seen;

static struct part_ports ports;

int pair_engine(void)
{
	signal(SIGPIPE, SIG_IGN);
	log_init("engine", LOG_TEXT, LOG_ERROR);
	return engine_main(ENGINE_CHANNEL_FD);
}

/* ---- the links ---- */

static links_take *const takes[LINK_KINDS] = {
	[LINK_REPORT] = hosted_take_report,   [LINK_ORDER] = part_take_order, [LINK_PLACEMENT] = parts_take_placement,
	[LINK_PLACED] = hosted_take_placed,   [LINK_DROP] = parts_take_drop,  [LINK_EVENT] = hosted_take_event,
	[LINK_TENSORS] = hosted_take_tensors, [LINK_KEPT] = part_take_kept,   [LINK_SAVE] = part_take_save,
	[LINK_SAVED] = saving_take_saved,     [LINK_VIEW] = hosted_take_view, [LINK_LEDGER] = hosted_take_ledger
};

static void carry(struct daemon *to, const struct link_message *m)
{
	seen.n[m->kind]++;
	if (!seen.lost[m->kind])
		takes[m->kind](to, m);
}

static void to_node(struct daemon *from, const struct link_message *m)
{
	ck_assert_ptr_eq(from, &d);
	carry(&other, m);
}

static void to_coordinator(struct daemon *from, const struct link_message *m)
{
	char why[200];
	ck_assert_ptr_eq(from, &other);
	if (m->kind == LINK_PLACED)
		ck_assert_msg(!placed_unpack(m->bytes, m->n, &seen.placed, why, sizeof(why)), "%s", why);
	if (m->kind == LINK_SAVED)
		ck_assert_msg(!saved_unpack(m->bytes, m->n, RANKS, &seen.saved, why, sizeof(why)), "%s", why);
	carry(&d, m);
}

/* What the other side has to send is not here. */
static links_take *const of_coordinator[LINK_KINDS] = { [LINK_PLACEMENT] = to_node,
							[LINK_ORDER] = to_node,
							[LINK_DROP] = to_node,
							[LINK_KEPT] = to_node,
							[LINK_SAVE] = to_node };
static links_take *const of_node[LINK_KINDS] = {
	[LINK_REPORT] = to_coordinator,	 [LINK_PLACED] = to_coordinator, [LINK_EVENT] = to_coordinator,
	[LINK_TENSORS] = to_coordinator, [LINK_SAVED] = to_coordinator,	 [LINK_VIEW] = to_coordinator,
	[LINK_LEDGER] = to_coordinator
};

static void on_reply(void *part, uint64_t call, const struct reply *r)
{
	ck_assert_uint_lt(call, CALLS);
	seen.answered[call] = true;
	seen.reply[call] = *r;
}

/* ---- the two gaccds ---- */

void pair_open(void)
{
	rig_open();
	d.link_takes = of_coordinator;
	conf->engine.threads = 1;
	conf->log.level = LOG_ERROR;
	memset(&seen, 0, sizeof(seen));
	ports = *part_ports();
	ports.reply = on_reply;
	other = (struct daemon){ .node = { .conf = conf, .incarnation = 1 }, .ports = &ports };
	other.posted_tail = &other.posted;
	ck_assert_int_eq(uv_loop_init(&other.node.loop), 0);
	ck_assert_int_eq(fdstore_open(&other.node.fdstore, &other.node.stored, &other.node.n_stored), ST_OK);
	ck_assert_int_eq(fdstore_start(other.node.fdstore, &other.node.loop), ST_OK);
	ck_assert_int_eq(rpc_pool_new(&other.node.loop, &other.node.pool), ST_OK);
	uv_idle_init(&other.node.loop, &other.idle);
	other.idle.data = &other;
	ck_assert_int_eq(links_new(&other, of_node), ST_OK);
	job = rig_job(JOB, getuid(), "ana", NULL);
}

void pair_close(void)
{
	other.node.stopping = true;
	while (rpc_pool_busy(other.node.pool))
		uv_run(&other.node.loop, UV_RUN_ONCE);
	ck_assert_ptr_null(other.arriving);
	daemon_drop_posted(&other);
	links_free(&other);
	parts_free_all(&other);
	rpc_pool_free(other.node.pool);
	fdstore_close(other.node.fdstore);
	uv_close((uv_handle_t *)&other.idle, NULL);
	uv_run(&other.node.loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&other.node.loop), 0);
	free(other.node.stored);
	free(other.node.part);
	rig_close();
}

void pair_turn(time_t end, const char *what)
{
	const char *reason = "";
	const struct timespec ms = { .tv_nsec = 1000000 };
	if (time(NULL) > end)
		hosted_state(job, &reason, NULL);
	ck_assert_msg(time(NULL) <= end, "waited %d s for: %s; %s; %s", PATIENCE_S, what, reason, seen.placed.text);
	uv_run(&d.node.loop, UV_RUN_NOWAIT);
	uv_run(&other.node.loop, UV_RUN_NOWAIT);
	hosted_tick(job, node_now());
	parts_tick(&other, node_now());
	nanosleep(&ms, NULL);
}

struct part *there(void)
{
	return part_find(&other.node, job->id);
}

/* ---- trainers ---- */

struct session_key pair_attach(uint32_t rank)
{
	uint64_t call = seen.calls++;
	const struct attach_args a = { .rank = rank,
				       .world_size = RANKS,
				       .uid = getuid(),
				       .pid = getpid(),
				       .start_time = process_start_time(getpid()),
				       .nonce = { (uint8_t)(rank + 1) },
				       .shared_memory = true };
	struct session_key key = { .rank = rank, .uid = getuid(), .pid = getpid() };
	job_attach(there()->job, call, &a, node_now());
	UNTIL(seen.answered[call]);
	ck_assert_msg(!seen.reply[call].status, "%s", seen.reply[call].text);
	memcpy(key.token, seen.reply[call].attach.token, sizeof(key.token));
	job_on_mapped(there()->job, rank, seen.reply[call].attach.generation);
	return key;
}

/* The order to run may come after the coordinator has said that it does. */
static void wait_ready(const struct session_key *key)
{
	uint64_t call = seen.calls++;
	job_wait_ready(there()->job, call, key, 0, node_now());
	UNTIL(seen.answered[call]);
	ck_assert_msg(!seen.reply[call].status, "%s", seen.reply[call].text);
}

void pair_push(const struct session_key *key, uint32_t micro, float value)
{
	wait_ready(key);
	uint64_t call = seen.calls++;
	struct part *p = there();
	uint32_t n, slot = job_session_slots(p->job, key->rank, &n) + micro % 2;
	float *data = part_map(p, SEG_SLOT, slot, true);
	ck_assert_ptr_nonnull(data);
	for (uint64_t i = 0; i < RIG_ELEMENTS; i++)
		data[i] = value;
	const struct push_args a = { .window = job_window(p->job), .micro = micro, .slot = micro % 2, .weight = 1 };
	job_push(p->job, call, key, &a, node_now());
	UNTIL(seen.answered[call]);
	ck_assert_msg(!seen.reply[call].status, "%s", seen.reply[call].text);
	ck_assert_uint_eq(seen.reply[call].push.result, PUSH_COUNTED);
}
