/* SPDX-License-Identifier: Apache-2.0 */
/* What an acknowledged push costs when there is nearly nothing to add: goal C4, and the commit of a step: goal C7.
 *
 *   bench_push [-r rounds, 5..101] [-n calls in a round] [push | commit | parts]
 *
 * C4: gacc_push of a small arena (one rank, zero-copy slot), by RPC against a unary call of gRPC core with as many
 * bytes over a unix socket, and through a mailbox against an eventfd there and back with the pass between (echo.h says
 * what is in it), beside it without the pass, and with pass and record; of its CPU time, that of all processes, against
 * RPC's. In blocks of n calls, each side once in a round; a block of pushes is one window. A round's
 * figure is the block's median (and its 99th percentile). C7: a whole window of one micro-batch, push and wait, both
 * ways, against two such calls and one fdatasync of a page beside gaccd's journal; and that of a job of several parts
 * with a rank each (C7n), whose engines exchange their sums, against the same and against that with two calls more: a
 * round trip for each of its two phases, vote and commit; of parts on one gaccd, and on a gaccd each. All unless one is
 * named.
 */
#include "bare.h"
#include "bench.h"
#include "cluster.h"
#include "echo.h"
#include "trainer.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ELEMENTS ECHO_ELEMENTS
#define LOG_BYTES (4 << 20)
#define REQUEST_BYTES 64 /* a PushRequest of one rank */
#define CALLS_MAX 10000
#define MAX_PARTS 4

static size_t rounds = 15, calls = 200;

static double took[CALLS_MAX];

/* Median and 99th percentile of a block of calls, and the group's CPU seconds for one. */
struct block {
	double p50, p99, cpu;
};

static struct block time_block(const struct bench_group *group, void (*call)(void *arg), void *arg)
{
	double cpu = bench_group_cpu(group);
	for (size_t i = 0; i < calls; i++) {
		double start = bench_seconds();
		call(arg);
		took[i] = bench_seconds() - start;
	}
	cpu = (bench_group_cpu(group) - cpu) / (double)calls;
	double p99 = bench_quantile(took, calls, 0.99);
	return (struct block){ bench_quantile(took, calls, 0.5), p99, cpu };
}

/* The same of a block of bare calls. */
static struct block time_bare(const struct bench_group *group, struct bare *bare)
{
	double cpu = bench_group_cpu(group);
	struct bare_times t = bare_unary(bare, calls, REQUEST_BYTES);
	return (struct block){ t.p50, t.p99, (bench_group_cpu(group) - cpu) / (double)calls };
}

static void call_echo(void *echo)
{
	echo_call(echo);
}

/* One for each kind of work. */
static struct echo echoes[ECHO_RECORD + 1];

static struct block time_echo(const struct bench_group *group, struct echo *e)
{
	struct block b = time_block(group, call_echo, e);
	echo_check(e);
	return b;
}

static void call_push(void *trainer)
{
	trainer_push(trainer);
}

static void put(struct bench_row *row, double ours, double limit, double ours_cpu, double limit_cpu, double foreign)
{
	size_t i = row->rounds++;
	row->ours[i] = ours;
	row->limit[i] = limit;
	row->ours_cpu[i] = ours_cpu;
	row->limit_cpu[i] = limit_cpu;
	row->foreign[i] = foreign;
}

static struct bench_group group_of(const struct cluster *nodes, const struct bare *bare)
{
	struct bench_group group = cluster_group(nodes);
	group.pid[group.n++] = bare->server;
	group.pid[group.n++] = bare->client;
	for (int i = ECHO_BELL; i <= ECHO_RECORD; i++)
		group.pid[group.n++] = echoes[i].pid;
	return group;
}

/* A job of one rank, which has a mailbox or goes by RPC. */
static void open_job(struct trainer *t, const struct bench_daemon *daemon, const char *name, bool mailbox,
		     size_t micro_size)
{
	setenv("GACC_MAILBOX", mailbox ? "1" : "0", 1);
	trainer_open(t, &(struct trainer_options){ .endpoint = daemon->endpoint,
						   .name = name,
						   .optimizer = "sgd",
						   .ranks = 1,
						   .micro_size = (unsigned)micro_size,
						   .n_elements = ELEMENTS,
						   .n_tensors = 1 });
}

