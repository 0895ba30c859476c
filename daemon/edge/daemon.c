/* SPDX-License-Identifier: Apache-2.0 */
/* The life of gaccd, for main.c: opens what it needs in order, runs the loop with its tick and its signals, and takes
 * it all down again. Loop thread. */
#include "edge/daemon.h"

#include "base/descriptors.h"
#include "base/log.h"
#include "edge/checkpoints.h"
#include "edge/disk_watch.h"
#include "edge/exchanging.h"
#include "edge/hosted_ledger.h"
#include "edge/hosted_norms.h"
#include "edge/hosted_life.h"
#include "edge/hosted_ports.h"
#include "edge/hosted_queue.h"
#include "edge/hosted_recover.h"
#include "edge/hosted_seen.h"
#include "edge/hosted_submit.h"
#include "edge/hosted_tensors.h"
#include "edge/journal_keep.h"
#include "edge/launching.h"
#include "edge/part_launch.h"
#include "edge/rank_logs.h"
#include "edge/links.h"
#include "edge/node_dial.h"
#include "edge/node_serve.h"
#include "edge/own_certificate.h"
#include "edge/part_norms.h"
#include "edge/part_ports.h"
#include "edge/part_record.h"
#include "edge/parts.h"
#include "edge/reply.h"
#include "edge/state_share.h"
#include "edge/stored_check.h"
#include "edge/tcp.h"
#include "edge/upgrade_check.h"
#include "host/attach.h"
#include "host/failpoint_socket.h"
#include "host/listen.h"
#include "host/own_dir.h"
#include "host/token_file.h"
#include "proto/failpoint.h"
#include "rpc/pool.h"
#include "runtime/stored.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRAIN_MS 100
#define GRACE_MS 1000
#define REST_S 5 /* between starts that only an operator can help */

/* ---- the end ---- */

static void on_stopped(void *arg)
{
	struct daemon *d = arg;
	FAILPOINT(gaccd_drained);
	uv_stop(&d->node.loop);
}

static void stop(struct daemon *d)
{
	if (d->node.stopping)
		return;
	d->node.stopping = true;
	bool manager = fdstore_active(d->node.fdstore), gone = fdstore_stopping(d->node.fdstore) != ST_OK;
	daemon_event(d, false, "Stopping",
		     gone      ? "stopping: jobs lose their memory, as the service manager does not answer any more"
		     : manager ? "stopping: jobs keep their memory while the service manager runs"
			       : "stopping: jobs lose their memory, as there is no service manager to keep it");
	FAILPOINT(gaccd_drain);
	rpc_server_stop(d->rpc, DRAIN_MS, GRACE_MS, on_stopped, d);
}

static void on_signal(uv_signal_t *h, int signum)
{
	struct daemon *d = h->data;
	if (signum == SIGHUP)
		tcp_reload(d);
	else
		stop(d);
}

/* ---- time ---- */

static void feed_watchdog(struct daemon *d, struct now now)
{
	if (!d->watchdog_us || now.mono_ns - d->watchdog_ns < (int64_t)d->watchdog_us * 1000 / 3)
		return;
	d->watchdog_ns = now.mono_ns;
	fdstore_watchdog(d->node.fdstore);
}

static void limit_logs(struct daemon *d, struct now now)
{
	if (!state_share_limits_due(d, now))
		return;
	for (struct starter *s = d->starter; s; s = s->next)
		starter_limit_logs(s);
}

static void on_tick(uv_timer_t *h)
{
	struct daemon *d = h->data;
	struct now now = daemon_now(d);
	FAILPOINT(gaccd_tick);
	feed_watchdog(d, now);
	fdstore_tick(d->node.fdstore, now.mono_ns);
	if (d->node.stopping)
		return;
	listener_heal(d->listener);
	attach_heal(d->attach);
	node_dial_tick(d, now);
	node_serve_tick(d, now);
	parts_tick(d, now);
	part_launch_tick(d, now);
	links_run_now(d); /* after a long pause nobody was silent but this process */
	for (uint32_t i = 0; i < d->n_jobs; i++)
		hosted_tick(d->job[i], now);
	rank_logs_tick(d, now);
	disk_watch_tick(d, now);
	own_certificate_tick(d, now);
	limit_logs(d, now);
	state_share_tick(d, now);
	hosted_queue_run(d, now);
	hosted_forget_old(d);
	recorder_flush(d->recorder);
	persist_tick(d->persist);
}

