/* SPDX-License-Identifier: Apache-2.0 */
/* Members over Gloo in processes of their own, for the tests that kill and stop them. */
#include "crew.h"

#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void wait_a_ms(void)
{
	struct timespec t = { 0, MS };
	nanosleep(&t, NULL);
}

struct crew *crew_new(uint32_t n, uint64_t seed)
{
	struct crew *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert(c != MAP_FAILED);
	c->n = n;
	c->seed = seed;
	c->aborts = n;
	c->stall_ns = c->join_ns = 60000 * MS;
	return c;
}

/* ---- a process ---- */

static int count_entries(const char *path)
{
	int n = 0;
	DIR *dir = opendir(path);
	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

static int count_held(void)
{
	return count_entries("/proc/self/fd") + count_entries("/proc/self/task");
}

/* What has come to `held` and stays: the kernel lists a thread for a moment after it has been joined. */
static int count_left_over(int held)
{
	int left_over = count_held() - held;
	for (int i = 0; i < 1000 && left_over > 0; i++) {
		wait_a_ms();
		left_over = count_held() - held;
	}
	return left_over;
}

static struct crew *aborting;
static struct coll *to_abort;

static void *abort_later(void *arg)
{
	struct hand *h = arg;
	uint64_t seed = aborting->seed;
	while (!h->operations && !aborting->abort_now)
		wait_a_ms();
	struct timespec t = { 0, (long)draw(&seed, 20000000) };
	if (!aborting->abort_now)
		nanosleep(&t, NULL);
	h->aborted_ns = now_ns();
	coll_abort(to_abort);
	return NULL;
}

static void *nothing(void *arg)
{
	return arg;
}

static void work(struct crew *c, struct hand *h, uint32_t part, crew_fn *fn)
{
	struct rig rig = { .n = c->n };
	struct actor a = { .rig = &rig, .part = part };
	struct coll_address all[CREW_MAX];
	struct coll_gloo_config config = { .address = "127.0.0.1" };
	struct coll_config member = { .id = { .job = 1, .k = 1 }, .part = part, .n_parts = c->n, .life = part + 1 };
	struct coll_state state;
	pthread_t thread;
	member.stall_ns = c->stall_ns;
	member.join_ns = c->join_ns;
	struct coll_net *net = coll_gloo_new(&config, NULL);
	h->status = net ? coll_open(net, &member, &a.c, &h->failure) : ST_NO_MEMORY;
	if (h->status != ST_OK)
		return;
	const void *blob = coll_blob(a.c, &h->n_blob);
	memcpy(h->blob, blob, h->n_blob);
	h->open = true;
	while (!c->go)
		wait_a_ms();
	for (uint32_t s = 0; s < c->n; s++)
		all[s] = (struct coll_address){ s + 1, c->hand[s].blob, c->hand[s].n_blob };
	h->status = coll_join(a.c, all);
	h->joined = h->status == ST_OK;
	aborting = c;
	to_abort = a.c;
	bool aborts = h->joined && c->aborts == part && !pthread_create(&thread, NULL, abort_later, h);
	if (h->joined)
		fn(&a, c, h);
	h->failed_ns = now_ns();
	if (aborts)
		pthread_join(thread, NULL);
	coll_poll(a.c, &state);
	h->failure = state.failure;
	snprintf(h->wrong, sizeof(h->wrong), "%s", a.wrong ? a.wrong : "");
	coll_leave(a.c);
	coll_net_free(net);
}

void crew_start(struct crew *c, crew_fn *fn)
{
	for (uint32_t s = 0; s < c->n; s++) {
		struct hand *h = &c->hand[s];
		pid_t pid = fork();
		ck_assert_int_ge(pid, 0);
		if (pid) {
			h->pid = pid;
			continue;
		}
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pthread_t first; /* with it a sanitizer starts a thread of its own */
		if (!pthread_create(&first, NULL, nothing, NULL))
			pthread_join(first, NULL);
		int held = count_held();
		work(c, h, s, fn);
		h->left_over = count_left_over(held);
		h->ended = true;
		_exit(0);
	}
}

/* ---- the test ---- */

#define PATIENCE_MS 30000

static void wait_for(const atomic_bool *b, const char *what)
{
	for (int i = 0; !*b; i++) {
		ck_assert_msg(i < PATIENCE_MS, "%s", what);
		wait_a_ms();
	}
}

void crew_wait_open(struct crew *c)
{
	for (uint32_t s = 0; s < c->n; s++)
		wait_for(&c->hand[s].open, "a member does not open");
}

void crew_wait_operations(struct crew *c, unsigned long long n)
{
	for (uint32_t s = 0; s < c->n; s++)
		for (int i = 0; c->hand[s].operations < n; i++) {
			ck_assert_msg(i < PATIENCE_MS && !c->hand[s].ended, "part %u: %s %s", s,
				      status_info(c->hand[s].status)->name, c->hand[s].failure.text);
			wait_a_ms();
		}
}

void crew_wait(struct crew *c, uint32_t but)
{
	for (uint32_t s = 0; s < c->n; s++) {
		const struct hand *h = &c->hand[s];
		if (s == but)
			continue;
		wait_for(&h->ended, "a member does not end");
		ck_assert_msg(!h->wrong[0], "part %u: %s", s, h->wrong);
		ck_assert_msg(h->left_over == 0, "part %u: %d descriptors and threads too many", s, h->left_over);
	}
}

void crew_end(struct crew *c)
{
	for (uint32_t s = 0; s < c->n; s++)
		if (c->hand[s].pid > 0) {
			kill(c->hand[s].pid, SIGKILL);
			waitpid(c->hand[s].pid, NULL, 0);
		}
	munmap(c, sizeof(*c));
}
