/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and reads the journal's records COMMIT, UPDATE and RESTORED. For daemon/edge, which writes the journal and
 * reads it after a restart, on the loop thread. No state. */
#include "cluster/job_records.h"

#include "cluster/raw_records.h"
#include "cluster/record.h"
#include "engine/control_page.h"
#include "gacc/internal/v1/record.pb-c.h"
#include "proto/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status no_raw_form(const void *bytes, size_t n, char *why, size_t n_why)
{
	snprintf(why, n_why, "it has another form: %" PRIu32 " in %zu bytes", record_form(bytes, n), n);
	return ST_VERSION_SKEW;
}

static enum status is_missing(const char *field, char *why, size_t n_why)
{
	snprintf(why, n_why, "%s is missing", field);
	return ST_VERSION_SKEW;
}

/* ---- COMMIT ---- */

void *commit_record_pack(const struct commit *k, const uint64_t *counted, uint32_t n_words, size_t *out_n)
{
	Gacc__Internal__V1__CommitRecord r = GACC__INTERNAL__V1__COMMIT_RECORD__INIT;
	struct commit_room room;
	r.commit = commit_to_message(k, &room);
	r.n_counted = n_words;
	r.counted = (uint64_t *)counted; /* not written to */
	return record_pack(&r.base, out_n);
}

static enum status check_counted(uint32_t n_ranks, uint32_t max_micro_size, const void *words, size_t n_words,
				 char *why, size_t n_why)
{
	const size_t want = control_words(n_ranks, max_micro_size);
	const unsigned used = (uint64_t)n_ranks * max_micro_size % 64;
	uint64_t last;
	if (n_words != want) {
		snprintf(why, n_why, "CommitRecord.counted has %zu words, and the job needs %zu", n_words, want);
		return ST_VERSION_SKEW;
	}
	memcpy(&last, (const char *)words + (want - 1) * sizeof(last), sizeof(last));
	if (!used || !(last >> used))
		return ST_OK;
	snprintf(why, n_why, "CommitRecord.counted has bits beyond %" PRIu32 " ranks of %" PRIu32, n_ranks,
		 max_micro_size);
	return ST_VERSION_SKEW;
}

/* The commit and the number of words have been checked already. */
static enum status take_decided(const struct commit *k, const void *words, size_t n_words, struct decided *out)
{
	uint64_t *copy = malloc(n_words * sizeof(*copy));
	if (!copy)
		return ST_NO_MEMORY;
	memcpy(copy, words, n_words * sizeof(*copy));
	*out = (struct decided){ *k, copy, (uint32_t)n_words };
	return ST_OK;
}

enum status commit_record_from_message(const struct Gacc__Internal__V1__CommitRecord *r, const struct message_bounds *b,
				       uint32_t n_ranks, struct decided *out, char *why, size_t n_why)
{
	struct commit k;
	if (!r->commit)
		return is_missing("CommitRecord.commit", why, n_why);
	enum status st = commit_from_message(r->commit, b, &k, why, n_why);
	if (!st)
		st = check_counted(n_ranks, b->max_micro_size, r->counted, r->n_counted, why, n_why);
	return st ? st : take_decided(&k, r->counted, r->n_counted, out);
}

static enum status read_raw_commit(const void *bytes, size_t n, const struct message_bounds *b, struct decided *out,
				   char *why, size_t n_why)
{
	struct commit k;
	const void *words;
	uint32_t n_words;
	if (!raw_commit_read(bytes, n, &k, &words, &n_words))
		return no_raw_form(bytes, n, why, n_why);
	enum status st = commit_check(&k, b, why, n_why);
	if (!st)
		st = check_counted(b->ranks, b->max_micro_size, words, n_words, why, n_why);
	return st ? st : take_decided(&k, words, n_words, out);
}

static enum status read_commit_message(const void *bytes, size_t n, const struct message_bounds *b, struct decided *out,
				       char *why, size_t n_why)
{
	struct ProtobufCMessage *m;
	enum status st = record_unpack(&gacc__internal__v1__commit_record__descriptor, bytes, n, &m, why, n_why);
	if (st)
		return st;
	st = commit_record_from_message((const Gacc__Internal__V1__CommitRecord *)m, b, b->ranks, out, why, n_why);
	bytes_free(m);
	return st;
}

enum status commit_record_read(const void *bytes, size_t n, const struct message_bounds *b, uint64_t window,
			       struct decided *out, char *why, size_t n_why)
{
	struct decided k;
	enum status st = raw_record_is(bytes, n) ? read_raw_commit(bytes, n, b, &k, why, n_why)
						 : read_commit_message(bytes, n, b, &k, why, n_why);
	if (st)
		return st;
	if (k.commit.window == window) {
		*out = k;
		return ST_OK;
	}
	snprintf(why, n_why, "Commit.window is %" PRIu64, k.commit.window);
	free(k.counted);
	return ST_VERSION_SKEW;
}

