/* SPDX-License-Identifier: Apache-2.0 */
/* Two gaccds in one process, for unit tests; see the header. One thread. */
#include "pair_rig.h"

#include "base/log.h"
#include "cluster/save_message.h"
#include "edge/checkpoints.h"
#include "edge/hosted_ledger.h"
#include "edge/hosted_life.h"
#include "edge/hosted_norms.h"
#include "edge/hosted_ports.h"
#include "edge/hosted_seen.h"
#include "edge/hosted_tensors.h"
#include "edge/journal_keep.h"
#include "edge/links.h"
#include "edge/part_norms.h"
#include "edge/part_record.h"
#include "edge/part_ports.h"
#include "edge/parts.h"
#include "edge/stored_check.h"
#include "engine/channel.h"
#include "engine/engine.h"
#include "host/process.h"
#include "rpc/pool.h"
#include "runtime/stored.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
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
	return engine_main(ENGINE_CHANNEL_FD, NULL, NULL);
}

/* ---- the links ---- */

static links_take *const takes[LINK_KINDS] = { [LINK_REPORT] = hosted_take_report,
					       [LINK_ORDER] = part_take_order,
					       [LINK_PLACEMENT] = parts_take_placement,
					       [LINK_PLACED] = hosted_take_placed,
					       [LINK_DROP] = parts_take_drop,
					       [LINK_EVENT] = hosted_take_event,
					       [LINK_TENSORS] = hosted_take_tensors,
					       [LINK_KEPT] = part_take_kept,
					       [LINK_SAVE] = part_take_save,
					       [LINK_SAVED] = saving_take_saved,
					       [LINK_VIEW] = hosted_take_view,
					       [LINK_LEDGER] = hosted_take_ledger,
					       [LINK_NORMS_ASK] = part_take_norms_ask,
					       [LINK_NORMS] = hosted_take_norms };

static void carry(struct daemon *to, const struct link_message *m)
{
	struct link_message carried = *m;
	carried.away = to == &other;
	seen.n[m->kind]++;
	if (!seen.lost[m->kind] && !seen.lost_part[m->part % 2])
		takes[m->kind](to, &carried);
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
static links_take *const of_coordinator[LINK_KINDS] = {
	[LINK_PLACEMENT] = to_node, [LINK_ORDER] = to_node, [LINK_DROP] = to_node,
	[LINK_KEPT] = to_node,	    [LINK_SAVE] = to_node,  [LINK_NORMS_ASK] = to_node
};
static links_take *const of_node[LINK_KINDS] = {
	[LINK_REPORT] = to_coordinator,	 [LINK_PLACED] = to_coordinator, [LINK_EVENT] = to_coordinator,
	[LINK_TENSORS] = to_coordinator, [LINK_SAVED] = to_coordinator,	 [LINK_VIEW] = to_coordinator,
	[LINK_LEDGER] = to_coordinator,	 [LINK_NORMS] = to_coordinator
};

static void on_reply(void *part, uint64_t call, const struct reply *r)
{
	ck_assert_uint_lt(call, CALLS);
	seen.answered[call] = true;
	seen.reply[call] = *r;
}

/* ---- the two gaccds ---- */

/* Its journal is in a folder of its own. */
static void open_store(void)
{
	const struct history_limits limits = { .windows = 100, .events = 100 };
	char path[SCRATCH_PATH + 64];
	snprintf(path, sizeof(path), "%s/journal.sqlite", rig_runtime);
	ck_assert_int_eq(journal_open(path, &other.journal), ST_OK);
	ck_assert_int_eq(journal_take_incarnation(other.journal, &other.node.incarnation), ST_OK);
	ck_assert_int_eq(journal_take_term(other.journal, &other.term), ST_OK);
	ck_assert_int_eq(journal_last_job(other.journal, &other.last_job), ST_OK);
	ck_assert_int_eq(persist_new(&other.node.loop, other.journal, other.term, &other.persist), ST_OK);
	snprintf(path, sizeof(path), "%s/history.db", rig_runtime);
	ck_assert_int_eq(history_open(path, &limits, &other.history), ST_OK);
	ck_assert_int_eq(recorder_new(&other.node.loop, other.history, &other.recorder), ST_OK);
}

static void open_node(void)
{
	other = (struct daemon){ .node = { .conf = conf }, .ports = &ports };
	other.posted_tail = &other.posted;
	ck_assert_int_eq(uv_loop_init(&other.node.loop), 0);
	ck_assert_int_eq(fdstore_open(&other.node.fdstore, &other.node.stored, &other.node.n_stored), ST_OK);
	ck_assert_int_eq(fdstore_start(other.node.fdstore, &other.node.loop), ST_OK);
	ck_assert_int_eq(rpc_pool_new(&other.node.loop, &other.node.pool), ST_OK);
	uv_idle_init(&other.node.loop, &other.idle);
	other.idle.data = &other;
	ck_assert_int_eq(links_new(&other, of_node), ST_OK);
	open_store();
}

static void close_node(void)
{
	other.node.stopping = true;
	while (rpc_pool_busy(other.node.pool))
		uv_run(&other.node.loop, UV_RUN_ONCE);
	persist_mute(other.persist);
	daemon_drop_posted(&other);
	links_free(&other);
	parts_free_all(&other);
	part_records_free(&other);
	ck_assert_ptr_null(other.arriving);
	recorder_free(other.recorder);
	history_close(other.history);
	rpc_quota_fini(&other.node.collected);
	rpc_pool_free(other.node.pool);
	persist_free(other.persist);
	journal_close(other.journal);
	fdstore_close(other.node.fdstore);
	uv_close((uv_handle_t *)&other.idle, NULL);
	uv_run(&other.node.loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&other.node.loop), 0);
	free(other.node.stored);
	free(other.node.part);
}

