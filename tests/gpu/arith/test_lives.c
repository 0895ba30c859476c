/* SPDX-License-Identifier: Apache-2.0 */
/* A job's memory on a device through many lives: each process adopts the descriptors that this one keeps, as gaccd
 * does, and dies of SIGKILL at some store of a kernel. In half of the jobs the device goes on with what the dead have
 * queued. The parameters have the host's bits in the end, as if nobody had died. */
#include "twin.h"

#include "base/packet.h"
#include "engine/arith_host.h"
#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define JOBS 6
#define WINDOWS 3
#define SLOTS 4
#define MAX_LIVES 50 /* of a job: fewer than the gate has cells */
#define N_FDS 64

enum phase { TO_FILL, TO_ADD, TO_ADD_MORE, TO_BEGIN, TO_UPDATE };

/* What the control record says, and what the lives have seen. */
static struct scene {
	uint64_t window;
	enum phase phase;
	unsigned applying, held, several;
	struct arith_params params; /* after the last update */
	bool done;
} * scene;

static struct twin t; /* its device's side belongs to the lives */
static int fds[N_FDS], n_fds;
static unsigned deaths, applying, several;

static struct control_record record(uint64_t window)
{
	return (struct control_record){ .window = window,
					.commit_window = window,
					.commit_applied_step = window,
					.commit_scale = 0.25,
					.commit_lr = 0.1 };
}

static void fill(uint64_t window, uint32_t slot)
{
	rig_fill_slot(&t.rig, slot, window * 100 + slot);
}

static const struct arith_source *sources(void)
{
	static struct arith_source s[SLOTS];
	for (uint32_t i = 0; i < SLOTS; i++)
		s[i] = (struct arith_source){ i, 0.5 + i, NULL };
	return s;
}

/* ---- a life ---- */

static void note_stamps(void)
{
	cuda_word stamp[64];
	unsigned held = 0;
	OK(cuda_download(&t.device, stamp, t.memory.stamp, t.memory.shares * sizeof(*stamp)));
	for (uint32_t i = 0; i < t.memory.shares; i++)
		held += CUDA_STAMP_HELD(stamp[i]) != 0;
	scene->applying++;
	scene->several += held >= 2;
}

static void work_on(struct arith *a)
{
	const struct control_record r = record(scene->window);
	uint64_t nonfinite[SLOTS];
	struct arith_norm norm;
	switch (scene->phase) {
	case TO_FILL:
		for (uint32_t i = 0; i < SLOTS; i++) {
			fill(scene->window, i);
			twin_give_slot(&t, i);
		}
		scene->phase = TO_ADD;
		break;
	case TO_ADD:
		OK(a->ops->add(a, 0, 0, true, sources(), 2, nonfinite, NULL));
		scene->phase = TO_ADD_MORE;
		break;
	case TO_ADD_MORE:
		OK(a->ops->add(a, 1, 0, false, sources() + 2, 2, nonfinite, &norm));
		scene->phase = TO_BEGIN;
		break;
	case TO_BEGIN:
		OK(a->ops->update_begin(a, scene->window));
		scene->phase = TO_UPDATE;
		break;
	default:
		OK(a->ops->update_run(a, &r, 1, &scene->params));
		scene->phase = TO_FILL;
		scene->window++;
	}
}

