/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and unpacks what a coordinator and the nodes of its parts tell each other about checkpoints. For
 * edge/checkpoints.c and edge/part_ports.c, on the loop thread; no state. */
#include "cluster/save_message.h"

#include "cluster/message_text.h"
#include "cluster/record.h"
#include "gacc/internal/v1/checkpoint.pb-c.h"
#include "proto/bytes.h"

#include <stdio.h>
#include <string.h>

#define IDS(X) X(job_id) X(epoch) X(part) X(term) X(number)
#define SAVE_FIELDS(X) IDS(X) X(window) X(inside_window) X(own_only) X(states) X(states_alone)
#define SAVED_FIELDS(X)                                                                                                \
	IDS(X)                                                                                                         \
	X(passed)                                                                                                      \
	X(window)                                                                                                      \
	X(applied_step)                                                                                                \
	X(params_digest)                                                                                               \
	X(loss_scale)                                                                                                  \
	X(micro_size)                                                                                                  \
	X(count)                                                                                                       \
	X(sum_weight)                                                                                                  \
	X(sum_loss)                                                                                                    \
	X(last_rank)                                                                                                   \
	X(window_lr)                                                                                                   \
	X(lr_rank)                                                                                                     \
	X(n_states)

/* ---- Save ---- */

void *save_pack(const struct save *s, size_t *out_n)
{
	Gacc__Internal__V1__Save m = GACC__INTERNAL__V1__SAVE__INIT;
#define X(field) m.field = s->field;
	SAVE_FIELDS(X)
#undef X
	m.path = (ProtobufCBinaryData){ strlen(s->path), (uint8_t *)s->path };
	return bytes_pack(&m.base, out_n);
}

static bool is_path(const ProtobufCBinaryData *p)
{
	return p->len && p->len <= SAVE_MAX_PATH && p->data[0] == '/' && !memchr(p->data, '\0', p->len);
}