void pair_open(void)
{
	rig_open();
	d.link_takes = of_coordinator;
	conf->engine.threads = 1;
	conf->log.level = LOG_ERROR;
	memset(&seen, 0, sizeof(seen));
	ports = *part_ports();
	ports.reply = on_reply;
	open_node();
	job = rig_job(JOB, getuid(), "ana", NULL);
}

void pair_close(void)
{
	close_node();
	rig_close();
}

/* ---- the node starts again ---- */

/* The memory that a service manager would have of it. */
static void take_kept(struct pair_kept *k)
{
	for (uint32_t i = 0; i < other.node.n_parts; i++) {
		const struct part *p = other.node.part[i];
		for (int s = 0; s < p->mem.n && p->mem.kept; s++) {
			struct fdstore_fd *at = &k->fd[k->n++];
			ck_assert_uint_le(k->n, PAIR_KEPT);
			stored_name(p->id, p->number, p->n_parts, &p->mem.wanted[s], at->name);
			at->fd = fcntl(p->mem.segment[s].fd, F_DUPFD_CLOEXEC, 3);
		}
	}
}

/* What it has kept of a life before, and nobody has taken. */
static void take_left(struct pair_kept *k)
{
	for (size_t i = 0; i < other.node.n_stored; i++)
		if (other.node.stored[i].fd >= 0)
			k->fd[k->n++] = other.node.stored[i];
}

void pair_stop(struct pair_kept *k)
{
	*k = (struct pair_kept){ .n = 0 };
	take_kept(k);
	take_left(k);
	close_node();
}

void pair_start(const struct pair_kept *k)
{
	open_node();
	other.node.stored = calloc(PAIR_KEPT, sizeof(*other.node.stored));
	memcpy(other.node.stored, k->fd, k->n * sizeof(*k->fd));
	other.node.n_stored = k->n;
	other.node.starting = true;
	ck_assert_int_eq(part_records_read(&other), ST_OK);
	ck_assert_int_eq(journal_keep_owners(&other), ST_OK);
	ck_assert_int_eq(parts_recover(&other), ST_OK);
	ck_assert_int_eq(journal_keep_check(&other), ST_OK);
	ck_assert_int_eq(stored_check_taken(&other), ST_OK);
	other.node.starting = false;
	stored_drop_strangers(&other);
}

void pair_restart(void)
{
	struct pair_kept k;
	pair_stop(&k);
	pair_start(&k);
}

size_t pair_left(void)
{
	size_t n = 0;
	for (size_t i = 0; i < other.node.n_stored; i++)
		n += other.node.stored[i].fd >= 0;
	return n;
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
	return part_find(&other.node, job->id, 0);
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

uint64_t pair_push_in(const struct session_key *key, uint64_t window, uint32_t micro, float value)
{
	uint64_t call = seen.calls++;
	struct part *p = there();
	uint32_t n, slot = job_session_slots(p->job, key->rank, &n) + micro % 2;
	float *data = part_map(p, SEG_SLOT, slot, true);
	ck_assert_ptr_nonnull(data);
	for (uint64_t i = 0; i < RIG_ELEMENTS; i++)
		data[i] = value;
	const struct push_args a = { .window = window, .micro = micro, .slot = micro % 2, .weight = 1 };
	job_push(p->job, call, key, &a, node_now());
	return call;
}

void pair_push(const struct session_key *key, uint32_t micro, float value)
{
	wait_ready(key);
	uint64_t call = pair_push_in(key, job_window(there()->job), micro, value);
	UNTIL(seen.answered[call]);
	ck_assert_msg(!seen.reply[call].status, "%s", seen.reply[call].text);
	ck_assert_uint_eq(seen.reply[call].push.result, PUSH_COUNTED);
}
