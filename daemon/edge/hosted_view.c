/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the protobuf message of a job from the state of its coordinator, and what the nodes of its parts have said. For
 * the job methods, and for those who watch. Loop thread. */
#include "edge/hosted_view.h"

#include "edge/hosted_nodes.h"
#include "edge/hosted_scalars.h"
#include "control/launch.h"
#include "edge/convert.h"
#include "edge/hosted_past.h"
#include "edge/launching.h"
#include "edge/placing.h"
#include "gacc/v1/job.pb-c.h"
#include "gacc/v1/node.pb-c.h"
#include "proto/bytes.h"
#include "proto/path.h"
#include "proto/utf8.h"

#include <stdlib.h>
#include <string.h>

#define DETAIL_BYTES 128

static char *format_uuid(const uint8_t uuid[16])
{
	char *s = malloc(UUID_TEXT);
	if (s)
		uuid_text(uuid, s);
	return s;
}

static Gacc__V1__JobSpec *copy_spec(const Gacc__V1__JobSpec *spec)
{
	return (Gacc__V1__JobSpec *)bytes_clone(&spec->base);
}

/* A spec may have as many tensors as one request can carry; calls that show many jobs, or one often, leave them out. */
static Gacc__V1__JobSpec *copy_brief_spec(const Gacc__V1__JobSpec *spec)
{
	Gacc__V1__JobSpec s = *spec;
	s.n_tensors = s.n_param_groups = s.n_init = s.n_labels = 0;
	s.launch_command = NULL;
	return copy_spec(&s);
}

#define SPEC_FIELD_OF_JOB 3

/* As a field that this program does not know, protobuf-c sends it as it is. */
static bool add_packed_spec(const struct hosted *h, Gacc__V1__Job *j)
{
	ProtobufCMessageUnknownField *f = malloc(sizeof(*f));
	uint8_t *data = malloc(h->text->n_field);
	if (!f || !data) {
		free(f);
		free(data);
		return false;
	}
	*f = (ProtobufCMessageUnknownField){ SPEC_FIELD_OF_JOB, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, h->text->n_field,
					     memcpy(data, h->text->field, h->text->n_field) };
	j->base.unknown_fields = f;
	j->base.n_unknown_fields = 1;
	return true;
}

static bool add_spec(const struct hosted *h, unsigned parts, Gacc__V1__Job *j)
{
	if (parts & VIEW_SPEC && h->text->field)
		return add_packed_spec(h, j);
	j->spec = parts & VIEW_SPEC ? copy_spec(h->text->pb) : copy_brief_spec(h->text->pb);
	return j->spec != NULL;
}

static bool add_ranks(const struct hosted *h, Gacc__V1__Job *j, struct now now)
{
	uint32_t n;
	const struct rank_progress *p = coord_ranks(h->coord, &n);
	j->ranks = calloc(n, sizeof(*j->ranks));
	j->missing_ranks = calloc(n, sizeof(*j->missing_ranks));
	if (!j->ranks || !j->missing_ranks)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		Gacc__V1__RankStatus *r = malloc(sizeof(*r));
		char *detail = malloc(DETAIL_BYTES);
		if (!r || !detail) {
			free(r);
			free(detail);
			return false;
		}
		gacc__v1__rank_status__init(r);
		convert_rank(h->coord, &p[i], now, r, detail, DETAIL_BYTES);
		r->node = strdup(hosted_node(h, hosted_part_with(h, i)));
		j->ranks[j->n_ranks++] = r;
		if (!r->node)
			return false;
		if (coord_phase(h->coord) == COORD_COLLECT && !p[i].flushed && !p[i].waiting_ns)
			j->missing_ranks[j->n_missing_ranks++] = i;
	}
	return true;
}

