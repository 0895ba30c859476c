/* SPDX-License-Identifier: Apache-2.0 */
/* An engine without gaccd: what control and edge do for one, for a job of one kind. */
#include "engine_alone.h"

#include "base/log.h"
#include "base/packet.h"
#include "bench.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define JOB 7
#define GENERATION 1
#define TENSORS 3
#define NAME_BYTES 8

static void need(enum status st, const char *why)
{
	if (st)
		bench_die("%s: %s", status_info(st)->name, why);
}

/* ---- the job ---- */

/* TENSORS equal ones and what is left over. */
static void lay_out(struct arena *a, size_t n_elements, char names[TENSORS][NAME_BYTES])
{
	struct tensor_spec t[TENSORS];
	char why[200] = "";
	for (int i = 0; i < TENSORS; i++) {
		size_t n = i ? n_elements / TENSORS : n_elements - n_elements / TENSORS * (TENSORS - 1);
		snprintf(names[i], NAME_BYTES, "t%d", i);
		t[i] = (struct tensor_spec){
			.name = names[i], .dtype = DTYPE_F32, .n_dims = 1, .shape = { (int64_t)n }
		};
	}
	need(arena_init(a, t, TENSORS, DTYPE_NONE, why, sizeof(why)), why);
}

static struct plan head_of(const struct arena *a, uint32_t threads)
{
	struct plan p = { .version = PLAN_VERSION,
			  .bytes_of_plan = sizeof(p),
			  .job_id = JOB,
			  .n_parts = 1,
			  .n_shards = 1,
			  .fingerprint = a->fingerprint,
			  .ranks = 1,
			  .max_micro_size = ALONE_SLOTS,
			  .micro_size = ALONE_SLOTS,
			  .slots = ALONE_SLOTS,
			  .slots_per_rank = ALONE_SLOTS,
			  .reduction = REDUCE_WEIGHTED_MEAN,
			  .grad_of = GRAD_OF_MEAN,
			  .threads = threads,
			  .canonical = 1,
			  .reject_nonfinite = 1,
			  .acc_dtype = DTYPE_F32,
			  .n_groups = (uint32_t)a->n_groups,
			  .optim = { .type = OPTIM_ADAMW, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8 },
			  .loss_scale = 1,
			  .n_elements = a->n_elements,
			  .slot_bytes = a->slot_bytes,
			  .param_bytes = a->param_bytes,
			  .n_tensors = TENSORS,
			  .n_ranges = 1,
			  .n_optim_groups = 1,
			  .names_bytes = TENSORS * NAME_BYTES };
	memcpy(p.group, a->group, sizeof(p.group));
	p.tensors_offset = sizeof(p);
	p.ranges_offset = p.tensors_offset + TENSORS * sizeof(struct plan_tensor);
	p.optim_groups_offset = p.ranges_offset + sizeof(struct plan_range);
	p.names_offset = (p.optim_groups_offset + sizeof(struct optim_group) + 7) / 8 * 8;
	p.bytes = p.names_offset + p.names_bytes;
	return p;
}

static void build_plan(struct alone *e, size_t n_elements, uint32_t threads)
{
	struct arena a;
	char names[TENSORS][NAME_BYTES] = { "" }, why[200] = "";
	lay_out(&a, n_elements, names);
	const struct plan head = head_of(&a, threads);
	e->plan = calloc(1, head.bytes);
	if (!e->plan)
		bench_die("no memory");
	*e->plan = head;
	char *base = (char *)e->plan;
	struct plan_tensor *t = (struct plan_tensor *)(base + head.tensors_offset);
	for (int i = 0; i < TENSORS; i++) {
		t[i] = (struct plan_tensor){ .start = a.tensor[i].start,
					     .count = a.tensor[i].count,
					     .alias = -1,
					     .name_offset = (uint64_t)i * NAME_BYTES,
					     .n_dims = 1,
					     .shape = { (int64_t)a.tensor[i].count } };
	}
	*(struct plan_range *)(base + head.ranges_offset) = (struct plan_range){ 0, a.n_elements, 0, 0 };
	*(struct optim_group *)(base + head.optim_groups_offset) = (struct optim_group){ 1, 0.01, false };
	memcpy(base + head.names_offset, names, sizeof(names));
	arena_fini(&a);
	need(plan_check(e->plan, head.bytes, why, sizeof(why)), why);
	e->plan_fd = memfd_create("plan", MFD_CLOEXEC);
	if (e->plan_fd < 0 || write(e->plan_fd, e->plan, head.bytes) != (ssize_t)head.bytes)
		bench_die("cannot write the plan: %s", strerror(errno));
}

/* Between -1 and 1, other ones in each slot. */
static void fill_slot(float *at, size_t n, uint32_t slot)
{
	uint32_t x = 2463534242u + slot;
	for (size_t i = 0; i < n; i++) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		at[i] = (float)(int32_t)x * 0x1p-31f;
	}
}

