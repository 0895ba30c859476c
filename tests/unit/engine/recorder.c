/* SPDX-License-Identifier: Apache-2.0 */
/* The recording arithmetic, for test_arith.c. Operations come from the test's thread, reads from any. */
#include "recorder.h"

#include "engine/arith_host.h"

#include <check.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static struct recorder *recorder(struct arith *a)
{
	return (struct recorder *)a;
}

/* ---- notes ---- */

__attribute__((format(printf, 2, 3))) static void say(struct recorder *r, const char *fmt, ...)
{
	size_t n = strlen(r->said);
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(r->said + n, sizeof(r->said) - n, fmt, ap);
	va_end(ap);
	ck_assert_uint_lt(strlen(r->said), sizeof(r->said) - 1);
}

/* The page's record, not the engine's copy: what a successor would find. */
static struct control_record in_force(const struct recorder *r)
{
	struct control_state s;
	bool corrupt;
	ck_assert_int_eq(control_state_init(&s, r->mem.plan->ranks, r->mem.plan->max_micro_size), ST_OK);
	ck_assert(control_page_read(&r->mem.page, &s, &corrupt));
	struct control_record record = s.r;
	control_state_fini(&s);
	return record;
}

static bool fails(struct recorder *r, const char *op)
{
	if (!r->fail || strcmp(r->fail, op))
		return false;
	*r->failed_at = in_force(r).seq;
	return true;
}

static void note_io(struct recorder *r, bool write, enum segment_role role, uint64_t offset, uint64_t n)
{
	pthread_mutex_lock(&r->lock);
	ck_assert_uint_lt(r->n_io, RECORDED_IO);
	r->io[r->n_io++] = (struct recorded_io){ write, role, offset, n };
	pthread_mutex_unlock(&r->lock);
}

/* ---- operations ---- */

static enum status add(struct arith *a, uint32_t dst, uint32_t src, bool first, const struct arith_source *s,
		       uint32_t n, uint64_t *nonfinite, struct arith_norm *norm)
{
	struct recorder *r = recorder(a);
	say(r, "add %u", dst);
	if (!first)
		say(r, "=%u", src);
	for (uint32_t i = 0; i < n; i++)
		say(r, "+%g*%u%s", s[i].coefficient, s[i].slot, s[i].present ? "p" : "");
	say(r, "%s; ", norm ? " norm" : "");
	return fails(r, "add") ? ST_IO_ERROR : r->real->ops->add(r->real, dst, src, first, s, n, nonfinite, norm);
}

static enum status take(struct arith *a, const struct arith_source *s, uint64_t *nonfinite, struct arith_norm *norm)
{
	struct recorder *r = recorder(a);
	say(r, "take %g*%u%s; ", s->coefficient, s->slot, s->present ? "p" : "");
	return fails(r, "take") ? ST_IO_ERROR : r->real->ops->take(r->real, s, nonfinite, norm);
}

static enum status inspect(struct arith *a, uint32_t half, struct arith_norm *out)
{
	struct recorder *r = recorder(a);
	say(r, "inspect %u; ", half);
	return fails(r, "inspect") ? ST_IO_ERROR : r->real->ops->inspect(r->real, half, out);
}

static enum status reduce(struct arith *a, struct coll *coll, uint32_t dst, uint32_t src, bool filled,
			  struct arith_norm *norm)
{
	struct recorder *r = recorder(a);
	say(r, "reduce %u=%u%s; ", dst, src, filled ? "" : " of nothing");
	return r->real->ops->reduce(r->real, coll, dst, src, filled, norm);
}

static enum status broadcast(struct arith *a, struct coll *coll, uint32_t root)
{
	struct recorder *r = recorder(a);
	say(r, "broadcast from %u; ", root);
	return r->real->ops->broadcast(r->real, coll, root);
}

static enum status scale(struct arith *a, uint32_t dst, uint32_t src, double factor, double clip_value)
{
	struct recorder *r = recorder(a);
	say(r, "scale %u=%g*%u clip %g in phase %u; ", dst, factor, src, clip_value, in_force(r).phase);
	return fails(r, "scale") ? ST_IO_ERROR : r->real->ops->scale(r->real, dst, src, factor, clip_value);
}

