/* SPDX-License-Identifier: Apache-2.0 */
/* What a step costs end to end when the trainers compute nothing.
 *
 *   bench_step [-r rounds, 5..101] [-p parameters, default 10000000] [-R ranks, 1 or 2] [-t]
 *
 * K = 4 zero-copy pushes of each rank, clip by norm, AdamW, parameters readable. Rows:
 *   C3c  the step against its floor: each pass's bytes at the bandwidth of a triad, AdamW's reads at that of plain
 * reading C3d  the tail, from the last push's call to the parameters, against the last pass and AdamW of the same floor
 *   C9   with -t, in place of the others: 300 tensors against one of the same bytes
 *   C12  99th percentile of the steps against their median; the engine's page faults after the first steps
 *   C10  private memory of gaccd and engine beyond the arenas
 * A second rank is a process that does the same. The gradient norm of each step is compared with one computed in f64.
 */
#include "bench.h"
#include "memory.h"
#include "trainer.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define K 4
#define STEPS_MAX 20000
#define TENSORS_MANY 300

struct setup {
	size_t rounds, steps; /* steps in a round */
	size_t n_elements, n_tensors;
	int ranks;
	unsigned threads;
};

/* A job that runs, with this process as rank 0. */
struct running {
	struct bench_daemon daemon;
	struct trainer trainer;
	struct bench_group group;
	pid_t other; /* rank 1; 0: none */
	pid_t engine;
};

struct step_time {
	double all, tail;
};

static struct step_time step(struct running *r)
{
	gacc_step s;
	double start = bench_seconds(), last = start;
	for (int k = 0; k < K; k++) {
		last = bench_seconds();
		trainer_push(&r->trainer);
	}
	trainer_need(&r->trainer, gacc_wait(r->trainer.job, -1, &s));
	double end = bench_seconds();
	if (fabs(s.grad_norm - r->trainer.norm) > 1e-4 * r->trainer.norm)
		bench_die("gradient norm %.9g, in f64 it is %.9g", s.grad_norm, r->trainer.norm);
	return (struct step_time){ end - start, end - last };
}

static struct trainer_options options_of(const struct setup *s, const char *endpoint, int rank)
{
	return (struct trainer_options){ .endpoint = endpoint,
					 .name = "step",
					 .optimizer = "adamw",
					 .rank = rank,
					 .ranks = s->ranks,
					 .micro_size = K,
					 .n_elements = s->n_elements,
					 .n_tensors = s->n_tensors };
}