/* The ranks of a job that had ended when this gaccd started; launching_view.c fills in what is known of them. */
static bool add_past_ranks(const struct hosted *h, Gacc__V1__Job *j)
{
	if (!h->launch)
		return true;
	j->ranks = calloc(h->spec->ranks, sizeof(*j->ranks));
	if (!j->ranks)
		return false;
	for (uint32_t i = 0; i < h->spec->ranks; i++) {
		Gacc__V1__RankStatus *r = malloc(sizeof(*r));
		if (!r)
			return false;
		gacc__v1__rank_status__init(r);
		r->rank = i;
		r->node = strdup(h->d->node.conf->node.name);
		j->ranks[j->n_ranks++] = r;
		if (!r->node)
			return false;
	}
	return true;
}

static bool add_last(const struct hosted *h, Gacc__V1__Job *j)
{
	const struct commit *k = coord_last_commit(h->coord);
	if (!k)
		return true;
	j->last = malloc(sizeof(*j->last));
	if (!j->last)
		return false;
	gacc__v1__step_result__init(j->last);
	convert_step(k, j->last);
	return true;
}

static bool add_counters(const struct counters *c, Gacc__V1__Job *j)
{
	Gacc__V1__Counters *o = malloc(sizeof(*o));
	if (!o)
		return false;
	gacc__v1__counters__init(o);
	convert_counters(c, o);
	j->counters = o;
	return true;
}

static Gacc__V1__PendingUpdate *new_update(const struct update *u)
{
	Gacc__V1__PendingUpdate *o = malloc(sizeof(*o));
	Gacc__V1__JobValues *v = malloc(sizeof(*v));
	if (!o || !v) {
		free(o);
		free(v);
		return NULL;
	}
	gacc__v1__pending_update__init(o);
	gacc__v1__job_values__init(v);
	o->window = u->window;
	o->values = v;
	v->micro_size = u->set & VALUE_MICRO_SIZE ? u->to.micro_size : 0;
	if (u->set & VALUE_LR)
		v->lr_value_case = GACC__V1__JOB_VALUES__LR_VALUE_LR;
	if (u->set & VALUE_CLIP_NORM)
		v->clip_norm_value_case = GACC__V1__JOB_VALUES__CLIP_NORM_VALUE_CLIP_NORM;
	if (u->set & VALUE_CLIP_VALUE)
		v->clip_value_value_case = GACC__V1__JOB_VALUES__CLIP_VALUE_VALUE_CLIP_VALUE;
	v->lr = u->to.lr;
	v->clip_norm = u->to.clip_norm;
	v->clip_value = u->to.clip_value;
	return o;
}

static bool add_updates(const struct hosted *h, Gacc__V1__Job *j)
{
	const struct updates *u = coord_updates(h->coord);
	j->updates = u->n ? calloc(u->n, sizeof(*j->updates)) : NULL;
	if (u->n && !j->updates)
		return false;
	for (uint32_t i = 0; i < u->n; i++) {
		Gacc__V1__PendingUpdate *o = new_update(&u->item[i]);
		if (!o)
			return false;
		j->updates[j->n_updates++] = o;
	}
	return true;
}

/* All parts have the same tensors. Pid and GPU are those of the first part. */
static bool fill_seen(const struct hosted *h, Gacc__V1__Job *j)
{
	const char *gpu = "";
	for (uint32_t i = h->n_parts; i--;) {
		const struct part_view *v = h->part[i].seen ? &h->part[i].seen->view : NULL;
		if (!v)
			continue;
		j->engine_pid = i ? 0 : v->engine_pid;
		j->engine_restarts += v->engine_starts ? v->engine_starts - 1 : 0;
		j->tensors = v->tensors;
		j->parameters = v->parameters;
		j->gpu_bytes += v->gpu_bytes;
		gpu = *v->gpu ? v->gpu : gpu;
	}
	j->gpu = strdup(gpu);
	return j->gpu;
}

/* The bits that are set, as numbers. */
static bool add_unreachable(uint64_t parts, Gacc__V1__JobPart *o)
{
	if (!parts)
		return true;
	o->unreachable = malloc((size_t)__builtin_popcountll(parts) * sizeof(*o->unreachable));
	for (; o->unreachable && parts; parts &= parts - 1)
		o->unreachable[o->n_unreachable++] = (uint32_t)__builtin_ctzll(parts);
	return o->unreachable;
}