static struct bench_row row(const char *id, const char *what, const char *limit, double goal)
{
	struct bench_row r = { .id = id, .unit = "us", .factor = 1e6, .goal = goal };
	snprintf(r.what, sizeof(r.what), "%s", what);
	snprintf(r.limit_name, sizeof(r.limit_name), "%s", limit);
	return r;
}

static struct block time_window(const struct bench_group *group, struct trainer *t)
{
	struct block b = time_block(group, call_push, t);
	trainer_need(t, gacc_wait(t->job, -1, NULL));
	return b;
}

/* The rows of a push through a mailbox: p50 and p99 against each kind of work. */
struct box_rows {
	struct bench_row p50, p99;
};

static void make_box_rows(struct box_rows *rows)
{
	static const struct {
		const char *limit;
		double p50, p99;
	} of[] = {
		[ECHO_BELL] = { "eventfd, there and back", 0, 0 },
		[ECHO_PASS] = { "eventfds and the pass", 1.5, 2.5 },
		[ECHO_RECORD] = { "eventfds, pass, record", 0, 0 },
	};
	for (int i = ECHO_BELL; i <= ECHO_RECORD; i++) {
		rows[i].p50 = row("C4", "push through a mailbox, 1024 floats, p50", of[i].limit, of[i].p50);
		rows[i].p99 = row("C4", "push through a mailbox, 1024 floats, p99", of[i].limit, of[i].p99);
	}
}

static void print_push(const struct bench_row *p50, const struct bench_row *p99, const struct box_rows *rows,
		       const struct bench_row *cpu)
{
	static const enum echo_work order[] = { ECHO_PASS, ECHO_BELL, ECHO_RECORD };
	bench_row_print(p50);
	bench_row_print(p99);
	for (size_t i = 0; i < sizeof(order) / sizeof(*order); i++) {
		bench_row_print(&rows[order[i]].p50);
		bench_row_print(&rows[order[i]].p99);
	}
	bench_row_print(cpu);
}

static void measure_push(const struct cluster *at, struct bare *bare)
{
	static struct box_rows rows[ECHO_RECORD + 1];
	struct bench_row p50 = row("C4", "push by RPC, 1024 floats, p50", "bare unary call", 2),
			 p99 = row("C4", "push by RPC, 1024 floats, p99", "bare unary call", 0),
			 cpu = row("C4", "CPU of a push through a mailbox, all processes", "of one by RPC", 0.3);
	struct trainer rpc, box;
	make_box_rows(rows);
	open_job(&rpc, &at->node[0], "push-rpc", false, calls);
	open_job(&box, &at->node[0], "push-box", true, calls);
	struct bench_group group = group_of(at, bare);
	time_bare(&group, bare);
	time_window(&group, &rpc);
	time_window(&group, &box);
	for (int e = ECHO_BELL; e <= ECHO_RECORD; e++)
		time_echo(&group, &echoes[e]);
	for (size_t i = 0; i < rounds; i++) {
		struct block bell[ECHO_RECORD + 1];
		struct bench_watch watch = bench_watch_start(&group);
		struct block by_rpc = time_window(&group, &rpc), limit = time_bare(&group, bare),
			     by_box = time_window(&group, &box);
		for (int e = ECHO_BELL; e <= ECHO_RECORD; e++)
			bell[e] = time_echo(&group, &echoes[e]);
		double foreign = bench_watch_foreign(&watch, &group);
		put(&p50, by_rpc.p50, limit.p50, by_rpc.cpu, limit.cpu, foreign);
		put(&p99, by_rpc.p99, limit.p99, 0, 0, foreign);
		for (int e = ECHO_BELL; e <= ECHO_RECORD; e++) {
			put(&rows[e].p50, by_box.p50, bell[e].p50, by_box.cpu, bell[e].cpu, foreign);
			put(&rows[e].p99, by_box.p99, bell[e].p99, 0, 0, foreign);
		}
		put(&cpu, by_box.cpu, by_rpc.cpu, 0, 0, foreign);
	}
	trainer_close(&rpc);
	trainer_close(&box);
	print_push(&p50, &p99, rows, &cpu);
}

