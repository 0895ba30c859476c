/* SPDX-License-Identifier: Apache-2.0 */
/* Segments, the engine process and what goes over its channel; main thread of a test. */
#include "rig.h"

#include <check.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

void rig_open(struct rig *r, const struct rig_config *c)
{
	char why[200] = "";
	memset(r, 0, sizeof(*r));
	r->config = *c;
	r->fd = -1;
	ck_assert_msg(arena_init(&r->arena, c->tensor, (uint64_t)c->n_tensors, c->grad_dtype, why, sizeof(why)) ==
			      ST_OK,
		      "%s", why);
	rig_build_plan(r);
	ck_assert_msg(plan_check(r->plan, r->plan->bytes, why, sizeof(why)) == ST_OK, "%s", why);
	struct plan_segment want[8 + 64];
	ck_assert_int_le(plan_segments(r->plan, want, 8 + 64), 8 + 64);
	r->n_segments = plan_host_segments(r->plan);
	r->segment = calloc((size_t)r->n_segments, sizeof(*r->segment));
	for (int i = 0; i < r->n_segments; i++)
		ck_assert_msg(segment_create(&r->segment[i], RIG_JOB, RIG_GENERATION, r->plan->fingerprint,
					     want[i].role, want[i].index, want[i].bytes, true, why,
					     sizeof(why)) == ST_OK,
			      "%s", why);
	control_page_view(&r->page, rig_data(r, SEG_CONTROL, 0), r->plan->ranks, r->plan->max_micro_size,
			  r->plan->threads, r->plan->n_tensors);
	ck_assert_int_eq(control_state_init(&r->state, r->plan->ranks, r->plan->max_micro_size), ST_OK);
}

void rig_close(struct rig *r)
{
	if (r->fd >= 0)
		ck_assert_int_eq(rig_wait(r), 0);
	for (int i = 0; i < r->n_segments; i++)
		segment_close(&r->segment[i]);
	for (int i = 0; i < r->n_device; i++)
		close(r->device_fd[i]);
	free(r->device_fd);
	free(r->segment);
	control_state_fini(&r->state);
	close(r->plan_fd);
	free(r->plan);
	arena_fini(&r->arena);
}

/* In packets as gaccd sends them: the plan first, then as many as a packet carries. */
static void send_start(struct rig *r, enum engine_op op, const int *fds, int n)
{
	struct engine_command c = { .op = op,
				    .n_device = (uint32_t)r->n_device,
				    .others_are_over = r->others_are_over,
				    .id = ++r->next_id,
				    .job_id = RIG_JOB,
				    .generation = RIG_GENERATION,
				    .epoch = 1,
				    .incarnation = 1,
				    .coll_address = "127.0.0.1",
				    .stall_ns = r->stall_ns };
	if (r->kernels)
		snprintf(c.kernels, sizeof(c.kernels), "%s", r->kernels);
	int packet[ENGINE_MAX_FDS] = { r->plan_fd }, k = 1;
	for (int i = 0; i < n; i++) {
		packet[k++] = fds[i];
		if (k == ENGINE_MAX_FDS || i == n - 1) {
			ck_assert_int_eq(packet_send(r->fd, &c, sizeof(c), NULL, 0, packet, k), 0);
			k = 0;
		}
	}
}

