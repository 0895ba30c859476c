/* SPDX-License-Identifier: Apache-2.0 */
/* What the end of a step costs a sharded job: AdamW on each part's share, and the gather of all shares, over Gloo,
 * between processes on this machine.
 *
 *   bench_shards [-r rounds, 5..101] [-n elements of f32] [-t threads of a part] [-N namespaces]
 *
 * A round is, one after the other: the gather of shares that have been updated before (the limit); the update alone;
 * the update and then the gather; both at once, each piece given as soon as it is updated (goal C6c). With the engine's
 * own code, of parts whose shares are equal: 2 and 4 parts of sharding `full`, and 4 of `hybrid` with a shard_size of
 * 2. Time is that of the slowest process. With -N the processes are in the
 * network namespaces that netns.py makes, whose links have a rate.
 */
#include "members.h"

#include "engine/share_params.h"
#include "engine/update.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static size_t rounds = 15, elements = 16 << 20;
static uint32_t threads = 1;

enum what { GATHER, UPDATE, IN_TURN, AT_ONCE, N_WHAT };

/* A plan of one tensor, and what of it an update reads. */
struct job {
	struct plan plan;
	struct plan_range range;
	struct optim_group group;
};

struct process {
	struct members *members;
	uint32_t part, n_shards;
	struct job job;
	struct memory m;
	struct workers *workers;
	struct update *update;
	float *sum;
	struct control_record record;
	struct coll *c;
	enum what what;
};

static void need(enum status st, const char *what)
{
	if (st)
		bench_die("%s: %s", what, status_info(st)->text);
}

static void *zeros(size_t bytes)
{
	const size_t whole = (bytes + 4095) / 4096 * 4096 + 4096;
	void *p = aligned_alloc(4096, whole);
	if (!p)
		bench_die("no memory");
	return memset(p, 0, whole);
}

/* ---- a part ---- */

static void make_plan(struct job *j, uint32_t part, uint32_t n_parts, uint32_t n_shards)
{
	const struct arena_group all = { .count = elements, .grad_dtype = DTYPE_F32, .param_dtype = DTYPE_F32 };
	j->plan = (struct plan){ .ranks = 1,
				 .max_micro_size = 1,
				 .threads = threads,
				 .acc_dtype = DTYPE_F32,
				 .n_groups = 1,
				 .group = { all },
				 .optim = { .type = OPTIM_ADAMW, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8 },
				 .n_elements = elements,
				 .param_bytes = elements * sizeof(float),
				 .n_ranges = 1,
				 .ranges_offset = offsetof(struct job, range),
				 .n_optim_groups = 1,
				 .optim_groups_offset = offsetof(struct job, group),
				 .part = part,
				 .n_parts = n_parts,
				 .n_shards = n_shards };
	j->range = (struct plan_range){ .count = elements };
	j->group = (struct optim_group){ .lr_scale = 1, .weight_decay = 0.01 };
}

static void make_part(struct process *p)
{
	const uint64_t control = control_page_bytes(1, 1, threads, 1);
	make_plan(&p->job, p->part, p->members->n, p->n_shards);
	p->m = (struct memory){ .plan = &p->job.plan, .params = zeros(elements * sizeof(float)) };
	plan_own(p->m.plan, &p->m.own, &p->m.own_end);
	for (int i = 0; i < 2; i++)
		p->m.state[i] = zeros((p->m.own_end - p->m.own) * sizeof(float));
	control_page_view(&p->m.page, zeros(control), 1, 1, threads, 1);
	p->sum = zeros(elements * sizeof(float));
	for (size_t i = 0; i < elements; i++)
		p->sum[i] = (float)(i % 97) - 48;
	p->record = (struct control_record){ .commit_scale = 0.25, .commit_lr = 1e-3 };
	need(workers_new(&p->workers, threads), "threads");
	need(update_new(&p->update, &p->m, kernels_get(NULL), p->workers), "an update");
}

/* ---- what is measured ---- */

/* As the engine's main thread does it. */
static void update(struct process *p)
{
	const struct sum_view sum = sum_view_of_half(p->m.plan, kernels_get(NULL), p->sum);
	struct arith_share own;
	p->record.commit_applied_step++;
	update_begin(p->update, p->record.commit_applied_step);
	own.values = own.seen = update_run(p->update, &p->record, &sum);
	front_end(update_front(p->update), &own);
}

