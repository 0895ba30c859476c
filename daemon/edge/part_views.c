/* SPDX-License-Identifier: Apache-2.0 */
/* Collects what the coordinator is told of a part here: its memory, its engine, its trainers' connections. For the
 * part's ports, the attach socket and the tick. Loop thread. */
#include "edge/part_views.h"

#include "edge/links.h"
#include "runtime/engine_proc.h"
#include "runtime/part.h"

#include <stdio.h>

_Static_assert(sizeof(((struct part_view *)0)->gpu) >= PART_GPU_BYTES, "a name fits");

#define EVERY_NS (INT64_C(1000) * 1000000)
#define IN_A_ROW 40 /* an engine that is replaced has two, and people watch what is replaced often */
#define AGAIN_NS (INT64_C(10000) * 1000000) /* one that was lost is replaced */

/* ---- what is cheap to compare ---- */

static void fill_engine(const struct part *p, struct part_view *v)
{
	bool idle = !job_has_tensors(p->job) && !p->tensors.due;
	v->engine_pid = p->engine.proc ? engine_proc_pid(p->engine.proc) : 0;
	v->engine_starts = p->engine.starts;
	v->ranks_known = p->engine.proc ? p->engine.restarts.up : idle;
}

static struct part_view view_of(struct part *p)
{
	struct part_view v = { .job_id = p->id,
			       .epoch = job_part(p->job)->epoch,
			       .incarnation = p->node->incarnation,
			       .part = job_part(p->job)->number,
			       .links = p->n_links,
			       .bytes = p->mem.bytes,
			       .allocating = p->mem.allocating || p->mem.making,
			       .ended = job_ended(p->job),
			       .released = p->mem.released,
			       .has_tensors = job_has_tensors(p->job) };
	fill_engine(p, &v);
	part_device_gpu(p, v.gpu);
	v.gpu_bytes = *v.gpu ? p->mem.gpu_bytes : 0;
	if (v.has_tensors) {
		v.tensors = job_arena(p->job)->n_tensors;
		v.parameters = job_arena(p->job)->n_parameters;
	}
	return v;
}

/* ---- buffers; a part may have thousands of segments ---- */

static const struct buffer_kind {
	const char *name;
	uint32_t first, last; /* roles */
	bool tensors;
	bool mapped, mapped_by_client_optimizers; /* by trainers */
} buffer_kinds[] = {
	{ "accumulator", SEG_ACCUM0, SEG_ACCUM1, true, false, true },
	{ "parameters", SEG_PARAMS, SEG_PARAMS, true, true, true },
	{ "master", SEG_MASTER, SEG_MASTER, true, false, false },
	{ "optimizer state", SEG_STATE0, SEG_STATE1, true, false, false },
	{ "slots", SEG_SLOT, SEG_SLOT, true, true, true },
	{ "control", SEG_CONTROL, SEG_STATUS, false, true, true },
};
#define N_KINDS (sizeof(buffer_kinds) / sizeof(*buffer_kinds))
_Static_assert(2 * N_KINDS + 3 <= PART_VIEW_BUFFERS, "with reserve, exchange and mailboxes");

/* Counted from the beginning, made when a session asks for one. */
static struct part_buffer mailboxes(const struct part *p)
{
	struct part_buffer b = { .kind = "mailboxes", .clients = p->n_links };
	b.bytes = part_mailboxes_need(p->spec, job_arena(p->job)->n_tensors);
	b.segments = b.bytes ? p->spec->ranks : 0;
	return b;
}

static struct part_buffer buffer_of(const struct part *p, const struct buffer_kind *k, bool on_device)
{
	struct part_buffer b = { .tensors = k->tensors ? job_arena(p->job)->n_tensors : 0 };
	snprintf(b.kind, sizeof(b.kind), "%s%s", k->name, on_device ? " (cuda)" : "");
	for (int i = 0; i < p->mem.n; i++)
		if (p->mem.wanted[i].on_device == on_device && p->mem.wanted[i].role >= k->first &&
		    p->mem.wanted[i].role <= k->last) {
			b.segments++;
			b.bytes += p->mem.wanted[i].bytes + SEGMENT_DATA_OFFSET;
		}
	if (on_device)
		return b;
	if (k->mapped || (k->mapped_by_client_optimizers && p->spec->optim.type == OPTIM_CLIENT))
		b.clients = p->n_links;
	return b;
}

/* Where a process died whose device may still write to its slots, the next one gets others. */
static struct part_buffer reserve(const struct part *p)
{
	struct part_buffer b = { .bytes = part_slots_reserve(p) };
	snprintf(b.kind, sizeof(b.kind), "slots in reserve%s", part_slots_on_device(p) ? " (cuda)" : "");
	b.segments = b.bytes ? p->spec->slots_per_rank : 0;
	return b;
}

/* Pinned memory of the engine, through which sums of parts on GPUs pass. */
static struct part_buffer exchange(const struct part *p)
{
	struct part_buffer b = { .kind = "exchange", .bytes = plan_exchange_bytes(p->mem.plan) };
	b.segments = b.bytes ? 2 : 0;
	return b;
}

static void add(struct part_view *v, struct part_buffer b)
{
	if (b.segments)
		v->buffer[v->n_buffers++] = b;
}

static void fill_buffers(const struct part *p, struct part_view *v)
{
	if (!p->mem.n)
		return;
	for (size_t k = 0; k < N_KINDS; k++)
		add(v, buffer_of(p, &buffer_kinds[k], false));
	for (size_t k = 0; k < N_KINDS && part_device_segments(p); k++)
		add(v, buffer_of(p, &buffer_kinds[k], true));
	add(v, reserve(p));
	add(v, exchange(p));
	add(v, mailboxes(p));
}

/* ---- sending ---- */

void part_view_send(struct part *p)
{
	struct part_told *told = &p->told;
	struct part_view v = view_of(p);
	int64_t now = node_now().mono_ns;
	bool news = !told->view.number || !part_view_same(&v, &told->view);
	if ((!news && now - told->sent_ns < AGAIN_NS) || told->next_ns - now > (IN_A_ROW - 1) * EVERY_NS)
		return;
	size_t n = 0;
	fill_buffers(p, &v);
	v.number = told->view.number + 1;
	void *bytes = part_view_pack(&v, &n);
	if (!bytes)
		return; /* the tick tries again */
	told->view = v;
	told->sent_ns = now;
	told->next_ns = (told->next_ns > now ? told->next_ns : now) + EVERY_NS;
	links_send(daemon_of_node(p->node), LINK_VIEW, p->id, v.part, bytes, n);
}