static enum status zero_slot(struct arith *a, uint32_t slot)
{
	struct recorder *r = recorder(a);
	say(r, "zero_slot %u of %u; ", slot, in_force(r).n_zero);
	return fails(r, "zero_slot") ? ST_IO_ERROR : r->real->ops->zero_slot(r->real, slot);
}

static enum status put(struct arith *a, uint32_t slot, uint64_t offset, uint64_t bytes)
{
	struct recorder *r = recorder(a);
	say(r, "put %u %" PRIu64 "+%" PRIu64 "; ", slot, offset, bytes);
	return fails(r, "put") ? ST_IO_ERROR : r->real->ops->put(r->real, slot, offset, bytes);
}

static enum status init(struct arith *a)
{
	struct recorder *r = recorder(a);
	say(r, "init; ");
	return fails(r, "init") ? ST_IO_ERROR : r->real->ops->init(r->real);
}

static enum status update_begin(struct arith *a, uint64_t window)
{
	struct recorder *r = recorder(a);
	say(r, "update_begin %" PRIu64 " in phase %u; ", window, in_force(r).phase);
	return fails(r, "update_begin") ? ST_IO_ERROR : r->real->ops->update_begin(r->real, window);
}

static enum status update_can_resume(struct arith *a, uint64_t window, bool *out)
{
	struct recorder *r = recorder(a);
	say(r, "update_can_resume %" PRIu64 "; ", window);
	return r->real->ops->update_can_resume(r->real, window, out);
}

static enum status update_run(struct arith *a, const struct control_record *record, uint32_t half,
			      struct arith_params *out)
{
	struct recorder *r = recorder(a);
	say(r, "update_run %" PRIu64 " with %u in phase %u; ", record->commit_window, half, in_force(r).phase);
	return fails(r, "update_run") ? ST_IO_ERROR : r->real->ops->update_run(r->real, record, half, out);
}

static enum status inspect_params(struct arith *a, struct arith_params *out)
{
	struct recorder *r = recorder(a);
	say(r, "inspect_params; ");
	return fails(r, "inspect_params") ? ST_IO_ERROR : r->real->ops->inspect_params(r->real, out);
}

static enum status read_bytes(struct arith *a, enum segment_role role, uint64_t offset, uint64_t n, void *to)
{
	struct recorder *r = recorder(a);
	note_io(r, false, role, offset, n);
	return fails(r, "read") ? ST_IO_ERROR : r->real->ops->read(r->real, role, offset, n, to);
}

static enum status write_bytes(struct arith *a, enum segment_role role, uint64_t offset, uint64_t n, const void *from)
{
	struct recorder *r = recorder(a);
	note_io(r, true, role, offset, n);
	return fails(r, "write") ? ST_IO_ERROR : r->real->ops->write(r->real, role, offset, n, from);
}

static enum status norms(struct arith *a, uint32_t half)
{
	struct recorder *r = recorder(a);
	say(r, "norms %u; ", half);
	return fails(r, "norms") ? ST_IO_ERROR : r->real->ops->norms(r->real, half);
}

static const struct arith_ops recording = { .add = add,
					    .take = take,
					    .inspect = inspect,
					    .reduce = reduce,
					    .broadcast = broadcast,
					    .scale = scale,
					    .zero_slot = zero_slot,
					    .put = put,
					    .init = init,
					    .update_begin = update_begin,
					    .update_can_resume = update_can_resume,
					    .update_run = update_run,
					    .inspect_params = inspect_params,
					    .read = read_bytes,
					    .write = write_bytes,
					    .norms = norms };

/* ---- the engine ---- */

static void first_record(struct engine *e)
{
	struct control_record *r = &e->state.r;
	const struct plan *p = e->mem.plan;
	r->job_id = p->job_id;
	r->micro_size = p->micro_size;
	r->loss_scale = p->loss_scale;
	r->last_rank = UINT32_MAX;
	r->ranges_hash = plan_ranges_hash(p);
	engine_publish(e);
}