static void gather(struct process *p)
{
	struct arith_share table[PLAN_MAX_PARTS];
	need(share_params_gather(&p->m, p->c, update_front(p->update), false, table), "the gather");
}

static void in_turn(struct process *p)
{
	update(p);
	gather(p);
}

static void *gather_thread(void *arg)
{
	gather(arg);
	return NULL;
}

static void at_once(struct process *p)
{
	pthread_t thread;
	front_begin(update_front(p->update));
	if (pthread_create(&thread, NULL, gather_thread, p))
		bench_die("no thread");
	update(p);
	pthread_join(thread, NULL);
}

static void work(void *arg)
{
	static void (*const doing[N_WHAT])(struct process *) = { gather, update, in_turn, at_once };
	struct process *p = arg;
	doing[p->what](p);
}

static void run(struct process *p)
{
	members_enter(p->part);
	make_part(p);
	p->c = members_join(p->members, p->part, NULL);
	update(p);
	for (size_t round = 0; round <= rounds; round++) /* the first one warms up */
		for (unsigned what = 0; what < N_WHAT; what++) {
			p->what = (enum what)what;
			members_measure(p->members, p->part, what, round ? round - 1 : 0, work, p);
		}
	coll_leave(p->c);
}

/* ---- the table ---- */

static void fill(double *wall, double *cpu, const struct members *m, enum what what)
{
	for (size_t i = 0; i < rounds; i++) {
		wall[i] = members_slowest(m, what, i);
		cpu[i] = members_cpu(m, what, i);
	}
}

/* n_shards: of sharding `hybrid`, if there are fewer than parts. */
static void compare(uint32_t n_parts, uint32_t n_shards)
{
	static const char *const name[] = {
		[UPDATE] = "the update alone", [IN_TURN] = "AdamW, then gather", [AT_ONCE] = "AdamW with gather"
	};
	struct bench_row row = { .id = "C6c", .limit_name = "gather alone", .unit = "ms", .factor = 1e3 };
	struct bench_group group = { .n = 0 };
	struct members *m = members_new(n_parts);
	const double begin = bench_seconds(), machine = bench_machine_cpu();
	for (uint32_t s = 0; s < n_parts; s++) {
		struct process p = { .members = m, .part = s, .n_shards = n_shards };
		group.pid[group.n] = fork();
		if (!group.pid[group.n++]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			run(&p);
			_exit(0);
		}
	}
	row.rounds = rounds;
	row.foreign[0] = members_wait(&group, begin, machine);
	for (size_t i = 1; i < rounds; i++)
		row.foreign[i] = row.foreign[0];
	fill(row.limit, row.limit_cpu, m, GATHER);
	for (unsigned what = UPDATE; what < N_WHAT; what++) {
		fill(row.ours, row.ours_cpu, m, (enum what)what);
		row.goal = what == AT_ONCE ? 1.1 : 0;
		snprintf(row.what, sizeof(row.what), "%u parts%s, %zu MB: %s", n_parts,
			 n_shards < n_parts ? " in pairs" : "", elements * 4 / 1000000, name[what]);
		bench_row_print(&row);
	}
	members_free(m);
}

int main(int argc, char **argv)
{
	for (int opt; (opt = getopt(argc, argv, "r:n:t:N:")) != -1;)
		if (opt == 'r')
			rounds = (size_t)atol(optarg);
		else if (opt == 'n') /* equal shares of 2 and 4 parts */
			elements = (size_t)atol(optarg) / (4 * PLAN_SHARE_ALIGN) * (4 * PLAN_SHARE_ALIGN);
		else if (opt == 't')
			threads = (uint32_t)atol(optarg);
		else if (opt == 'N')
			members_namespaces = optarg;
		else
			return 2;
	if (rounds < 5 || rounds > BENCH_MAX_ROUNDS || !elements || !threads || threads > PLAN_MAX_THREADS)
		bench_die("rounds are 5..%d, threads 1..%d; elements are not empty", BENCH_MAX_ROUNDS,
			  PLAN_MAX_THREADS);
	bench_table_head();
	compare(2, 2);
	compare(4, 4);
	compare(4, 2);
	return 0;
}
