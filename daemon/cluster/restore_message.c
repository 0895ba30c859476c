/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the checkpoint that a job begins with into its placement, and takes it out again. For placement_message.c. Any
 * thread; no state. */
#include "cluster/restore_message.h"

#include "gacc/internal/v1/placement.pb-c.h"

#include <stdio.h>
#include <string.h>

#define RESTORE_NUMBERS(X)                                                                                             \
	X(window)                                                                                                      \
	X(applied_step)                                                                                                \
	X(params_digest)                                                                                               \
	X(loss_scale)                                                                                                  \
	X(micro_size)                                                                                                  \
	X(owner)                                                                                                       \
	X(same_ranges)                                                                                                 \
	X(carry)                                                                                                       \
	X(count)                                                                                                       \
	X(sum_weight)                                                                                                  \
	X(sum_loss)                                                                                                    \
	X(last_rank)                                                                                                   \
	X(window_lr)                                                                                                   \
	X(lr_rank)

struct messages {
	Gacc__Internal__V1__Restore restore;
	Gacc__Internal__V1__RestoreFile file[ENGINE_FILES + ENGINE_SHARES], *list[ENGINE_FILES + ENGINE_SHARES];
};
_Static_assert(sizeof(struct messages) <= sizeof(struct restore_room), "they fit");

Gacc__Internal__V1__Restore *restore_to_message(const struct part_restore *r, struct restore_room *room)
{
	struct messages *m = (struct messages *)room;
	gacc__internal__v1__restore__init(&m->restore);
#define X(field) m->restore.field = r->from.field;
	RESTORE_NUMBERS(X)
#undef X
	m->restore.path = (ProtobufCBinaryData){ r->n_path, (uint8_t *)r->path };
	for (size_t i = 0; i < ENGINE_FILES + r->from.n_shares; i++) {
		const struct engine_file *f = i < ENGINE_FILES ? &r->from.file[i] : &r->from.share[i - ENGINE_FILES];
		gacc__internal__v1__restore_file__init(m->list[i] = &m->file[i]);
		m->file[i].bytes = f->bytes;
		m->file[i].sha256 = (ProtobufCBinaryData){ sizeof(f->sha256), (uint8_t *)f->sha256 };
	}
	m->restore.file = m->list;
	m->restore.n_file = ENGINE_FILES;
	m->restore.share = m->list + ENGINE_FILES;
	m->restore.n_share = r->from.n_shares;
	return &m->restore;
}

static enum status check_sums(Gacc__Internal__V1__RestoreFile *const *f, size_t n, char *why, size_t n_why)
{
	const size_t n_sum = sizeof(((struct engine_file *)0)->sha256);
	for (size_t i = 0; i < n; i++)
		if (f[i]->sha256.len != n_sum) {
			snprintf(why, n_why, "RestoreFile.sha256 has %zu bytes, and must have %zu", f[i]->sha256.len,
				 n_sum);
			return ST_VERSION_SKEW;
		}
	return ST_OK;
}

static enum status check_files(const Gacc__Internal__V1__Restore *m, char *why, size_t n_why)
{
	if (m->n_file != ENGINE_FILES) {
		snprintf(why, n_why, "Restore.file has %zu files, and must have %d", m->n_file, ENGINE_FILES);
		return ST_VERSION_SKEW;
	}
	if (m->n_share == 1 || m->n_share > ENGINE_SHARES) {
		snprintf(why, n_why, "Restore.share has %zu files, and must have none, or 2..%d", m->n_share,
			 ENGINE_SHARES);
		return ST_VERSION_SKEW;
	}
	enum status st = check_sums(m->file, m->n_file, why, n_why);
	return st ? st : check_sums(m->share, m->n_share, why, n_why);
}

static bool is_path(const ProtobufCBinaryData *p)
{
	return p->len && p->len <= RESTORE_MAX_PATH && p->data[0] == '/' && !memchr(p->data, '\0', p->len);
}

static enum status check(const Gacc__Internal__V1__Restore *m, uint32_t max_micro_size, char *why, size_t n_why)
{
	if (!is_path(&m->path))
		snprintf(why, n_why, "Restore.path has %zu bytes, and is no absolute path of at most %d", m->path.len,
			 RESTORE_MAX_PATH);
	else if (m->window > INT64_MAX / 2 || m->applied_step > m->window)
		snprintf(why, n_why, "Restore.applied_step is %llu, before window %llu",
			 (unsigned long long)m->applied_step, (unsigned long long)m->window);
	else if (!m->micro_size || m->micro_size > max_micro_size)
		snprintf(why, n_why, "Restore.micro_size is %u, and must be 1..%u", m->micro_size, max_micro_size);
	else
		return check_files(m, why, n_why);
	return ST_VERSION_SKEW;
}

static void take_files(struct engine_file *to, Gacc__Internal__V1__RestoreFile *const *f, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		to[i].bytes = f[i]->bytes;
		memcpy(to[i].sha256, f[i]->sha256.data, sizeof(to[i].sha256));
	}
}

enum status restore_from_message(const Gacc__Internal__V1__Restore *m, uint32_t max_micro_size,
				 struct part_restore *out, char *why, size_t n_why)
{
	enum status st = check(m, max_micro_size, why, n_why);
	if (st)
		return st;
	*out = (struct part_restore){ .path = (const char *)m->path.data, .n_path = m->path.len };
#define X(field) out->from.field = m->field;
	RESTORE_NUMBERS(X)
#undef X
	take_files(out->from.file, m->file, ENGINE_FILES);
	take_files(out->from.share, m->share, m->n_share);
	out->from.n_shares = (uint32_t)m->n_share;
	return ST_OK;
}
