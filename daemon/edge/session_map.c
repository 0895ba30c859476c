/* SPDX-License-Identifier: Apache-2.0 */
/* Serves the attach socket: which descriptors a session gets, and what the end of its connection means for its rank.
 * Opened by daemon.c; asks the session's part. Loop thread. */
#include "edge/daemon.h"
#include "edge/part_views.h"
#include "edge/session_id.h"
#include "gacc/v1/attach.pb-c.h"
#include "host/attach.h"
#include "host/map_request.h"
#include "proto/version.h"
#include "runtime/part.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* parameters, status, two slots, two reduced halves; the three of a mailbox */
#define MAX_SEGMENTS 9
_Static_assert(MAX_SEGMENTS == ATTACH_FDS_PER_MAP, "what one answer can carry");

struct answer {
	Gacc__V1__Segment segment[MAX_SEGMENTS], *list[MAX_SEGMENTS];
	int fd[MAX_SEGMENTS];
	bool own[MAX_SEGMENTS]; /* fd is ours to close */
	size_t n;
};

static void refuse(struct daemon *d, uint64_t conn, enum status st, const char *text)
{
	Gacc__V1__MapResponse m = GACC__V1__MAP_RESPONSE__INIT;
	uint8_t bytes[1024];
	m.version = MAP_VERSION;
	m.reason = (char *)status_info(st)->name;
	m.message = (char *)text;
	if (gacc__v1__map_response__get_packed_size(&m) <= sizeof(bytes))
		attach_reply(d->attach, conn, bytes, gacc__v1__map_response__pack(&m, bytes), NULL, 0);
}

static void add_fd(struct answer *a, int fd, bool own, Gacc__V1__SegmentKind kind, uint32_t index, uint64_t bytes,
		   uint64_t data_offset)
{
	Gacc__V1__Segment *o = &a->segment[a->n];
	gacc__v1__segment__init(o);
	o->kind = kind;
	o->index = index;
	o->bytes = bytes;
	o->data_offset = data_offset;
	a->list[a->n] = o;
	a->fd[a->n] = fd;
	a->own[a->n++] = own;
}

/* All memory of a part is made together, and slots on a device may then get other memory. Not 0. */
static uint64_t identify(struct part *part, uint32_t role, uint32_t index)
{
	struct stat control = { 0 };
	const struct segment *s = part_segment(part, SEG_CONTROL, 0);
	if (s)
		fstat(s->fd, &control);
	const uint64_t what[] = { control.st_dev, control.st_ino, role, index,
				  role == SEG_SLOT ? part_slots_exchanges(part, index) : 0 };
	return XXH3_64bits(what, sizeof(what)) | 1;
}

static bool add(struct answer *a, struct part *part, uint32_t role, uint32_t index, Gacc__V1__SegmentKind kind,
		uint32_t number, bool writable)
{
	struct segment *s = part_segment(part, role, index);
	const uint64_t bytes = s ? part->mem.wanted[s - part->mem.segment].bytes : 0;
	const bool on_device = s && part->mem.wanted[s - part->mem.segment].on_device;
	const bool as_it_is = writable || on_device; /* a descriptor of a device's memory has no lesser right */
	int fd = !s || s->fd < 0 ? -1 : as_it_is ? s->fd : segment_readonly_fd(s->fd);
	if (fd < 0)
		return false;
	add_fd(a, fd, !as_it_is, kind, number, bytes + SEGMENT_DATA_OFFSET, SEGMENT_DATA_OFFSET);
	if (on_device) {
		a->segment[a->n - 1].on_device = true;
		a->segment[a->n - 1].identity = identify(part, role, index);
	}
	return true;
}

static bool collect(struct answer *a, struct part *part, uint32_t rank)
{
	uint32_t n, first = job_session_slots(part->job, rank, &n);
	bool ok = add(a, part, SEG_PARAMS, 0, GACC__V1__SEGMENT_KIND__SEGMENT_KIND_PARAMETERS, 0, false) &&
		  add(a, part, SEG_STATUS, 0, GACC__V1__SEGMENT_KIND__SEGMENT_KIND_STATUS, 0, false);
	for (uint32_t i = 0; i < n && ok; i++)
		ok = add(a, part, SEG_SLOT, first + i, GACC__V1__SEGMENT_KIND__SEGMENT_KIND_SLOT, i, true);
	for (uint32_t i = 0; i < 2 && ok && part->spec->optim.type == OPTIM_CLIENT; i++)
		ok = add(a, part, SEG_ACCUM0 + i, 0, GACC__V1__SEGMENT_KIND__SEGMENT_KIND_REDUCED, i, false);
	return ok;
}

/* Without one, all goes by RPC. */
static bool add_mailbox(struct answer *a, struct part *part, uint32_t rank)
{
	const struct mailbox_fds *f = part_mailbox(part, rank);
	uint64_t n_tensors;
	if (!f)
		return false;
	job_tensors(part->job, &n_tensors);
	add_fd(a, f->memory, false, GACC__V1__SEGMENT_KIND__SEGMENT_KIND_MAILBOX, 0, gacc_box_bytes(n_tensors), 0);
	add_fd(a, f->submit, false, GACC__V1__SEGMENT_KIND__SEGMENT_KIND_SUBMIT, 0, 0, 0);
	add_fd(a, f->waits, false, GACC__V1__SEGMENT_KIND__SEGMENT_KIND_ANSWER, 0, 0, 0);
	return true;
}