/* ---- C7 ---- */

/* A file whose blocks are all there, as those of a journal in use are: only the page is written. */
static int open_log(const char *path)
{
	static const char zeros[LOG_BYTES];
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, zeros, sizeof(zeros)) != sizeof(zeros) || fsync(fd))
		bench_die("cannot write %s", path);
	return fd;
}

static void call_sync(void *fd)
{
	static char page[4096];
	static off_t at;
	page[0]++;
	if (pwrite(*(int *)fd, page, sizeof(page), at) != sizeof(page) || fdatasync(*(int *)fd))
		bench_die("cannot write beside the journal");
	at = (at + (off_t)sizeof(page)) % LOG_BYTES;
}

/* A sync and so many calls; `sync` and `call` are what one takes. */
static struct block sum_of(struct block sync, struct block call, int n)
{
	return (struct block){ sync.p50 + n * call.p50, sync.p99 + n * call.p99, sync.cpu + n * call.cpu };
}

/* One sync and two calls; their medians are added. */
static struct block time_commit(const struct bench_group *group, int fd, struct bare *bare)
{
	struct block sync = time_block(group, call_sync, &fd), call = time_bare(group, bare);
	return sum_of(sync, call, 2);
}

static void call_step(void *arg)
{
	struct trainer *t = arg;
	trainer_push(t);
	trainer_need(t, gacc_wait(t->job, -1, NULL));
}

/* A job of several parts: a rank of each, all in this process. */
struct divided {
	int n;
	struct trainer rank[MAX_PARTS];
};

static void *start_rank(void *trainer)
{
	trainer_start(trainer);
	return NULL;
}

/* n parts on the first n_nodes nodes. The first rank makes the job, and all start at the same time: the job begins when
 * all parts have a rank. */
static void open_divided(struct divided *d, const struct cluster *at, int n, int n_nodes)
{
	pthread_t thread[MAX_PARTS];
	char name[32], nodes[] = "a,b,c,d";
	nodes[2 * n_nodes - 1] = '\0';
	snprintf(name, sizeof(name), "commit-%d-%d", n, n_nodes);
	setenv("GACC_MAILBOX", "1", 1);
	*d = (struct divided){ .n = n };
	for (int i = 0; i < n; i++)
		trainer_attach(&d->rank[i], &(struct trainer_options){ .endpoint = at->node[i * n_nodes / n].endpoint,
								       .name = name,
								       .optimizer = "sgd",
								       .rank = i,
								       .ranks = n,
								       .parts = n,
								       .nodes = n_nodes > 1 ? nodes : NULL,
								       .micro_size = 1,
								       .n_elements = ELEMENTS,
								       .n_tensors = 1 });
	for (int i = 0; i < n; i++)
		if (pthread_create(&thread[i], NULL, start_rank, &d->rank[i]))
			bench_die("no thread");
	for (int i = 0; i < n; i++)
		pthread_join(thread[i], NULL);
}

static void call_divided_step(void *arg)
{
	struct divided *d = arg;
	for (int i = 0; i < d->n; i++)
		trainer_push(&d->rank[i]);
	for (int i = 0; i < d->n; i++)
		trainer_need(&d->rank[i], gacc_wait(d->rank[i].job, -1, NULL));
}