/* ---- callers ---- */

static void on_connection(void *arg, int fd, const struct listen_peer *peer)
{
	struct daemon *d = arg;
	rpc_server_add_fd(d->rpc, fd, peer->uid, peer->pid, peer->start_time);
}

static void on_connection_gone(void *arg, uid_t uid)
{
	struct daemon *d = arg;
	rpc_server_fd_gone(d->rpc, uid);
}

/* ---- start ---- */
static links_take *const daemon_takes[LINK_KINDS] = { [LINK_REPORT] = hosted_take_report,
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
						      [LINK_BLOB] = hosted_take_blob,
						      [LINK_BOARD] = part_take_board,
						      [LINK_LAUNCH] = part_launch_take,
						      [LINK_LAUNCHED] = launching_take_news,
						      [LINK_LOG_ASK] = rank_logs_take_ask,
						      [LINK_LOG_PIECE] = rank_logs_take_piece,
						      [LINK_NORMS_ASK] = part_take_norms_ask,
						      [LINK_NORMS] = hosted_take_norms };

static enum status open_store(struct daemon *d)
{
	char path[4096];
	enum status st = own_dir_make(d->node.conf->runtime_dir, 0755, "runtime_dir");
	if (!st)
		st = own_dir_make(d->node.conf->state_dir, 0700, "state_dir");
	if (!st && (st = failpoint_make(d->node.conf->runtime_dir)))
		log_error("cannot make the file of failpoints in %s: %s", d->node.conf->runtime_dir, strerror(errno));
	snprintf(path, sizeof(path), "%s/journal.sqlite", d->node.conf->state_dir);
	if (!st)
		st = journal_keep_open(d, path);
	if (!st)
		st = journal_take_incarnation(d->journal, &d->node.incarnation);
	if (!st)
		st = FAILPOINT_ERROR(coord_term_before);
	if (!st)
		st = journal_take_term(d->journal, &d->term);
	if (!st)
		st = FAILPOINT_ERROR(coord_term_after);
	if (!st)
		st = node_serve_new(d);
	if (!st)
		st = persist_new(&d->node.loop, d->journal, d->term, &d->persist);
	struct history_limits limits = { .windows = d->node.conf->history.windows,
					 .events = d->node.conf->history.events };
	snprintf(path, sizeof(path), "%s/history.db", d->node.conf->state_dir);
	if (!st)
		st = history_open(path, &limits, &d->history);
	if (!st)
		st = recorder_new(&d->node.loop, d->history, &d->recorder);
	if (!st)
		st = disk_watch_new(d);
	if (!st)
		st = state_share_new(d);
	return st;
}

static enum status open_rpc(struct daemon *d)
{
	struct rpc_config c = { .loop = &d->node.loop,
				.relay_min_uid = d->node.conf->cluster.relay_min_uid,
				.relays = d->away,
				.max_unread_bytes = d->node.conf->limits.request_memory,
				.max_held_bytes = d->node.conf->limits.request_memory / 4 };
	d->node.collected.most = d->node.conf->limits.request_memory / 2;
	enum status st = rpc_server_new(&c, &d->rpc);
	d->node.pool = st ? NULL : rpc_server_pool(d->rpc);
	if (!st)
		st = tcp_read_revoked(d);
	if (!st)
		st = methods_add(d);
	if (!st)
		st = rpc_health_new(d->rpc, &d->health);
	if (!st)
		st = rpc_reflection_add(d->rpc);
	if (!st)
		st = tcp_listen(d);
	return st;
}

/* Two coordinators would give the same ids to different jobs. */
static enum status check_away(const struct daemon *d)
{
	uint32_t n = 0;
	for (uint32_t i = 0; d->away && i < d->n_jobs; i++)
		n += !hosted_ended(d->job[i]);
	if (!n)
		return ST_OK;
	log_error("cluster.coordinator is set, and %u jobs of this gaccd's own are not over: start it without, and let "
		  "them end or cancel them",
		  n);
	return ST_INVALID_CONFIG;
}