/* ---- UPDATE ---- */

void *update_record_pack(const struct update *u, size_t *out_n)
{
	Gacc__Internal__V1__Update update;
	Gacc__Internal__V1__UpdateRecord r = GACC__INTERNAL__V1__UPDATE_RECORD__INIT;
	update_to_message(u, &update);
	r.update = &update;
	return record_pack(&r.base, out_n);
}

static enum status read_update_message(const void *bytes, size_t n, struct update *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *m;
	enum status st = record_unpack(&gacc__internal__v1__update_record__descriptor, bytes, n, &m, why, n_why);
	if (st)
		return st;
	const Gacc__Internal__V1__UpdateRecord *r = (const Gacc__Internal__V1__UpdateRecord *)m;
	st = r->update ? update_from_message(r->update, out, why, n_why)
		       : is_missing("UpdateRecord.update", why, n_why);
	bytes_free(m);
	return st;
}

enum status update_record_read(const void *bytes, size_t n, uint64_t window, struct update *out, char *why,
			       size_t n_why)
{
	struct update u;
	enum status st = ST_OK;
	if (!raw_record_is(bytes, n))
		st = read_update_message(bytes, n, &u, why, n_why);
	else if (!raw_update_read(bytes, n, &u))
		st = no_raw_form(bytes, n, why, n_why);
	if (!st)
		st = update_judge(&u, why, n_why);
	if (!st && u.window != window) {
		snprintf(why, n_why, "Update.window is %" PRIu64, u.window);
		st = ST_VERSION_SKEW;
	}
	if (!st)
		*out = u;
	return st;
}

/* ---- RESTORED ---- */

void *restored_record_pack(const struct restored *b, size_t *out_n)
{
	Gacc__Internal__V1__RestoredRecord r = GACC__INTERNAL__V1__RESTORED_RECORD__INIT;
	Gacc__Internal__V1__Update update[RESTORED_MAX_UPDATES], *list[RESTORED_MAX_UPDATES];
	struct commit_room room;
	r.window = b->window;
	r.applied_step = b->applied_step;
	r.n_updates = b->n_updates;
	r.updates = list;
	for (uint32_t i = 0; i < b->n_updates; i++) {
		update_to_message(&b->update[i], &update[i]);
		list[i] = &update[i];
	}
	if (b->has_last)
		r.last = commit_to_message(&b->last, &room);
	return record_pack(&r.base, out_n);
}

static enum status check_restored(const struct restored *b, char *why, size_t n_why)
{
	if (b->has_last && commit_check(&b->last, NULL, why, n_why))
		return ST_VERSION_SKEW;
	for (uint32_t i = 0; i < b->n_updates; i++)
		if (update_judge(&b->update[i], why, n_why))
			return ST_VERSION_SKEW;
	if (b->has_last && b->last.window + 1 != b->window)
		snprintf(why, n_why, "RestoredRecord.last is of window %" PRIu64 ", and the job begins with %" PRIu64,
			 b->last.window, b->window);
	else if (!updates_ascend(b->update, b->n_updates))
		snprintf(why, n_why, "RestoredRecord.updates are not in the order of their windows");
	else
		return ST_OK;
	return ST_VERSION_SKEW;
}

static enum status take_restored(const Gacc__Internal__V1__RestoredRecord *r, struct restored *b, char *why,
				 size_t n_why)
{
	enum status st = ST_OK;
	if (r->n_updates > RESTORED_MAX_UPDATES) {
		snprintf(why, n_why, "RestoredRecord has %zu updates, and may have %d", r->n_updates,
			 RESTORED_MAX_UPDATES);
		return ST_VERSION_SKEW;
	}
	*b = (struct restored){ .window = r->window, .applied_step = r->applied_step, .has_last = r->last };
	for (; b->n_updates < r->n_updates && !st; b->n_updates++)
		st = update_from_message(r->updates[b->n_updates], &b->update[b->n_updates], why, n_why);
	if (!st && r->last)
		st = commit_from_message(r->last, NULL, &b->last, why, n_why);
	return st;
}

enum status restored_record_read(const void *bytes, size_t n, struct restored *out, char *why, size_t n_why)
{
	struct ProtobufCMessage *m = NULL;
	struct restored b;
	enum status st = ST_OK;
	if (!raw_record_is(bytes, n)) {
		st = record_unpack(&gacc__internal__v1__restored_record__descriptor, bytes, n, &m, why, n_why);
		if (!st)
			st = take_restored((const Gacc__Internal__V1__RestoredRecord *)m, &b, why, n_why);
		bytes_free(m);
	} else if (!raw_restored_read(bytes, n, &b)) {
		st = no_raw_form(bytes, n, why, n_why);
	}
	if (!st)
		st = check_restored(&b, why, n_why);
	if (!st)
		*out = b;
	return st;
}