static bool add_part(const struct hosted *h, uint32_t part, Gacc__V1__Job *j)
{
	const struct part_view *v = h->part[part].seen ? &h->part[part].seen->view : NULL;
	const struct part_ranks *ranks = coord_part_ranks(h->coord, part);
	Gacc__V1__JobPart *o = malloc(sizeof(*o));
	if (!o)
		return false;
	gacc__v1__job_part__init(o);
	o->number = part;
	o->first_rank = ranks->rank[0]; /* they are a block */
	o->n_ranks = ranks->n;
	o->communicator = coord_part_comm(h->coord, part);
	if (v) {
		o->engine_pid = v->engine_pid;
		o->engine_restarts = v->engine_starts ? v->engine_starts - 1 : 0;
		o->host_bytes = v->bytes;
	}
	o->node = strdup(hosted_node(h, part));
	o->gpu = strdup(v ? v->gpu : "");
	j->parts[j->n_parts++] = o;
	return o->node && o->gpu && add_unreachable(coord_part_unreachable(h->coord, part), o);
}

/* Of a job of one part all is said in the job itself, unless it is elsewhere. */
static bool add_parts(const struct hosted *h, Gacc__V1__Job *j)
{
	if (h->n_parts == 1 && !h->part[0].node)
		return true;
	j->parts = calloc(h->n_parts, sizeof(*j->parts));
	for (uint32_t i = 0; j->parts && i < h->n_parts; i++)
		if (!add_part(h, i, j))
			return false;
	return j->parts != NULL;
}

/* Parts that are on one node follow each other. */
static bool add_nodes(const struct hosted *h, Gacc__V1__Job *j)
{
	j->nodes = calloc(h->n_parts, sizeof(*j->nodes));
	for (uint32_t i = 0; j->nodes && i < h->n_parts; i++) {
		if (i && h->part[i].node == h->part[i - 1].node)
			continue;
		j->nodes[j->n_nodes] = strdup(hosted_node(h, i));
		if (!j->nodes[j->n_nodes++])
			return false;
	}
	return j->nodes;
}

/* Its tensors are known, or are being read. */
static bool has_tensors(const struct hosted *h)
{
	bool has = false;
	for (uint32_t i = 0; i < h->n_parts; i++) {
		const struct hosted_seen *seen = h->part[i].seen;
		has |= seen && (seen->view.allocating || seen->view.has_tensors);
	}
	return has;
}

static bool fill_live(const struct hosted *h, Gacc__V1__Job *j, struct now now)
{
	j->window = hosted_window(h);
	j->applied_step = coord_applied_step(h->coord);
	j->micro_size = coord_values(h->coord)->micro_size;
	j->queue_position = h->admission.position;
	j->window_opened_unix_nanos = coord_window_opened_unix_ns(h->coord);
	j->epoch = coord_epoch(h->coord);
	j->host_bytes = hosted_host_bytes(h);
	j->loss_scale = coord_carry(h->coord)->scale.scale;
	j->wait_fraction = rate_wait(&h->rate);
	j->steps_per_second = rate_per_s(&h->rate);
	return fill_seen(h, j) && add_counters(&coord_carry(h->coord)->counters, j) && add_updates(h, j) &&
	       add_last(h, j) && add_parts(h, j) && add_nodes(h, j);
}

/* Of a job that has not begun and does not wait in the queue, which says its own. */
static const char *pending_reason(const struct hosted *h, struct now now, char *room, size_t n)
{
	if (h->coord && placing_is_late(h, now, room, n))
		return room;
	return has_tensors(h) ? "its memory is being made" : "waits for a rank to register its tensors";
}