static void measure_divided(const struct cluster *at, struct bare *bare, int fd, int n, int n_nodes)
{
	struct bench_row rows[] = { row("C7n", "", "fdatasync and 2 bare calls", 1.5),
				    row("C7n", "", "fdatasync and 4 bare calls", 1.5) };
	struct divided d;
	for (int i = 0; i < 2; i++)
		snprintf(rows[i].what, sizeof(rows[i].what), "step, 1024 floats, %d parts, %s, p50", n,
			 n_nodes > 1 ? "a gaccd each" : "one gaccd");
	open_divided(&d, at, n, n_nodes);
	struct bench_group group = group_of(at, bare);
	time_block(&group, call_divided_step, &d);
	for (size_t i = 0; i < rounds; i++) {
		struct bench_watch watch = bench_watch_start(&group);
		struct block ours = time_block(&group, call_divided_step, &d),
			     sync = time_block(&group, call_sync, &fd), call = time_bare(&group, bare);
		double foreign = bench_watch_foreign(&watch, &group);
		for (int k = 0; k < 2; k++) {
			struct block limit = sum_of(sync, call, 2 + 2 * k);
			put(&rows[k], ours.p50, limit.p50, ours.cpu, limit.cpu, foreign);
		}
	}
	for (int i = 0; i < n; i++)
		trainer_close(&d.rank[i]);
	for (int k = 0; k < 2; k++)
		bench_row_print(&rows[k]);
}

static void measure_commit(const struct cluster *at, struct bare *bare)
{
	struct bench_row by_rpc = row("C7", "step of 1024 floats, K = 1, by RPC, p50", "fdatasync and 2 bare calls",
				      2.2),
			 by_box = row("C7", "the same through a mailbox", "fdatasync and 2 bare calls", 1.8);
	char path[128];
	struct trainer rpc, box;
	snprintf(path, sizeof(path), "%s/state/bench.log", at->node[0].dir);
	int fd = open_log(path);
	open_job(&rpc, &at->node[0], "commit-rpc", false, 1);
	open_job(&box, &at->node[0], "commit-box", true, 1);
	struct bench_group group = group_of(at, bare);
	time_commit(&group, fd, bare);
	time_block(&group, call_step, &rpc);
	time_block(&group, call_step, &box);
	for (size_t i = 0; i < rounds; i++) {
		struct bench_watch watch = bench_watch_start(&group);
		struct block r = time_block(&group, call_step, &rpc), limit = time_commit(&group, fd, bare),
			     b = time_block(&group, call_step, &box);
		double foreign = bench_watch_foreign(&watch, &group);
		put(&by_rpc, r.p50, limit.p50, r.cpu, limit.cpu, foreign);
		put(&by_box, b.p50, limit.p50, b.cpu, limit.cpu, foreign);
	}
	trainer_close(&rpc);
	trainer_close(&box);
	bench_row_print(&by_rpc);
	bench_row_print(&by_box);
	close(fd);
	unlink(path);
}

static void measure_parts(const struct cluster *at, struct bare *bare)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/state/bench.log", at->node[0].dir);
	int fd = open_log(path);

	for (int n = 2; n <= MAX_PARTS; n += 2)
		for (int each = 0; each < 2; each++)
			measure_divided(at, bare, fd, n, each ? n : 1);
	close(fd);
	unlink(path);
}

int main(int argc, char **argv)
{
	struct bare bare;
	struct cluster nodes;
	for (int o; (o = getopt(argc, argv, "r:n:")) != -1;) {
		if (o == 'r')
			rounds = strtoul(optarg, NULL, 10);
		else if (o == 'n')
			calls = strtoul(optarg, NULL, 10);
		else
			return 2;
	}
	const char *only = optind < argc ? argv[optind] : NULL;
	bool push = !only || strcmp(only, "push") == 0, commit = !only || strcmp(only, "commit") == 0,
	     parts = !only || strcmp(only, "parts") == 0;
	if (rounds < 5 || rounds > BENCH_MAX_ROUNDS || calls < 10 || calls > CALLS_MAX || !(push || commit || parts))
		bench_die("rounds 5..%d, calls 10..%d, push, commit or parts", BENCH_MAX_ROUNDS, CALLS_MAX);
	for (int i = ECHO_BELL; i <= ECHO_RECORD; i++)
		echo_start(&echoes[i], (enum echo_work)i, (uint32_t)calls);
	bare_start(&bare);
	cluster_start(&nodes, parts ? MAX_PARTS : 1, 0);
	bench_table_head();
	if (push)
		measure_push(&nodes, &bare);
	if (commit)
		measure_commit(&nodes, &bare);
	if (parts)
		measure_parts(&nodes, &bare);
	cluster_stop(&nodes);
	bare_stop(&bare);
	return 0;
}
