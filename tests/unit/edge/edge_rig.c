/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon of the edge's unit tests, opened and closed in the order of daemon.c. One thread. */
#include "edge_rig.h"

#include "base/log.h"
#include "edge/checkpoints.h"
#include "edge/disk_watch.h"
#include "edge/exchanging.h"
#include "edge/hosted_norms.h"
#include "edge/part_norms.h"
#include "edge/hosted_ledger.h"
#include "edge/hosted_life.h"
#include "edge/hosted_ports.h"
#include "edge/hosted_seen.h"
#include "edge/hosted_tensors.h"
#include "edge/launching.h"
#include "edge/links.h"
#include "edge/part_launch.h"
#include "edge/part_ports.h"
#include "edge/parts.h"
#include "edge/placing.h"
#include "edge/state_share.h"
#include "rpc/pool.h"
#include "runtime/part_place.h"
#include "runtime/prepared.h"
#include "support/small_job.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct daemon d;
struct conf *conf;
char rig_state[SCRATCH_PATH + 16], rig_runtime[SCRATCH_PATH + 16];

static links_take *const rig_takes[LINK_KINDS] = { [LINK_REPORT] = hosted_take_report,
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
						   [LINK_NORMS_ASK] = part_take_norms_ask,
						   [LINK_NORMS] = hosted_take_norms };

static void open_conf(void)
{
	char dir[SCRATCH_PATH], set[2][SCRATCH_PATH + 32];
	ck_assert(scratch_make(dir));
	snprintf(rig_state, sizeof(rig_state), "%s/state", dir);
	snprintf(rig_runtime, sizeof(rig_runtime), "%s/run", dir);
	ck_assert(!mkdir(rig_state, 0700) && !mkdir(rig_runtime, 0700));
	snprintf(set[0], sizeof(set[0]), "state_dir=%s", rig_state);
	snprintf(set[1], sizeof(set[1]), "runtime_dir=%s", rig_runtime);
	const char *const all[] = { set[0], set[1], "limits.journal_reserve=1MiB", NULL };
	conf = small_conf(all);
}

static void open_store(void)
{
	const struct history_limits limits = { .windows = 100, .events = 100 };
	char path[SCRATCH_PATH + 64];
	snprintf(path, sizeof(path), "%s/journal.sqlite", rig_state);
	ck_assert_int_eq(journal_open(path, &d.journal), ST_OK);
	ck_assert_int_eq(journal_take_incarnation(d.journal, &d.node.incarnation), ST_OK);
	ck_assert_int_eq(journal_take_term(d.journal, &d.term), ST_OK);
	ck_assert_int_eq(persist_new(&d.node.loop, d.journal, d.term, &d.persist), ST_OK);
	snprintf(path, sizeof(path), "%s/history.db", rig_state);
	ck_assert_int_eq(history_open(path, &limits, &d.history), ST_OK);
	ck_assert_int_eq(recorder_new(&d.node.loop, d.history, &d.recorder), ST_OK);
	ck_assert_int_eq(disk_watch_new(&d), ST_OK);
	ck_assert_int_eq(state_share_new(&d), ST_OK);
}

void rig_open(void)
{
	log_init("test", LOG_TEXT, LOG_ERROR);
	unsetenv("NOTIFY_SOCKET");
	open_conf();
	d = (struct daemon){ .node.conf = conf };
	d.posted_tail = &d.posted;
	ck_assert_int_eq(uv_loop_init(&d.node.loop), 0);
	ck_assert_int_eq(fdstore_open(&d.node.fdstore, &d.node.stored, &d.node.n_stored), ST_OK);
	ck_assert_int_eq(fdstore_start(d.node.fdstore, &d.node.loop), ST_OK);
	ck_assert_int_eq(rpc_pool_new(&d.node.loop, &d.node.pool), ST_OK);
	uv_idle_init(&d.node.loop, &d.idle);
	d.idle.data = &d;
	d.ports = part_ports();
	ck_assert_int_eq(links_new(&d, rig_takes), ST_OK);
	ck_assert_int_eq(exchanging_open(&d), ST_OK);
	open_store();
}

void rig_close(void)
{
	rig_run();
	persist_mute(d.persist);
	daemon_drop_posted(&d);
	links_free(&d);
	hosted_free_all(&d);
	exchanging_close(&d);
	d.node.stopping = true;
	parts_free_all(&d);
	recorder_free(d.recorder);
	history_close(d.history);
	rpc_pool_free(d.node.pool);
	persist_free(d.persist);
	disk_watch_free(d.disk);
	state_share_free(d.share);
	journal_close(d.journal);
	fdstore_close(d.node.fdstore);
	free(d.node.stored);
	free(d.node.part);
	uv_close((uv_handle_t *)&d.idle, NULL);
	uv_run(&d.node.loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&d.node.loop), 0);
	conf_free(conf);
}

void rig_run(void)
{
	uv_run(&d.node.loop, UV_RUN_DEFAULT);
}

static struct prepared *prepare(void (*change)(Gacc__V1__JobSpec *))
{
	struct small_job job;
	small_job(&job);
	small_job_add(&job, "w", RIG_ELEMENTS, 0);
	if (change)
		change(&job.spec);
	return prepared_new(&job.spec);
}

static void on_written(void *arg, enum status st)
{
	*(enum status *)arg = st;
}

struct hosted *rig_job(uint64_t id, uint32_t uid, const char *user, void (*change)(Gacc__V1__JobSpec *))
{
	struct hosted *h;
	enum status written = ST_INTERNAL;
	struct prepared *p = prepare(change);
	ck_assert_msg(p->status == ST_OK, "%s", p->why);
	const struct journal_record r = {
		.kind = JOURNAL_JOB,
		.job = { .id = id, .uid = uid, .user = user, .spec = { p->bytes, p->n }, .request_id = { (uint8_t)id } }
	};
	ck_assert_int_eq(persist_put(d.persist, &r, on_written, &written), ST_OK);
	rig_run();
	ck_assert_int_eq(written, ST_OK);
	ck_assert_int_eq(hosted_new(&d, id, uid, user, p, &h), ST_OK);
	prepared_free(p);
	ck_assert_int_eq(hosted_add(&d, h), ST_OK);
	if (d.last_job < id)
		d.last_job = id;
	return h;
}

struct part *rig_part(struct hosted *h)
{
	return rig_part_of(h, 0);
}

struct part *rig_part_of(struct hosted *h, uint32_t part)
{
	struct placing placing = { .status = ST_OK };
	struct part *p;
	char why[320];
	size_t n;
	void *bytes = placing_pack(h, part, &n);
	placing_open(&placing, &d.node, bytes, n, h->tensors);
	ck_assert_msg(!placing.status, "%s", placing.why);
	placing_read(&placing);
	ck_assert_msg(!placing.status, "%s", placing.why);
	ck_assert_int_eq(part_place(&d.node, &placing, d.ports, &p, why, sizeof(why)), ST_OK);
	placing_fini(&placing);
	free(bytes);
	h->part[part].wanted = true;
	ck_assert_ptr_eq(hosted_part_here(h, part), p);
	return p;
}