static bool fill(const struct hosted *h, Gacc__V1__Job *j, unsigned parts, struct now now)
{
	const char *reason;
	char room[NODE_NAME_MAX + 96];
	j->id = h->id;
	j->state = (Gacc__V1__JobState)hosted_state(h, &reason, &j->state_since_unix_nanos);
	j->created_unix_nanos = h->created_unix_ns;
	if (j->state == GACC__V1__JOB_STATE__JOB_STATE_PENDING && !*reason)
		reason = pending_reason(h, now, room, sizeof(room));
	if (!j->state_since_unix_nanos) /* it has never changed */
		j->state_since_unix_nanos = h->created_unix_ns;
	j->ended_unix_nanos = h->ended_unix_ns;
	j->uid = h->uid;
	j->window = h->end.window;
	j->applied_step = h->end.step;
	j->host_bytes = hosted_host_bytes(h);
	j->reason = strdup(reason);
	j->uuid = format_uuid(h->uuid);
	j->user = strdup(h->user);
	if (!j->reason || !j->uuid || !j->user || !add_spec(h, parts, j))
		return false;
	utf8_repair(j->reason);
	if (!hosted_scalars_fill(h, j))
		return false;
	return h->coord ? fill_live(h, j, now) : add_counters(&h->end.commit.next.counters, j);
}

/* Exit statuses are known only of processes that gaccd has launched. */
static bool fill_processes(const struct hosted *h, Gacc__V1__Job *j)
{
	for (size_t i = 0; i < j->n_ranks; i++)
		j->ranks[i]->exit_status = LAUNCH_NO_STATUS;
	return launching_fill(h, j);
}

static bool fill_ranks(const struct hosted *h, Gacc__V1__Job *j, struct now now)
{
	return h->coord ? add_ranks(h, j, now) : add_past_ranks(h, j);
}

/* protobuf-c frees strings that are not its empty default: every text here is malloc'ed. */
static Gacc__V1__Job *new_view(const struct hosted *h, unsigned parts, struct now now)
{
	Gacc__V1__Job *j = malloc(sizeof(*j));
	if (!j)
		return NULL;
	gacc__v1__job__init(j);
	j->log_dir = hosted_log_dir(h);
	if (j->log_dir && fill(h, j, parts, now) && (!(parts & VIEW_RANKS) || fill_ranks(h, j, now)) &&
	    fill_processes(h, j) && (!(parts & VIEW_EVENTS) || hosted_add_events(h, j)))
		return j;
	gacc__v1__job__free_unpacked(j, NULL);
	return NULL;
}

Gacc__V1__Job *hosted_view(const struct hosted *h, unsigned parts, struct now now)
{
	return h->end.view ? hosted_past_view(h, parts) : new_view(h, parts, now);
}

/* ---- memory ---- */

/* Adds memory of a part to a new row behind the n that there are, or `together` to the row of its kind. How many there
 * are then. */
static size_t add_buffer(const struct hosted *h, const struct part_buffer *b, bool together, Gacc__V1__Buffer *row,
			 size_t n)
{
	size_t i = together ? 0 : n;
	while (i < n && strcmp(row[i].kind, b->kind))
		i++;
	if (together && i == PART_VIEW_BUFFERS)
		return n;
	if (i == n) {
		gacc__v1__buffer__init(&row[n++]);
		row[i].job = h->id;
		row[i].kind = (char *)b->kind;
		row[i].tensors = b->tensors;
	}
	row[i].segments += b->segments;
	row[i].bytes += b->bytes;
	row[i].clients += b->clients;
	return n;
}

size_t hosted_buffers(const struct hosted *h, bool together, Gacc__V1__Buffer *out)
{
	size_t n = 0;
	for (uint32_t i = 0; i < h->n_parts; i++) {
		const struct part_view *v = h->part[i].seen ? &h->part[i].seen->view : NULL;
		size_t first = n;
		for (uint32_t k = 0; v && k < v->n_buffers; k++)
			n = add_buffer(h, &v->buffer[k], together, out, n);
		for (; first < n && !together; first++) {
			out[first].node = (char *)hosted_node(h, i);
			out[first].part = i;
		}
	}
	return n;
}
