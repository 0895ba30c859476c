/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmarks of the running service share: clocks, rounds, the table, a gaccd of their own.
 *
 * A measurement is a ratio: ours and its limit are timed one after the other in the same round, round after round, and
 * the ratio is taken within the round, so that a busy neighbour disturbs both. A row shows the median of the
 * rounds, the middle half, the same by CPU time, and how much CPU others used meanwhile (foreign): rows with much of
 * it say little about wall time.
 *
 * Failures end the program with a message.
 */
#ifndef GACC_TESTS_BENCH_H
#define GACC_TESTS_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define BENCH_MAX_ROUNDS 101
#define BENCH_MAX_PROCESSES 16

_Noreturn void bench_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
double bench_seconds(void);

/* The n-th part (0..1) of the values; sorts them. */
double bench_quantile(double *v, size_t n, double part);
double bench_median(const double *v, size_t n);

/* ---- processes ---- */

/* CPU seconds that a live process has used. */
double bench_cpu(pid_t pid);
/* Page faults, minor and major. */
uint64_t bench_faults(pid_t pid);
/* Children of `parent`; returns how many, at most max. */
int bench_children(pid_t parent, pid_t *out, int max);

/* Processes whose CPU time belongs to a measurement. */
struct bench_group {
	pid_t pid[BENCH_MAX_PROCESSES];
	int n;
};
double bench_group_cpu(const struct bench_group *group);

/* CPU seconds of all CPUs so far, idle time left out: what is more than the group's is foreign. */
double bench_machine_cpu(void);

/* ---- a daemon ---- */

struct bench_daemon {
	pid_t pid;
	char dir[64];
	char endpoint[96]; /* "unix:..." */
};
/* A program that lies beside this one. */
void bench_program(const char *name, char *out, size_t n);
/* Starts the gaccd that lies beside this program, with a new directory under /tmp, and waits until it listens. Before
 * gRPC is initialised here. `threads`: engine.threads. */
void bench_daemon_start(struct bench_daemon *daemon, unsigned threads);
/* Ends it and removes its directory. */
void bench_daemon_stop(struct bench_daemon *daemon);
/* Removes a directory with all that is in it. */
void bench_remove(const char *dir);
/* This process, the daemon and its engines as they are now. */
struct bench_group bench_daemon_group(const struct bench_daemon *daemon);

/* ---- the table ---- */

struct bench_row {
	const char *id; /* of docs/performance.md: "C4" */
	char what[64];
	char limit_name[40];
	const char *unit;
	double factor;	    /* unit = seconds * factor, or 1 */
	double goal;	    /* 0: none, only reported */
	bool goal_is_floor; /* the ratio must be at least the goal, else at most */
	size_t rounds;
	double ours[BENCH_MAX_ROUNDS], limit[BENCH_MAX_ROUNDS];
	double ours_cpu[BENCH_MAX_ROUNDS], limit_cpu[BENCH_MAX_ROUNDS]; /* seconds of all processes; 0: not taken */
	double foreign[BENCH_MAX_ROUNDS];				/* CPUs */
};
/* Which way the ratio goes: cost = ours / limit (goal_is_floor false), share of the limit = limit / ours (true). */
void bench_table_head(void);
void bench_row_print(const struct bench_row *row);
/* A plain value that should be at most the goal. */
void bench_value_print(const char *id, const char *what, double value, const char *unit, double goal);

/* Foreign CPUs between two moments of a measurement. */
struct bench_watch {
	double wall, machine, group;
};
struct bench_watch bench_watch_start(const struct bench_group *group);
double bench_watch_foreign(const struct bench_watch *since, const struct bench_group *group);

#endif