/* Without fork: this process may have a device open, which does not survive one. */
static pid_t run_program(const struct rig *r, int fd)
{
	char *const arguments[] = { (char *)r->program, (char *)r->argument, NULL };
	posix_spawn_file_actions_t actions;
	pid_t pid;
	ck_assert_int_eq(posix_spawn_file_actions_init(&actions), 0);
	ck_assert_int_eq(posix_spawn_file_actions_adddup2(&actions, fd, ENGINE_CHANNEL_FD), 0);
	ck_assert_int_eq(posix_spawn(&pid, r->program, &actions, NULL, arguments, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	return pid;
}

static void spawn(struct rig *r, enum engine_op op, const int *fds, int n)
{
	int pair[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	fflush(NULL);
	r->pid = r->program ? run_program(r, pair[1]) : fork();
	ck_assert_int_ge(r->pid, 0);
	if (r->pid == 0) {
		struct itimerval end = { .it_value = { r->cpu_us / 1000000, r->cpu_us % 1000000 } };
		close(pair[0]);
		if (r->config.n_parts > 1) /* the channels of the other parts end with the test */
			close_range((unsigned)pair[1] + 1, UINT_MAX, 0), close_range(3, (unsigned)pair[1] - 1, 0);
		setitimer(ITIMER_PROF, &end, NULL); /* 0: off */
		if (r->few_fds)
			setrlimit(RLIMIT_NOFILE, &(struct rlimit){ (rlim_t)dup(pair[1]) + 3, 1 << 10 });
		exit(engine_main(pair[1], r->net, NULL));
	}
	close(pair[1]);
	r->fd = pair[0];
	send_start(r, op, fds, n);
}

struct engine_answer rig_start_with(struct rig *r, const int *fds, int n)
{
	struct engine_answer a = { .op = 0 };
	spawn(r, ENGINE_START, fds, n);
	if (!rig_receive(r, &a))
		a.op = 0;
	return a;
}

void rig_spawn(struct rig *r)
{
	int fds[8 + 64 + 1], n = 0;
	for (int i = 0; i < r->n_segments; i++)
		fds[n++] = r->segment[i].fd;
	for (int i = 0; i < r->n_device; i++)
		fds[n++] = r->device_fd[i];
	spawn(r, ENGINE_START, fds, n);
}

/* Until all descriptors are there. */
static bool take_device(struct rig *r, struct engine_answer *a)
{
	int fds[ENGINE_MAX_FDS], n = ENGINE_MAX_FDS, rc;
	while ((rc = packet_recv(r->fd, a, sizeof(*a), fds, &n)) == -EAGAIN ||
	       (rc == (int)sizeof(*a) && a->op == ENGINE_PING)) { /* a sign of life */
		n = ENGINE_MAX_FDS;
		poll(&(struct pollfd){ .fd = r->fd, .events = POLLIN }, 1, -1);
	}
	if (rc != (int)sizeof(*a) || a->op != ENGINE_ALLOCATE || a->status)
		return false;
	if (!r->device_fd)
		r->device_fd = calloc(a->n_device, sizeof(*r->device_fd));
	ck_assert_int_le(r->n_device + n, (int)a->n_device);
	memcpy(r->device_fd + r->n_device, fds, (size_t)n * sizeof(*fds));
	r->n_device += n;
	return true;
}

struct engine_answer rig_allocate(struct rig *r)
{
	struct engine_answer a = { .op = 0 };
	int fds[8 + 64];
	for (int i = 0; i < r->n_segments; i++)
		fds[i] = r->segment[i].fd;
	spawn(r, ENGINE_ALLOCATE, fds, r->n_segments);
	do {
		if (!take_device(r, &a))
			return a;
	} while (r->n_device < (int)a.n_device);
	struct engine_command c = { .op = ENGINE_START,
				    .id = ++r->next_id,
				    .job_id = RIG_JOB,
				    .generation = RIG_GENERATION,
				    .epoch = 1,
				    .incarnation = 1 };
	ck_assert_int_eq(packet_send(r->fd, &c, sizeof(c), NULL, 0, NULL, 0), 0);
	ck_assert(rig_receive(r, &a));
	r->window = a.window;
	return a;
}

struct engine_answer rig_start(struct rig *r)
{
	struct engine_answer a = { .op = 0 };
	rig_spawn(r);
	rig_receive(r, &a);
	ck_assert_msg(a.op == ENGINE_START && a.status == ST_OK, "start: op %u status %u: %s", a.op, a.status, a.text);
	r->window = a.window;
	return a;
}

void rig_kill(struct rig *r)
{
	kill(r->pid, SIGKILL);
	ck_assert_int_eq(waitpid(r->pid, NULL, 0), r->pid);
	close(r->fd);
	r->fd = -1;
}

int rig_wait(struct rig *r)
{
	int status;
	close(r->fd);
	r->fd = -1;
	ck_assert_int_eq(waitpid(r->pid, &status, 0), r->pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static const struct segment *find(const struct rig *r, uint32_t role, uint32_t index)
{
	for (int i = 0; i < r->n_segments; i++)
		if (r->segment[i].header->role == role && r->segment[i].header->index == index)
			return &r->segment[i];
	ck_abort_msg("no segment of role %u index %u", role, index);
	return NULL;
}

void *rig_data(const struct rig *r, uint32_t role, uint32_t index)
{
	return find(r, role, index)->data;
}

uint64_t rig_bytes(const struct rig *r, uint32_t role, uint32_t index)
{
	return find(r, role, index)->data_bytes;
}

void rig_read(struct rig *r)
{
	bool corrupt;
	ck_assert(control_page_read(&r->page, &r->state, &corrupt));
}

uint64_t rig_send(struct rig *r, struct engine_command c)
{
	return rig_send_with(r, c, NULL);
}

uint64_t rig_send_with(struct rig *r, struct engine_command c, const void *tail)
{
	c.id = ++r->next_id;
	int rc;
	while ((rc = packet_send(r->fd, &c, sizeof(c), tail, tail ? c.n_present : 0, NULL, 0)) == -EAGAIN)
		poll(&(struct pollfd){ .fd = r->fd, .events = POLLOUT }, 1, -1);
	ck_assert_msg(rc == 0 || rc == -EPIPE || rc == -ECONNRESET, "send: %s", strerror(-rc));
	return c.id;
}

/* Also PROGRESS. */
static bool receive(struct rig *r, struct engine_answer *out)
{
	struct {
		struct engine_answer a;
		unsigned char tail[ENGINE_MAX_TAIL];
	} p;
	int rc;
	while ((rc = packet_recv(r->fd, &p, sizeof(p), NULL, NULL)) == -EAGAIN)
		poll(&(struct pollfd){ .fd = r->fd, .events = POLLIN }, 1, -1);
	if (rc == 0 || rc == -ECONNRESET)
		return false;
	ck_assert(rc >= (int)sizeof(p.a) && rc == (int)(sizeof(p.a) + p.a.n_tail));
	memcpy(r->tail, p.tail, p.a.n_tail);
	*out = p.a;
	return true;
}

bool rig_receive(struct rig *r, struct engine_answer *out)
{
	while (receive(r, out)) {
		if (out->op == ENGINE_PING && !out->id)
			continue; /* a sign of life in long work */
		if (out->op != ENGINE_PROGRESS)
			return true;
		ck_assert(out->id == 0 && r->n_progress < RIG_MAX_PROGRESS);
		r->progress[r->n_progress++] = *out;
	}
	return false;
}

struct engine_answer rig_progress(struct rig *r)
{
	struct engine_answer a;
	if (!r->n_progress) {
		ck_assert_msg(receive(r, &a), "the engine is gone");
		ck_assert_uint_eq(a.op, ENGINE_PROGRESS);
		return a;
	}
	a = r->progress[0];
	memmove(r->progress, r->progress + 1, --r->n_progress * sizeof(*r->progress));
	return a;
}

struct engine_answer rig_call(struct rig *r, struct engine_command c)
{
	struct engine_answer a;
	uint64_t id = rig_send(r, c);
	ck_assert_msg(rig_receive(r, &a), "the engine is gone");
	ck_assert_uint_eq(a.id, id);
	ck_assert_uint_eq(a.op, c.op);
	return a;
}

struct engine_command rig_add_command(const struct rig *r, uint32_t rank, uint32_t micro, double weight)
{
	return (struct engine_command){ .op = ENGINE_ADD,
					.rank = rank,
					.sgen = 1,
					.window = r->window,
					.micro = micro,
					.slot = rank * r->config.micro_size + micro,
					.weight = weight,
					.loss = 1.5 };
}

struct engine_answer rig_add(struct rig *r, uint32_t rank, uint32_t micro, double weight)
{
	return rig_call(r, rig_add_command(r, rank, micro, weight));
}

void rig_attach_all(struct rig *r)
{
	for (uint32_t i = 0; i < r->config.ranks; i++)
		ck_assert_uint_eq(
			rig_call(r, (struct engine_command){ .op = ENGINE_ATTACH, .rank = i, .sgen = 1 }).status,
			ST_OK);
}

struct engine_answer rig_flush(struct rig *r, uint32_t rank, bool leave)
{
	return rig_call(r, (struct engine_command){
				   .op = ENGINE_FLUSH, .rank = rank, .sgen = 1, .window = r->window, .leave = leave });
}

struct engine_answer rig_close_window(struct rig *r)
{
	return rig_call(r, (struct engine_command){ .op = ENGINE_CLOSE, .window = r->window });
}

struct engine_answer rig_go(struct rig *r, uint64_t attempt)
{
	return rig_call(r,
			(struct engine_command){ .op = ENGINE_GO, .window = r->window, .term = 1, .attempt = attempt });
}

struct engine_command rig_commit_command(const struct rig *r, uint32_t outcome, double scale, double lr)
{
	return (struct engine_command){ .op = ENGINE_COMMIT,
					.window = r->window,
					.term = 1,
					.attempt = 1,
					.applied_step = r->applied_step + (outcome == 1),
					.outcome = outcome,
					.next_micro_size = r->config.micro_size,
					.scale = scale,
					.lr = lr,
					.next_loss_scale = 1 };
}

struct engine_answer rig_step(struct rig *r, uint32_t outcome, double scale, double lr)
{
	struct engine_answer a = rig_close_window(r);
	ck_assert_uint_eq(a.status, ST_OK);
	a = rig_go(r, 1);
	ck_assert_uint_eq(a.status, ST_OK);
	a = rig_call(r, rig_commit_command(r, outcome, scale, lr));
	ck_assert_msg(a.status == ST_OK, "commit: %u %s", a.status, a.text);
	r->applied_step += outcome == 1;
	r->window++;
	return a;
}

void rig_zero_params(struct rig *r)
{
	struct engine_answer a = rig_call(r, (struct engine_command){ .op = ENGINE_PUT_PARAMS, .sgen = 1, .last = 1 });
	ck_assert_uint_eq(a.status, ST_OK);
}

static void *slot_element(const struct rig *r, uint32_t slot, int tensor, uint64_t i, enum dtype *t)
{
	const struct arena_tensor *a = &r->arena.tensor[tensor];
	*t = r->arena.group[a->group].grad_dtype;
	return (char *)rig_data(r, SEG_SLOT, slot) + a->slot_offset + i * dtype_size(*t);
}

static const struct kernels *reference(void)
{
	static const struct kernels *k;
	if (!k)
		k = kernels_get("reference");
	return k;
}

static float load(const void *at, enum dtype t)
{
	float out;
	if (t == DTYPE_F32)
		return *(const float *)at;
	reference()->to_f32(&out, at, t, 1);
	return out;
}

static void store(void *at, enum dtype t, float value)
{
	if (t == DTYPE_F32)
		*(float *)at = value;
	else
		reference()->from_f32(at, t, &value, 1);
}

void rig_set_gradient(struct rig *r, uint32_t slot, int tensor, uint64_t i, float value)
{
	enum dtype t;
	void *at = slot_element(r, slot, tensor, i, &t);
	store(at, t, value);
}

float rig_gradient(const struct rig *r, uint32_t slot, int tensor, uint64_t i)
{
	enum dtype t;
	void *at = slot_element(r, slot, tensor, i, &t);
	return load(at, t);
}

float rig_param(const struct rig *r, int tensor, uint64_t i)
{
	const struct arena_tensor *a = &r->arena.tensor[tensor];
	enum dtype t = r->arena.group[a->group].param_dtype;
	return load((char *)rig_data(r, SEG_PARAMS, 0) + a->param_offset + i * dtype_size(t), t);
}

double rig_sum(const struct rig *r, uint32_t half, int tensor, uint64_t i)
{
	const void *sum = rig_data(r, SEG_ACCUM0 + half, 0);
	uint64_t at = r->arena.tensor[tensor].start + i;
	return r->config.acc_dtype == DTYPE_F64 ? ((const double *)sum)[at] : ((const float *)sum)[at];
}

static void fill(struct rig *r, uint32_t slot, uint64_t seed, bool exact)
{
	for (int t = 0; t < r->config.n_tensors; t++) {
		enum dtype d;
		char *first = slot_element(r, slot, t, 0, &d);
		for (uint64_t i = 0; r->arena.tensor[t].alias < 0 && i < r->arena.tensor[t].count; i++) {
			uint64_t x = rig_mix(seed * 1000003 + (uint64_t)t * 7919 + i);
			float v = exact ? (float)(int)(x % 17) - 8 : (float)(int32_t)x * 0x1p-31f;
			store(first + i * dtype_size(d), d, v);
		}
	}
}

void rig_fill_slot(struct rig *r, uint32_t slot, uint64_t seed)
{
	fill(r, slot, seed, false);
}

void rig_fill_slot_exact(struct rig *r, uint32_t slot, uint64_t seed)
{
	fill(r, slot, seed, true);
}

void rig_begin(struct rig *r, struct rig_config c)
{
	rig_open(r, &c);
	rig_start(r);
	rig_attach_all(r);
}

void rig_fill_all(struct rig *r, uint64_t seed, bool exact)
{
	for (uint32_t s = 0; s < r->plan->slots; s++)
		(exact ? rig_fill_slot_exact : rig_fill_slot)(r, s, seed * 100 + s);
}

void rig_add_all(struct rig *r, const uint32_t *order)
{
	uint32_t n = r->plan->slots, m = r->config.micro_size, next[64] = { 0 };
	struct engine_answer a;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = order ? order[i] : i;
		if (r->plan->canonical)
			k = k / m * m + next[k / m]++;
		rig_send(r, rig_add_command(r, k / m, k % m, 1 + k));
	}
	for (uint32_t i = 0; i < n; i++) {
		ck_assert(rig_receive(r, &a));
		ck_assert_uint_eq(a.status, ST_OK);
		ck_assert_uint_eq(a.result, COUNTED);
	}
}

void rig_shuffle(uint32_t *order, uint32_t n, uint64_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		order[i] = i;
	for (uint32_t i = n - 1; i > 0; i--) {
		uint32_t j = (uint32_t)(rig_mix(seed + i) % (i + 1)), k = order[i];
		order[i] = order[j];
		order[j] = k;
	}
}