static enum status check_save(const Gacc__Internal__V1__Save *m, char *why, size_t n_why)
{
	if (!m->epoch || !m->term || !m->number)
		snprintf(why, n_why, "Save.%s is missing", !m->epoch ? "epoch" : !m->term ? "term" : "number");
	else if (!is_path(&m->path))
		snprintf(why, n_why, "Save.path has %zu bytes, and is no absolute path of at most %d", m->path.len,
			 SAVE_MAX_PATH);
	else if (m->states_alone && (!m->states || m->inside_window))
		snprintf(why, n_why, "Save.states_alone is set%s", m->states ? " inside a window" : " without states");
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

enum status save_unpack(const void *bytes, size_t n, struct save *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	*out = (struct save){ .path = "" };
	enum status st = message_unpack(&gacc__internal__v1__save__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__Save *m = (const Gacc__Internal__V1__Save *)base;
	st = check_save(m, why, n_why);
#define X(field) out->field = m->field;
	SAVE_FIELDS(X)
#undef X
	if (!st)
		memcpy(out->path, m->path.data, m->path.len);
	bytes_free(base);
	return st;
}

/* ---- Saved ---- */

static void put_file(Gacc__Internal__V1__SavedFile *to, const struct engine_file *f)
{
	to->bytes = f->bytes;
	to->sha256 = (ProtobufCBinaryData){ sizeof(f->sha256), (uint8_t *)f->sha256 };
}

static void take_file(struct engine_file *to, const Gacc__Internal__V1__SavedFile *f)
{
	to->bytes = f->bytes;
	memcpy(to->sha256, f->sha256.data, sizeof(to->sha256));
}

void *saved_pack(const struct part_saved *s, size_t *out_n)
{
	Gacc__Internal__V1__Saved m = GACC__INTERNAL__V1__SAVED__INIT;
	Gacc__Internal__V1__SavedFile file[ENGINE_FILES], *list[ENGINE_FILES], states;
	char mended[sizeof(s->text)];
#define X(field) m.field = s->field;
	SAVED_FIELDS(X)
#undef X
	for (size_t i = 0; i < ENGINE_FILES; i++) {
		gacc__internal__v1__saved_file__init(list[i] = &file[i]);
		put_file(&file[i], &s->file[i]);
	}
	m.status = message_put_status(s->status);
	m.text = message_put_text(s->text, mended);
	m.dev = s->dir.dev;
	m.ino = s->dir.ino;
	if (s->n_states) {
		gacc__internal__v1__saved_file__init(&states);
		put_file(&states, &s->states);
		m.states = &states;
	}
	m.file = list;
	m.n_file = ENGINE_FILES;
	return bytes_pack(&m.base, out_n);
}

static enum status check_files(const Gacc__Internal__V1__Saved *m, char *why, size_t n_why)
{
	const size_t n_sum = sizeof(((struct engine_file *)0)->sha256);
	if (m->n_file != ENGINE_FILES) {
		snprintf(why, n_why, "Saved.file has %zu files, and must have %d", m->n_file, ENGINE_FILES);
		return ST_VERSION_SKEW;
	}
	for (size_t i = 0; i < m->n_file; i++)
		if (m->file[i]->sha256.len != n_sum) {
			snprintf(why, n_why, "SavedFile.sha256 has %zu bytes, and must have %zu",
				 m->file[i]->sha256.len, n_sum);
			return ST_VERSION_SKEW;
		}
	return ST_OK;
}

/* The trainers' states: a file where some ranks have one, and only there. */
static enum status check_states(const Gacc__Internal__V1__Saved *m, uint32_t ranks, char *why, size_t n_why)
{
	const Gacc__Internal__V1__SavedFile *f = m->states;
	const bool has = f && f->bytes && f->sha256.len == sizeof(((struct engine_file *)0)->sha256);
	if (m->n_states > ranks)
		snprintf(why, n_why, "Saved.n_states is %u, and the job has %u ranks", m->n_states, ranks);
	else if (!m->n_states != !f || (f && !has))
		snprintf(why, n_why, "Saved.states is %s, with n_states %u", f ? "no file" : "missing", m->n_states);
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

static enum status check_saved(const Gacc__Internal__V1__Saved *m, uint32_t ranks, char *why, size_t n_why)
{
	if (!m->epoch || !m->term || !m->number)
		snprintf(why, n_why, "Saved.%s is missing", !m->epoch ? "epoch" : !m->term ? "term" : "number");
	else if (m->count && (m->last_rank >= ranks || m->lr_rank >= ranks))
		snprintf(why, n_why, "Saved.last_rank is %u and lr_rank %u, and the job has %u ranks", m->last_rank,
			 m->lr_rank, ranks);
	else if (m->window > INT64_MAX / 2 || m->applied_step > m->window)
		snprintf(why, n_why, "Saved.applied_step is %llu, before window %llu",
			 (unsigned long long)m->applied_step, (unsigned long long)m->window);
	else if (check_files(m, why, n_why) || check_states(m, ranks, why, n_why))
		return ST_VERSION_SKEW;
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

enum status saved_unpack(const void *bytes, size_t n, uint32_t ranks, struct part_saved *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *base;
	enum status st = message_unpack(&gacc__internal__v1__saved__descriptor, bytes, n, &base, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__Saved *m = (const Gacc__Internal__V1__Saved *)base;
	st = check_saved(m, ranks, why, n_why);
	if (!st) {
		*out = (struct part_saved){ .status = message_take_status(m->status), .dir = { m->dev, m->ino } };
#define X(field) out->field = m->field;
		SAVED_FIELDS(X)
#undef X
		message_take_text(out->text, sizeof(out->text), m->text);
		for (size_t i = 0; i < ENGINE_FILES; i++)
			take_file(&out->file[i], m->file[i]);
		if (m->states)
			take_file(&out->states, m->states);
	}
	bytes_free(base);
	return st;
}