void alone_open(struct alone *e, size_t n_elements, uint32_t threads)
{
	struct plan_segment want[ALONE_SEGMENTS];
	char why[200] = "";
	*e = (struct alone){ .fd = -1 };
	build_plan(e, n_elements, threads);
	e->n_segments = plan_segments(e->plan, want, ALONE_SEGMENTS);
	for (int i = 0; i < e->n_segments; i++) {
		need(segment_create(&e->segment[i], JOB, GENERATION, e->plan->fingerprint, want[i].role, want[i].index,
				    want[i].bytes, true, why, sizeof(why)),
		     why);
		if (want[i].role == SEG_SLOT)
			fill_slot(e->segment[i].data, e->plan->n_elements, want[i].index);
	}
}

void alone_close(struct alone *e)
{
	if (e->pid)
		alone_stop(e);
	for (int i = 0; i < e->n_segments; i++)
		segment_close(&e->segment[i]);
	close(e->plan_fd);
	free(e->plan);
}

/* ---- the process ---- */

static _Noreturn void become_engine(const char *gaccd, int channel)
{
	char name[] = "gaccd", role[] = "--engine";
	char *argv[] = { name, role, NULL };
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (channel == ENGINE_CHANNEL_FD)
		channel = dup(channel); /* dup2 onto itself would leave it to be closed at exec */
	if (dup2(channel, ENGINE_CHANNEL_FD) == ENGINE_CHANNEL_FD)
		execv(gaccd, argv);
	fprintf(stderr, "cannot run %s: %s\n", gaccd, strerror(errno));
	_exit(127);
}

static struct engine_answer receive(struct alone *e)
{
	struct engine_answer a;
	int n;
	while ((n = packet_recv(e->fd, &a, sizeof(a), NULL, NULL)) == -EAGAIN)
		poll(&(struct pollfd){ .fd = e->fd, .events = POLLIN }, 1, -1);
	if (n != (int)sizeof(a))
		bench_die("the engine is gone, or of a build whose answers are other ones");
	if (a.status)
		bench_die("the engine answers %s: %s", status_info((enum status)a.status)->name, a.text);
	return a;
}

void alone_start(struct alone *e, const char *gaccd)
{
	int pair[2], fds[1 + ALONE_SEGMENTS] = { e->plan_fd };
	const struct engine_command c = { .op = ENGINE_START,
					  .job_id = JOB,
					  .generation = GENERATION,
					  .epoch = 1,
					  .incarnation = 1,
					  .log_level = LOG_WARN };
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		bench_die("socketpair: %s", strerror(errno));
	e->pid = fork();
	if (e->pid < 0)
		bench_die("cannot fork: %s", strerror(errno));
	if (e->pid == 0)
		become_engine(gaccd, pair[1]);
	close(pair[1]);
	e->fd = pair[0];
	for (int i = 0; i < e->n_segments; i++)
		fds[1 + i] = e->segment[i].fd;
	if (packet_send(e->fd, &c, sizeof(c), NULL, 0, fds, 1 + e->n_segments))
		bench_die("%s does not take its memory", gaccd);
	const struct engine_answer hello = receive(e);
	if (hello.version != ENGINE_CHANNEL_VERSION)
		bench_die("%s speaks version %u of the engine's channel, this program %d", gaccd, hello.version,
			  ENGINE_CHANNEL_VERSION);
	e->window = hello.window;
	if (clock_getcpuclockid(e->pid, &e->cpu))
		bench_die("the engine has no CPU clock");
	alone_call(e, (struct engine_command){ .op = ENGINE_ATTACH, .sgen = 1 });
	alone_call(e, (struct engine_command){ .op = ENGINE_PUT_PARAMS, .sgen = 1, .last = 1 }); /* zeros, once */
}

void alone_stop(struct alone *e)
{
	alone_call(e, (struct engine_command){ .op = ENGINE_STOP });
	close(e->fd);
	waitpid(e->pid, NULL, 0);
	e->pid = 0;
}

/* ---- commands ---- */

struct engine_answer alone_call(struct alone *e, struct engine_command c)
{
	c.id = ++e->next_id;
	if (packet_send(e->fd, &c, sizeof(c), NULL, 0, NULL, 0))
		bench_die("the engine is gone");
	return receive(e);
}

void alone_add(struct alone *e, uint32_t slot)
{
	alone_call(
		e,
		(struct engine_command){
			.op = ENGINE_ADD, .sgen = 1, .window = e->window, .micro = slot, .slot = slot, .weight = 1 });
}

void alone_go(struct alone *e, uint64_t attempt)
{
	alone_call(e, (struct engine_command){
			      .op = ENGINE_GO, .window = e->window, .term = 1, .attempt = attempt, .close = 1 });
}

uint64_t alone_commit(struct alone *e, uint64_t attempt)
{
	const struct engine_answer a = alone_call(e, (struct engine_command){ .op = ENGINE_COMMIT,
									      .window = e->window,
									      .term = 1,
									      .attempt = attempt,
									      .applied_step = ++e->applied_step,
									      .outcome = 1,
									      .next_micro_size = ALONE_SLOTS,
									      .scale = 0.25,
									      .lr = 1e-3,
									      .next_loss_scale = 1 });
	e->window++;
	return a.digest;
}

double alone_cpu(const struct alone *e)
{
	struct timespec t;
	if (clock_gettime(e->cpu, &t))
		bench_die("the engine is gone");
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