/* The other rank, until it is killed. */
static _Noreturn void run_other(const struct setup *s, const char *endpoint)
{
	struct trainer t;
	struct trainer_options o = options_of(s, endpoint, 1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	trainer_open(&t, &o);
	for (;;) {
		for (int k = 0; k < K; k++)
			trainer_push(&t);
		trainer_need(&t, gacc_wait(t.job, -1, NULL));
	}
}

/* This program once more: gRPC does not survive a fork without exec. */
static pid_t start_other(const struct setup *s, const char *endpoint)
{
	char name[] = "bench_step", p[] = "-p", R[] = "-R", o[] = "-o", program[4096], n[24], ranks[12], at[96];
	char *argv[] = { name, p, n, R, ranks, o, at, NULL };
	snprintf(n, sizeof(n), "%zu", s->n_elements);
	snprintf(ranks, sizeof(ranks), "%d", s->ranks);
	snprintf(at, sizeof(at), "%s", endpoint);
	bench_program(name, program, sizeof(program));
	pid_t pid = fork();
	if (pid < 0)
		bench_die("cannot fork: %s", strerror(errno));
	if (pid == 0) {
		execv(program, argv);
		_exit(127);
	}
	return pid;
}

static void begin(struct running *r, const struct setup *s)
{
	*r = (struct running){ .other = 0 };
	bench_daemon_start(&r->daemon, s->threads);
	if (s->ranks > 1)
		r->other = start_other(s, r->daemon.endpoint);
	struct trainer_options o = options_of(s, r->daemon.endpoint, 0);
	trainer_open(&r->trainer, &o);
	r->group = bench_daemon_group(&r->daemon);
	r->engine = r->group.pid[2];
	if (r->other)
		r->group.pid[r->group.n++] = r->other;
	for (size_t i = 0; i < s->steps; i++)
		step(r);
}

static void end(struct running *r)
{
	if (r->other) {
		kill(r->other, SIGKILL);
		waitpid(r->other, NULL, 0);
	}
	trainer_close(&r->trainer);
	bench_daemon_stop(&r->daemon);
}

/* ---- the floor ---- */

struct floor {
	double step, tail, cpu;
};

/* R ranks of a micro-batch in one pass: the first reads 4R and writes 4 bytes of an element, the others read 4R + 4 and
 * write 4; AdamW reads 16. A triad is 12 bytes, a read 4. */
static struct floor measure_floor(struct memory_limits *limits, int ranks)
{
	double triad[3], read[3], cpu = bench_cpu(getpid());
	for (int i = 0; i < 3; i++) {
		triad[i] = memory_limits_time(limits, MEMORY_TRIAD);
		read[i] = memory_limits_time(limits, MEMORY_READ);
	}
	cpu = bench_cpu(getpid()) - cpu;
	double byte = bench_median(triad, 3) / 12, first = byte * (4 * ranks + 4), further = byte * (4 * ranks + 8);
	double adamw = bench_median(read, 3) * 4, both = bench_median(triad, 3) + bench_median(read, 3);
	struct floor f = { .step = first + (K - 1) * further + adamw, .tail = further + adamw };
	f.cpu = f.step * cpu / 3 / both;
	return f;
}

/* ---- the rows ---- */

static void name_row(struct bench_row *row, const char *id, const struct setup *s, const char *what)
{
	row->id = id;
	snprintf(row->what, sizeof(row->what), "%s, %.2fM parameters, %d rank%s", what, (double)s->n_elements * 1e-6,
		 s->ranks, s->ranks > 1 ? "s" : "");
	row->unit = "ms";
	row->factor = 1e3;
}

/* Private memory that is not a mapping of the arenas. */
static double private_mib(pid_t pid)
{
	char path[40], line[128];
	unsigned long kib = 0;
	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "RssAnon: %lu kB", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return (double)kib / 1024;
}

struct steps {
	double all[STEPS_MAX];
	size_t n;
};

static void run_round(struct running *r, const struct setup *s, struct bench_row *whole, struct bench_row *tail,
		      struct memory_limits *limits, struct steps *steps)
{
	double all[STEPS_MAX], tails[STEPS_MAX];
	size_t at = whole->rounds++;
	tail->rounds++;
	struct bench_watch watch = bench_watch_start(&r->group);
	double cpu = bench_group_cpu(&r->group);
	for (size_t i = 0; i < s->steps; i++) {
		struct step_time t = step(r);
		all[i] = t.all;
		tails[i] = t.tail;
		if (steps->n < STEPS_MAX)
			steps->all[steps->n++] = t.all;
	}
	whole->ours_cpu[at] = (bench_group_cpu(&r->group) - cpu) / (double)s->steps;
	struct floor f = measure_floor(limits, s->ranks);
	whole->ours[at] = bench_quantile(all, s->steps, 0.5);
	tail->ours[at] = bench_quantile(tails, s->steps, 0.5);
	whole->limit[at] = f.step;
	whole->limit_cpu[at] = f.cpu;
	tail->limit[at] = f.tail;
	whole->foreign[at] = tail->foreign[at] = bench_watch_foreign(&watch, &r->group);
}

/* With a second rank the floor is measured while that rank waits. */
static void measure_steps(const struct setup *s)
{
	static struct bench_row whole, tail;
	static struct steps steps;
	struct running r;
	char what[64];
	whole = (struct bench_row){ .limit_name = "floor of its passes", .goal = 0.9, .goal_is_floor = true };
	tail = (struct bench_row){ .limit_name = "last pass and AdamW", .goal = 1.15 };
	steps.n = 0;
	name_row(&whole, "C3c", s, "step");
	name_row(&tail, "C3d", s, "tail");
	begin(&r, s);
	struct memory_limits *limits = memory_limits_new(s->n_elements, s->threads);
	measure_floor(limits, s->ranks);
	uint64_t faults = bench_faults(r.engine);
	for (size_t i = 0; i < s->rounds; i++)
		run_round(&r, s, &whole, &tail, limits, &steps);
	faults = bench_faults(r.engine) - faults;
	bench_row_print(&whole);
	bench_row_print(&tail);
	double p99 = bench_quantile(steps.all, steps.n, 0.99), median = bench_quantile(steps.all, steps.n, 0.5);
	snprintf(what, sizeof(what), "p99 of %zu steps / median", steps.n);
	bench_value_print("C12", what, p99 / median, "", 1.5);
	snprintf(what, sizeof(what), "page faults of the engine in %zu steps", steps.n);
	bench_value_print("C12", what, (double)faults, "", 0);
	bench_value_print("C10", "private memory of gaccd", private_mib(r.daemon.pid), "MiB", 64);
	bench_value_print("C10", "private memory of the engine", private_mib(r.engine), "MiB", 64);
	memory_limits_free(limits);
	end(&r);
}

/* Two daemons take turns: one job of many tensors, one of a single one. Only one is awake at a time. */
static void measure_many_tensors(const struct setup *s)
{
	static struct bench_row row;
	static struct running many, one;
	double times[STEPS_MAX];
	struct setup a = *s, b = *s;
	a.n_tensors = TENSORS_MANY;
	b.n_tensors = 1;
	a.ranks = b.ranks = 1;
	row = (struct bench_row){ .limit_name = "the same in one tensor", .goal = 1.1 };
	name_row(&row, "C9", &a, "300 tensors");
	begin(&many, &a);
	begin(&one, &b);
	struct bench_group both = many.group;
	for (int i = 1; i < one.group.n; i++)
		both.pid[both.n++] = one.group.pid[i];
	for (size_t i = 0; i < s->rounds; i++) {
		struct bench_watch watch = bench_watch_start(&both);
		for (int which = 0; which < 2; which++) {
			struct running *r = which ? &one : &many;
			double cpu = bench_group_cpu(&r->group);
			for (size_t j = 0; j < s->steps; j++)
				times[j] = step(r).all;
			(which ? row.limit_cpu : row.ours_cpu)[i] =
				(bench_group_cpu(&r->group) - cpu) / (double)s->steps;
			(which ? row.limit : row.ours)[i] = bench_quantile(times, s->steps, 0.5);
		}
		row.rounds++;
		row.foreign[i] = bench_watch_foreign(&watch, &both);
	}
	bench_row_print(&row);
	end(&one);
	end(&many);
}

int main(int argc, char **argv)
{
	struct setup s = { .rounds = 9,
			   .n_elements = 10000000,
			   .n_tensors = 6,
			   .ranks = 1,
			   .threads = (unsigned)sysconf(_SC_NPROCESSORS_ONLN) };
	const char *other = NULL;
	bool many = false;
	for (int o; (o = getopt(argc, argv, "r:p:R:to:")) != -1;) {
		switch (o) {
		case 'r':
			s.rounds = strtoul(optarg, NULL, 10);
			break;
		case 'p':
			s.n_elements = strtoul(optarg, NULL, 10);
			break;
		case 'R':
			s.ranks = atoi(optarg);
			break;
		case 't':
			many = true;
			break;
		case 'o':
			other = optarg;
			break; /* used by start_other */
		default:
			return 2;
		}
	}
	if (s.rounds < 5 || s.rounds > BENCH_MAX_ROUNDS || s.n_elements < TENSORS_MANY || s.ranks < 1 || s.ranks > 2)
		bench_die("rounds 5..%d, at least %d parameters, 1 or 2 ranks", BENCH_MAX_ROUNDS, TENSORS_MANY);
	s.steps = s.n_elements < 2000000 ? 50 : 10;
	if (other)
		run_other(&s, other);
	bench_table_head();
	if (many)
		measure_many_tensors(&s);
	else
		measure_steps(&s);
	return 0;
}