static void note_link(struct daemon *d, uint64_t conn, struct part *part, uint32_t rank, bool has_mailbox)
{
	struct attach_note note = { .job = part->id, .generation = job_generation(part->job, rank), .rank = rank };
	attach_set_note(d->attach, conn, &note);
	part->n_links++;
	part_view_send(part);
	job_on_mapped(part->job, rank, note.generation);
	job_on_link(part->job, rank, note.generation, true, node_now());
	if (has_mailbox)
		job_on_mailbox(part->job, rank, note.generation);
}

/* Is the trainer where the slots are? */
static enum status check_gpu(struct part *part, const struct map_request *q, char *why, size_t n_why)
{
	const char *hint = status_info(ST_DEVICE_MISMATCH)->hint;
	char gpu[PART_GPU_BYTES];
	if (!part_slots_on_device(part))
		return ST_OK;
	part_device_gpu(part, gpu);
	if (q->device && !strcmp(q->gpu, gpu))
		return ST_OK;
	if (q->device && *q->gpu)
		snprintf(why, n_why, "the job's slots are in the memory of %s, and this trainer uses %s: %s", gpu,
			 q->gpu, hint);
	else
		snprintf(why, n_why,
			 "the job's slots are in the memory of %s, and this trainer does not say that it uses it: %s",
			 gpu, hint);
	return ST_DEVICE_MISMATCH;
}

static enum status prepare(struct answer *a, struct part *part, uint32_t rank, const struct map_request *q, char *why,
			   size_t n_why)
{
	snprintf(why, n_why, "the job has no memory yet: call RegisterTensors first");
	/* the pool is at work on the segments, or nobody keeps them yet */
	if (part_memory_is_due(part) || !part->mem.n)
		return ST_NOT_READY;
	enum status st = check_gpu(part, q, why, n_why);
	if (!st)
		st = part_slots_ready(part, rank, why, n_why);
	if (!st && !collect(a, part, rank))
		st = ST_NOT_READY;
	if (!st && q->device && (st = part_slots_device(part, rank)))
		snprintf(why, n_why, "it cannot be noted that a device uses the slots: gaccd's log says why");
	return st;
}

static void answer(struct daemon *d, uint64_t conn, struct part *part, uint32_t rank, const struct map_request *q)
{
	struct answer a = { .n = 0 };
	uint8_t bytes[1024];
	char why[480];
	enum status st = prepare(&a, part, rank, q, why, sizeof(why));
	if (st) {
		refuse(d, conn, st, why);
	} else {
		Gacc__V1__MapResponse m = GACC__V1__MAP_RESPONSE__INIT;
		m.version = MAP_VERSION;
		bool has_mailbox = q->wants_mailbox && add_mailbox(&a, part, rank);
		m.n_segments = a.n;
		m.segments = a.list;
		if (!attach_reply(d->attach, conn, bytes, gacc__v1__map_response__pack(&m, bytes), a.fd, a.n))
			note_link(d, conn, part, rank, has_mailbox);
	}
	for (size_t i = 0; i < a.n; i++)
		if (a.own[i])
			close(a.fd[i]);
}

static void on_request(void *arg, uint64_t conn, const struct listen_peer *peer, const void *bytes, size_t n)
{
	struct daemon *d = arg;
	struct map_request q;
	struct reply why = { 0 };
	enum status st = map_request_parse(bytes, n, &q, why.text, sizeof(why.text));
	if (st) {
		refuse(d, conn, st, why.text);
		return;
	}
	struct part *part = part_for_rank(&d->node, session_job_id(q.session), session_rank(q.session));
	struct session_key k = { .uid = peer->uid, .rank = session_rank(q.session) };
	memcpy(k.token, q.token, sizeof(k.token));
	if (!part) {
		snprintf(why.text, sizeof(why.text), "session %llu is of no job here: attach again",
			 (unsigned long long)q.session);
		refuse(d, conn, ST_SESSION_UNKNOWN, why.text);
	} else if (!job_may_map(part->job, &k, &why)) {
		char text[sizeof(why.text) + sizeof(why.hint) + 2];
		snprintf(text, sizeof(text), "%s: %s", why.text, *why.hint ? why.hint : status_info(why.status)->hint);
		refuse(d, conn, why.status, text);
	} else {
		answer(d, conn, part, k.rank, &q);
	}
}

static void on_refused(void *arg, uint64_t conn, enum status st, const char *why)
{
	refuse(arg, conn, st, why);
}

/* Whether its process lives is asked of /proc when its slots are wanted (job_ports.process_alive). */
static void on_closed(void *arg, uint64_t conn, const struct attach_note *note)
{
	struct daemon *d = arg;
	struct part *part = note ? part_of_rank(&d->node, note->job, note->rank) : NULL;
	if (!part)
		return;
	part->n_links--;
	part_view_send(part);
	if (!d->node.stopping)
		job_on_link(part->job, note->rank, note->generation, false, daemon_now(d));
}

enum status session_map_open(struct daemon *d)
{
	static const struct attach_events events = { on_request, on_refused, on_closed };
	struct listen_opts o = { .path = d->node.conf->listen.attach_socket,
				 .group = d->node.conf->listen.group,
				 .mode = d->node.conf->listen.mode,
				 .max_per_uid = d->node.conf->listen.connections_per_user };
	return attach_open(&d->node.loop, &o, &events, d, &d->attach);
}