/* Only what engine.c's `build` makes, and the state that its `start` leaves. */
static void build(struct recorder *r)
{
	struct engine *e = &r->e;
	const struct plan *p = r->mem.plan;
	bool corrupt;
	ck_assert_int_eq(workers_new(&e->workers, p->threads), ST_OK);
	ck_assert_int_eq(arith_host_open(&r->real, &r->mem, "", e->workers), ST_OK);
	e->mem = r->mem;
	e->mem.accum[0] = e->mem.accum[1] = e->mem.params = NULL;
	e->mem.master = e->mem.state[0] = e->mem.state[1] = NULL;
	e->mem.slot = NULL;
	e->mem.segment = NULL;
	e->arith = &r->arith;
	ck_assert_int_eq(control_state_init(&e->state, p->ranks, p->max_micro_size), ST_OK);
	ck_assert_int_eq(accum_init(&e->accum, p->slots, p->max_micro_size, p->canonical), ST_OK);
	ck_assert_int_eq(snapshot_new(&e->snapshot, &e->mem, e->arith, e->workers, segment_memory_available), ST_OK);
	if (!control_page_read(&e->mem.page, &e->state, &corrupt))
		first_record(e);
	engine_show_ranks(e);
	e->running = true;
}

void recorder_prepare(struct recorder *r)
{
	int pair[2];
	*r = (struct recorder){ .arith = { .ops = &recording, .name = "recorded" }, .mem = MEMORY_NONE };
	pthread_mutex_init(&r->lock, NULL);
	r->failed_at = mmap(NULL, sizeof(*r->failed_at), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert(r->failed_at != MAP_FAILED);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	r->e.fd = pair[0];
	r->peer = pair[1];
}

void recorder_open(struct recorder *r, const struct rig *rig)
{
	char why[200];
	ck_assert_int_eq(memory_take(&r->mem, dup(rig->plan_fd), RIG_GENERATION, why, sizeof(why)), ST_OK);
	for (int i = 0; i < rig->n_segments; i++)
		ck_assert_int_eq(memory_take(&r->mem, dup(rig->segment[i].fd), RIG_GENERATION, why, sizeof(why)),
				 ST_OK);
	build(r);
}

void recorder_close(struct recorder *r)
{
	snapshot_free(r->e.snapshot);
	accum_fini(&r->e.accum);
	control_state_fini(&r->e.state);
	r->real->ops->close(r->real);
	workers_free(r->e.workers);
	memory_fini(&r->mem);
}

void recorder_dismiss(struct recorder *r)
{
	munmap(r->failed_at, sizeof(*r->failed_at));
	close(r->e.fd);
	close(r->peer);
	pthread_mutex_destroy(&r->lock);
}

void recorder_command(struct recorder *r, struct engine_command c, const void *tail)
{
	static void (*const plain[])(struct engine *, const struct engine_command *) = {
		[ENGINE_ATTACH] = window_attach,	 [ENGINE_FLUSH] = window_flush,
		[ENGINE_CLOSE] = window_close,		 [ENGINE_GO] = step_go,
		[ENGINE_COMMIT] = step_commit,		 [ENGINE_PUT_PARAMS] = step_put_params,
		[ENGINE_INIT_PARAMS] = step_init_params, [ENGINE_ACK_STEP] = step_ack,
	};
	c.id = ++r->n_commands;
	if (c.op == ENGINE_ADD)
		push_add(&r->e, &c, tail);
	else if (c.op == ENGINE_CHECKPOINT)
		saving_begin(&r->e, &c, tail);
	else if (c.op == ENGINE_RESTORE)
		saving_restore(&r->e, &c, tail);
	else
		plain[c.op](&r->e, &c);
}

struct engine_answer recorder_answer(struct recorder *r)
{
	struct engine_answer a;
	ck_assert_int_eq(packet_recv(r->peer, &a, sizeof(a), NULL, NULL), (int)sizeof(a));
	return a;
}

void recorder_expect(struct recorder *r, const char *want)
{
	ck_assert_str_eq(r->said, want);
	r->said[0] = '\0';
}