static enum status open_sockets(struct daemon *d)
{
	const struct conf *c = d->node.conf;
	struct listen_opts o = { .path = c->listen.socket,
				 .group = c->listen.group,
				 .mode = c->listen.mode,
				 .max_per_uid = c->listen.connections_per_user,
				 .gone = on_connection_gone };
	enum status st = check_away(d);
	if (!st)
		st = node_dial_new(d);
	if (!st)
		st = session_map_open(d);
	if (!st)
		st = listener_open(&d->node.loop, &o, on_connection, d, &d->listener);
	if (!st)
		st = failpoint_socket_open(&d->node.loop, c->runtime_dir, &d->failpoints);
	if (!st)
		st = rpc_server_start(d->rpc); /* late: a server that has started cannot be freed without a stop */
	return st;
}

static void start_handles(struct daemon *d)
{
	uv_idle_init(&d->node.loop, &d->idle);
	uv_timer_init(&d->node.loop, &d->tick);
	uv_signal_init(&d->node.loop, &d->on_term);
	uv_signal_init(&d->node.loop, &d->on_int);
	uv_signal_init(&d->node.loop, &d->on_hup);
	d->idle.data = d->tick.data = d->on_term.data = d->on_int.data = d->on_hup.data = d;
	turns_start(&d->turns, &d->node.loop);
	uv_timer_start(&d->tick, on_tick, NODE_TICK_MS, NODE_TICK_MS);
	uv_signal_start(&d->on_term, on_signal, SIGTERM);
	uv_signal_start(&d->on_int, on_signal, SIGINT);
	uv_signal_start(&d->on_hup, on_signal, SIGHUP);
}

static enum status start(struct daemon *d)
{
	d->ports = part_ports();
	d->node.starting = true;
	enum status st = links_new(d, daemon_takes);
	if (!st)
		st = exchanging_open(d);
	if (!st)
		st = open_store(d);
	if (!st)
		st = open_rpc(d);
	FAILPOINT(gaccd_restore_before);
	if (!st)
		st = part_records_read(d);
	if (!st)
		st = hosted_recover(d);
	if (!st)
		st = parts_recover(d);
	if (!st)
		st = part_launch_recover(d);
	FAILPOINT(gaccd_restore_after);
	if (!st)
		st = journal_keep_check(d);
	if (!st)
		st = stored_check_taken(d);
	if (!st)
		st = open_sockets(d);
	d->node.starting = false;
	if (st)
		return st;
	node_dial_tick(d, daemon_now(d)); /* calls are relayed before there can be one */
	stored_drop_strangers(d);
	upgrade_check_note(d->node.conf);
	rpc_health_set(d->health, "", true);
	rpc_health_set(d->health, "gacc.v1.GradientService", true);
	rpc_health_set(d->health, "gacc.v1.JobService", true);
	rpc_health_set(d->health, "gacc.v1.NodeService", true);
	d->watchdog_us = fdstore_watchdog_us(d->node.fdstore);
	fdstore_ready(d->node.fdstore);
	char text[256];
	snprintf(text, sizeof(text), "gaccd %s ready on %s (incarnation %llu, term %llu, %u jobs)", GACC_VERSION,
		 d->node.conf->listen.socket, (unsigned long long)d->node.incarnation, (unsigned long long)d->term,
		 d->n_jobs);
	daemon_event(d, false, "Ready", text);
	return ST_OK;
}

/* ---- tear down, in mirror order ---- */

static void close_handle(uv_handle_t *h, void *arg)
{
	if (!uv_is_closing(h))
		uv_close(h, NULL);
}

/* The pool must not work on jobs that are gone. */
static void wait_for_allocations(struct daemon *d)
{
	while (state_share_busy(d) || (d->rpc && rpc_pool_busy(d->node.pool)))
		uv_run(&d->node.loop, UV_RUN_ONCE);
	for (uint32_t i = 0; i < d->node.n_parts; i++)
		while (d->node.part[i]->mem.allocating)
			uv_run(&d->node.loop, UV_RUN_ONCE);
	for (uint32_t i = 0; i < d->n_jobs; i++)
		while (saving_busy(d->job[i]))
			uv_run(&d->node.loop, UV_RUN_ONCE);
}