static void adopt(bool ghosts)
{
	char why[200] = "";
	int own[N_FDS];
	bool can = true;
	for (int i = 0; i < n_fds; i++)
		own[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
	twin_device(&t.device);
	ck_assert_msg(cuda_memory_adopt(&t.memory, &t.device, t.rig.plan, RIG_GENERATION, own, n_fds, why,
					sizeof(why)) == ST_OK,
		      "%s", why);
	ck_assert_msg(arith_cuda_open(&t.cuda, &t.memory, &t.mem.page, !ghosts, TWIN_QUIET_NS, why, sizeof(why)) ==
			      ST_OK,
		      "%s", why);
	if (scene->phase != TO_UPDATE)
		return;
	OK(t.cuda->ops->update_can_resume(t.cuda, scene->window, &can));
	ck_assert(can);
	note_stamps();
}

static void live(bool ghosts)
{
	adopt(ghosts);
	while (scene->window <= WINDOWS)
		work_on(t.cuda);
	scene->done = true;
}

/* stores: after which it dies; 0: it does not. */
static void run_life(bool ghosts, uint64_t stores)
{
	int status;
	char text[32];
	fflush(NULL);
	const pid_t child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		snprintf(text, sizeof(text), "%llu", (unsigned long long)stores);
		if (stores)
			setenv("FAKE_CUDA_KILL", text, 1);
		if (ghosts)
			setenv("FAKE_CUDA_LATE", stores % 2 ? "3000" : "0", 1);
		live(ghosts);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	if (WIFSIGNALED(status)) {
		ck_assert_int_eq(WTERMSIG(status), SIGKILL);
		deaths++;
	} else {
		ck_assert_int_eq(WEXITSTATUS(status), 0);
	}
}

/* ---- the memory, which a process makes and hands up, and one reads in the end ---- */

static void make_memory(int socket)
{
	char why[200];
	int own[N_FDS], k = 0;
	twin_device(&t.device);
	OK(cuda_memory_make(&t.memory, &t.device, t.rig.plan, RIG_GENERATION, why, sizeof(why)));
	OK(arith_cuda_open(&t.cuda, &t.memory, &t.mem.page, false, TWIN_QUIET_NS, why, sizeof(why)));
	OK(t.cuda->ops->init(t.cuda));
	for (int i = 0; i < t.memory.n; i++)
		own[k++] = t.memory.arena[i].fd;
	ck_assert_int_eq(packet_send(socket, &k, sizeof(k), NULL, 0, own, k), 0);
}

static void take_memory(void)
{
	int pair[2], status, n;
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	const pid_t child = fork();
	if (child == 0) {
		make_memory(pair[1]);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	n_fds = N_FDS;
	ck_assert_int_eq(packet_recv(pair[0], &n, sizeof(n), fds, &n_fds), (int)sizeof(n));
	ck_assert_int_eq(n_fds, n);
	close(pair[0]);
	close(pair[1]);
}

static void compare(void)
{
	static const enum segment_role roles[] = { SEG_PARAMS, SEG_MASTER, SEG_STATE0, SEG_STATE1 };
	int status;
	const pid_t child = fork();
	if (child == 0) {
		adopt(false); /* all are over: ghosts were waited for by the last one, which has ended by itself */
		for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++)
			if (plan_role_bytes(t.rig.plan, roles[i]))
				twin_same(&t, roles[i], false);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
}

/* ---- a job ---- */

static struct rig_config config(int i)
{
	static const enum optim_type types[] = { OPTIM_ADAMW, OPTIM_LAMB, OPTIM_SGD };
	struct rig_config c = rig_small();
	c.optim = (struct optim_config){
		.type = types[i / 2 % 3], .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1
	};
	c.optim.momentum = c.optim.type == OPTIM_SGD ? 0.9 : 0;
	c.init = (struct init_rule){ .type = INIT_NORMAL, .a = 0, .b = 0.5 };
	return c;
}

static void on_host(struct arith_params *out)
{
	struct arith *a = t.host;
	uint64_t nonfinite[SLOTS];
	struct arith_norm norm;
	OK(a->ops->init(a));
	for (uint64_t w = 1; w <= WINDOWS; w++) {
		const struct control_record r = record(w);
		for (uint32_t i = 0; i < SLOTS; i++)
			fill(w, i);
		OK(a->ops->add(a, 0, 0, true, sources(), 2, nonfinite, NULL));
		OK(a->ops->add(a, 1, 0, false, sources() + 2, 2, nonfinite, &norm));
		OK(a->ops->update_begin(a, w));
		OK(a->ops->update_run(a, &r, 1, out));
	}
}

static void open_host(const struct rig_config *c)
{
	char why[200];
	rig_open(&t.rig, c);
	t.mem = MEMORY_NONE;
	OK(memory_take(&t.mem, dup(t.rig.plan_fd), RIG_GENERATION, why, sizeof(why)));
	for (int i = 0; i < t.rig.n_segments; i++)
		OK(memory_take(&t.mem, dup(t.rig.segment[i].fd), RIG_GENERATION, why, sizeof(why)));
	OK(workers_new(&t.workers, 1));
	OK(arith_host_open(&t.host, &t.mem, "", t.workers));
	twin_plan(&t.rig);
}

START_TEST(parameters_are_those_of_one_life)
{
	const struct rig_config c = config(_i);
	const bool ghosts = _i % 2;
	struct arith_params want;
	twin_environment((uint64_t)_i + 1);
	scene = mmap(NULL, sizeof(*scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert(scene != MAP_FAILED);
	scene->window = 1;
	open_host(&c);
	take_memory();
	for (uint64_t life = 0; !scene->done; life++)
		run_life(ghosts, life < MAX_LIVES ? 1 + rig_mix((uint64_t)_i * 1000 + life) % 40000 : 0);
	on_host(&want);
	ck_assert_uint_eq(scene->params.digest, want.digest);
	ck_assert_uint_eq(scene->params.nonfinite.count, 0);
	compare();
	applying = scene->applying;
	several = scene->several;
	printf("%s: %u deaths, %u while applying, %u with two or more stamps held%s\n", optim_info(c.optim.type)->name,
	       deaths, applying, several, ghosts ? ", each with a ghost" : "");
	ck_assert_uint_ge(deaths, 3);
	t.host->ops->close(t.host);
	workers_free(t.workers);
	memory_fini(&t.mem);
	rig_close(&t.rig);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cuda_lives");
	TCase *c = tcase_create("lives");
	tcase_set_timeout(c, 200);
	tcase_add_loop_test(c, parameters_are_those_of_one_life, 0, JOBS);
	suite_add_tcase(s, c);
	return suite_run(s);
}
