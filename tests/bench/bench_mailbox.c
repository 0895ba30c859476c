/* SPDX-License-Identifier: Apache-2.0 */
/* What a push through a mailbox costs besides the arithmetic: a part of goal C4. The engine's cells, queue and record
 * (tests/support/box.c), no tensors, no gaccd.
 *
 *     bench_mailbox [-r rounds, 5..101] [-n pushes in a round]
 *
 * A round is n pushes of a trainer in C, one after the other, n of a trainer in Python (client/examples/mailbox.py),
 * and n times an eventfd there and back between two processes that do nothing else, in turn. Rows: p50 and p99 of C
 * against the eventfds, and of Python against C. `taskset -c 0 bench_mailbox` has all of them on one CPU.
 */
#include "bench.h"
#include "echo.h"

#include "support/box.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MICRO 64
#define PUSHES_MAX 100000
#define WARM_UP 200
#define PATIENCE_MS 10000

static size_t rounds = 15, pushes = 2000;
static double took[PUSHES_MAX];

/* Of one side in one round: seconds. */
struct times {
	double p50, p99, cpu;
};

static struct times times_of(double cpu)
{
	return (struct times){ bench_quantile(took, pushes, 0.5), bench_quantile(took, pushes, 0.99),
			       cpu / (double)pushes };
}

/* ---- the limit ---- */

static struct times echo_round(struct echo *e, const struct bench_group *group)
{
	double cpu = 0;
	for (size_t i = 0; i < WARM_UP + pushes; i++) {
		if (i == WARM_UP)
			cpu = bench_group_cpu(group);
		double begin = bench_seconds();
		echo_call(e);
		if (i >= WARM_UP)
			took[i - WARM_UP] = bench_seconds() - begin;
	}
	return times_of(bench_group_cpu(group) - cpu);
}

/* ---- ours ---- */

static uint64_t pushed; /* in all rounds: a rank's micro-batches come one after the other */

static struct times c_round(struct box_trainer *t, const struct bench_group *group)
{
	struct gacc_box_answer a;
	double cpu = 0;
	for (size_t i = 0; i < WARM_UP + pushes; i++, pushed++) {
		struct gacc_box_request q = { .kind = GACC_BOX_PUSH,
					      .window = pushed / MICRO,
					      .micro = (uint32_t)(pushed % MICRO),
					      .weight = 1,
					      .loss = 0.5 };
		if (i == WARM_UP)
			cpu = bench_group_cpu(group);
		double begin = bench_seconds();
		uint64_t seq = box_publish(t, 0, q, NULL);
		box_bell(t);
		if (!box_await(t, 0, seq, &a, PATIENCE_MS) || a.status || a.result != 1)
			bench_die("push %llu is not counted", (unsigned long long)pushed);
		if (i >= WARM_UP)
			took[i - WARM_UP] = bench_seconds() - begin;
	}
	return times_of(bench_group_cpu(group) - cpu);
}

/* tests/bench/mailbox.py prints p50, p99 and its own CPU time. */
static struct times python_round(struct box_trainer *t, const struct box_world *w, pid_t server)
{
	const struct bench_group served = { { server }, 1 };
	char command[512];
	struct times r;
	int fd[3] = { dup(w->fds[0].memory), dup(w->fds[0].submit), dup(w->fds[0].waits) }; /* not CLOEXEC */
	snprintf(command, sizeof(command),
		 "exec /usr/bin/python3 %s/tests/bench/mailbox.py %d %d %d %llu %llu %d %d %zu", SOURCE_DIR, fd[0],
		 fd[1], fd[2], (unsigned long long)t->seq, (unsigned long long)pushed, MICRO, WARM_UP, pushes);
	double cpu = bench_group_cpu(&served);
	FILE *f = popen(command, "r");
	if (!f || fscanf(f, "%lf %lf %lf", &r.p50, &r.p99, &r.cpu) != 3 || pclose(f) != 0)
		bench_die("%s failed", command);
	cpu = bench_group_cpu(&served) - cpu;
	r.cpu += cpu / (double)(WARM_UP + pushes);
	t->seq += WARM_UP + pushes;
	pushed += WARM_UP + pushes;
	for (int i = 0; i < 3; i++)
		close(fd[i]);
	return r;
}

/* ---- the table ---- */

static void note(struct bench_row *p50, struct bench_row *p99, size_t i, struct times ours, struct times limit,
		 double foreign)
{
	p50->ours[i] = ours.p50;
	p50->limit[i] = limit.p50;
	p99->ours[i] = ours.p99;
	p99->limit[i] = limit.p99;
	p50->ours_cpu[i] = p99->ours_cpu[i] = ours.cpu;
	p50->limit_cpu[i] = p99->limit_cpu[i] = limit.cpu;
	p50->foreign[i] = p99->foreign[i] = foreign;
}

static struct bench_row row(const char *what, const char *limit, double goal)
{
	struct bench_row r = { .id = "C4", .unit = "us", .factor = 1e6, .goal = goal, .rounds = rounds };
	snprintf(r.what, sizeof(r.what), "%s", what);
	snprintf(r.limit_name, sizeof(r.limit_name), "%s", limit);
	return r;
}

int main(int argc, char **argv)
{
	struct box_world w;
	struct box_trainer t;
	struct echo e;
	for (int opt; (opt = getopt(argc, argv, "r:n:")) != -1;)
		if (opt == 'r')
			rounds = (size_t)atoi(optarg);
		else if (opt == 'n')
			pushes = (size_t)atoi(optarg);
		else
			return 2;
	if (rounds < 5 || rounds > BENCH_MAX_ROUNDS || pushes < 100 || pushes > PUSHES_MAX)
		bench_die("usage: %s [-r rounds, 5..%d] [-n pushes, 100..%d]", argv[0], BENCH_MAX_ROUNDS, PUSHES_MAX);
	struct bench_row c50 = row("push through a mailbox, C: p50", "eventfd, there and back", 1.5),
			 c99 = row("the same, p99", "eventfd, there and back", 2.5),
			 py50 = row("push through a mailbox, Python: p50", "the same from C", 1.5),
			 py99 = row("the same, p99", "the same from C", 0);
	echo_start(&e, ECHO_BELL, 0);
	box_world_make(&w, 1, MICRO, 8);
	pid_t server = box_spawn(&w);
	box_trainer_open(&t, &w.fds[0], w.n_tensors);
	const struct bench_group echoes = { { getpid(), e.pid }, 2 }, ours = { { getpid(), server }, 2 },
				 all = { { getpid(), server, e.pid }, 3 };
	for (size_t i = 0; i < rounds; i++) {
		struct bench_watch watch = bench_watch_start(&all);
		struct times limit = echo_round(&e, &echoes), c = c_round(&t, &ours);
		double foreign = bench_watch_foreign(&watch, &all);
		struct times python = python_round(&t, &w, server);
		note(&c50, &c99, i, c, limit, foreign);
		note(&py50, &py99, i, python, c, foreign);
	}
	bench_table_head();
	bench_row_print(&c50);
	bench_row_print(&c99);
	bench_row_print(&py50);
	bench_row_print(&py99);
	box_kill(server);
	kill(e.pid, SIGKILL);
	waitpid(e.pid, NULL, 0);
	box_trainer_close(&t);
	box_world_free(&w);
	return 0;
}