/* Others run the loop until their work is done: what it would deliver then must not find the jobs that are gone. */
static void free_jobs(struct daemon *d)
{
	persist_mute(d->persist);
	hosted_submit_give_up(d);
	daemon_drop_posted(d);
	links_free(d);
	reply_drop_late(d);
	hosted_free_all(d);
	exchanging_close(d);
	part_launch_free_all(d);
	rank_logs_free(d);
	parts_free_all(d);
	part_records_free(d);
}

static void finish(struct daemon *d)
{
	wait_for_allocations(d);
	failpoint_socket_close(d->failpoints);
	listener_close(d->listener);
	if (d->attach)
		attach_close(d->attach);
	free_jobs(d);
	recorder_free(d->recorder); /* who reads asks the server for its call */
	history_close(d->history);
	rpc_health_free(d->health);
	node_dial_free(d);
	rpc_server_free(d->rpc);
	node_serve_free(d);
	rpc_quota_fini(&d->node.collected);
	persist_free(d->persist);
	disk_watch_free(d->disk);
	state_share_free(d->share);
	fdstore_cancel(d->journal_keeping);
	journal_close(d->journal);
	fdstore_close(d->node.fdstore);
	free(d->node.stored);
	free(d->node.part);
	uv_close((uv_handle_t *)&d->idle, NULL);
	uv_close((uv_handle_t *)&d->tick, NULL);
	uv_close((uv_handle_t *)&d->turns.prepare, NULL);
	uv_close((uv_handle_t *)&d->on_term, NULL);
	uv_close((uv_handle_t *)&d->on_int, NULL);
	uv_close((uv_handle_t *)&d->on_hup, NULL);
	uv_run(&d->node.loop, UV_RUN_DEFAULT);
	uv_walk(&d->node.loop, close_handle, NULL); /* engines that have not exited yet: they end with their sockets */
	uv_run(&d->node.loop, UV_RUN_DEFAULT);
	uv_loop_close(&d->node.loop);
}

int daemon_give_up(int code, size_t stored)
{
	if (stored == 0 || code == 0)
		return code;
	if (code == DAEMON_EXIT_CONFIG)
		code = DAEMON_EXIT_CONFIG_KEPT;
	if (code == DAEMON_EXIT_CONFIG_KEPT || code == DAEMON_EXIT_JOURNAL) {
		log_error("the service manager keeps the jobs' memory (%zu descriptors) meanwhile; next try in %d s",
			  stored, REST_S);
		sleep(REST_S);
	}
	return code;
}

/* What the process ends with after a start that has failed. */
static int exit_code(const struct daemon *d, enum status st, size_t stored)
{
	if (d->journal_lost)
		return daemon_give_up(DAEMON_EXIT_JOURNAL, stored);
	if (st == ST_INVALID_CONFIG || st == ST_ALREADY_EXISTS)
		return daemon_give_up(DAEMON_EXIT_CONFIG, stored);
	return st == ST_OK ? 0 : st == ST_STORE_FAILED ? DAEMON_EXIT_JOURNAL : 1;
}

int daemon_run(const struct conf *conf)
{
	uint64_t descriptors_before = descriptors_raise();
	size_t stored = fdstore_inherited();
	if (hosted_queue_check_held(stored, 0) != ST_OK)
		return 1;
	struct daemon *d = calloc(1, sizeof(*d));
	if (!d || rpc_pool_make_threads() || uv_loop_init(&d->node.loop))
		return 1;
	d->node.conf = conf;
	d->away = *conf->cluster.coordinator != '\0';
	d->node.descriptors_before = descriptors_before;
	d->posted_tail = &d->posted;
	d->started_unix_ns = daemon_now(d).unix_ns;
	if (fdstore_open(&d->node.fdstore, &d->node.stored, &d->node.n_stored) ||
	    fdstore_start(d->node.fdstore, &d->node.loop))
		return 1;
	start_handles(d);
	enum status st = start(d);
	if (!st)
		uv_run(&d->node.loop, UV_RUN_DEFAULT);
	else
		log_error("cannot start: %s", d->journal_lost		? "its journal lacks what was acknowledged"
					      : st == ST_ALREADY_EXISTS ? "its socket is in use"
									: status_info(st)->text);
	d->node.stopping = true; /* no tick for what is half restored, or half gone */
	if (st == ST_STORE_FAILED)
		disk_watch_wait(conf->state_dir);
	finish(d);
	int code = exit_code(d, st, stored);
	free(d);
	return code;
}
