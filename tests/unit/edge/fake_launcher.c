/* SPDX-License-Identifier: Apache-2.0 */
/* A launcher for unit tests: the functions of launch/proc.h, without a process and without a socket. One thread. */
#include "fake_launcher.h"

#include "gacc/v1/common.pb-c.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whoever is connected. */
struct launch_proc {
	struct launch_proc_events events;
	void *arg;
};

struct fake_launcher fake;
static struct launch_proc *proc;

void fake_launcher_reset(void)
{
	fake = (struct fake_launcher){ 0 };
}

/* ---- launch/proc.h ---- */

enum status launch_proc_open(void *loop, const struct launcher_args *a, bool start,
			     const struct launch_proc_events *events, void *arg, struct launch_proc **out)
{
	ck_assert(!fake.open);
	snprintf(fake.uuid, sizeof(fake.uuid), "%s", a->uuid);
	if (fake.refuses)
		return ST_IO_ERROR;
	if (!fake.lives && !start)
		return ST_UNAVAILABLE;
	fake.found += fake.lives;
	fake.started += !fake.lives;
	fake.lives = fake.open = true;
	proc = malloc(sizeof(*proc));
	ck_assert_ptr_nonnull(proc);
	*proc = (struct launch_proc){ *events, arg };
	*out = proc;
	return ST_OK;
}

bool launch_proc_order(struct launch_proc *p, const struct launch_order *o, const void *words, uint32_t n)
{
	ck_assert_ptr_eq(p, proc);
	if (fake.full)
		return false;
	ck_assert_uint_lt(fake.n_orders, FAKE_ORDERS);
	ck_assert_uint_lt(n, FAKE_WORDS);
	fake.order[fake.n_orders++] = *o;
	memset(fake.words, 0, sizeof(fake.words));
	for (uint32_t i = 0; i < n; i++)
		fake.words[i] = ((const char *)words)[i] ? ((const char *)words)[i] : '|';
	return true;
}

int64_t launch_proc_pid(const struct launch_proc *p)
{
	return FAKE_PID;
}

void launch_proc_close(struct launch_proc *p)
{
	if (p)
		fake.open = false;
	free(p);
}

/* ---- what it says ---- */

void fake_says(const struct launch_summary *is)
{
	ck_assert(fake.open);
	const char tail[] = "last words";
	proc->events.summary(proc->arg, is, tail, is->cause.known ? sizeof(tail) - 1 : 0);
}

void fake_says_phase(enum launch_phase phase)
{
	const struct launch_summary is = { .phase = phase, .master_port = 4000 };
	fake_says(&is);
}

void fake_says_rank(uint32_t rank, enum launch_rank_state state, int64_t pid, int32_t exit_status, uint32_t restarts)
{
	const struct launch_rank is = { state, pid, exit_status, restarts, 0 };
	ck_assert(fake.open);
	proc->events.rank(proc->arg, rank, &is);
}

void fake_dies(void)
{
	struct launch_proc *p = proc;
	ck_assert(fake.open);
	fake.open = fake.lives = false;
	p->events.gone(p->arg);
	free(p);
}

const struct launch_order *fake_order(void)
{
	ck_assert_uint_gt(fake.n_orders, 0);
	return &fake.order[fake.n_orders - 1];
}

void fake_traces(const char *runtime_dir, uint64_t job, const char *uuid, bool there)
{
	const struct launcher_args a = { .job_id = job, .uuid = uuid, .runtime_dir = runtime_dir };
	char path[4200];
	launcher_state_path(&a, path, sizeof(path));
	if (!there) {
		ck_assert_int_eq(unlink(path), 0);
		return;
	}
	FILE *f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fclose(f), 0);
}

void with_launch(Gacc__V1__JobSpec *spec)
{
	static char train[] = "train", now[] = "now", tmp[] = "/tmp", logs[] = "/tmp/logs", key[] = "A", value[] = "b";
	static char *command[] = { train, now };
	static Gacc__V1__Launch launch;
	static Gacc__V1__Label variable, *environment[] = { &variable };
	gacc__v1__launch__init(&launch);
	gacc__v1__label__init(&variable);
	variable.key = key;
	variable.value = value;
	launch.command = command;
	launch.n_command = 2;
	launch.environment = environment;
	launch.n_environment = 1;
	launch.working_dir = tmp;
	launch.max_restarts = 5;
	launch.grace_ms = 700;
	spec->launch = GACC__V1__LAUNCH_MODE__LAUNCH_MODE_DAEMON;
	spec->launch_command = &launch;
	spec->log_dir = logs;
}
