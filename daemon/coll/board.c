/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the addresses of each communicator's members; the table is in board.h. For the coordinator, on its loop
 * thread. */
#include "coll/board.h"

#include "base/array.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct entry {
	struct coll_id id;
	uint32_t n_parts, n_here;
	struct coll_address address[COLL_MAX_PARTS]; /* life 0: missing. The blobs are ours */
};

struct board {
	struct entry **entry;
	uint32_t n, capacity;
};

struct board *board_new(void)
{
	return calloc(1, sizeof(struct board));
}

static struct entry *find(const struct board *b, const struct coll_id *id)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (!coll_id_compare(&b->entry[i]->id, id))
			return b->entry[i];
	return NULL;
}

enum status board_open(struct board *b, const struct coll_id *id, uint32_t n_parts)
{
	if (!n_parts || n_parts > COLL_MAX_PARTS)
		return ST_INVALID_ARGUMENT;
	struct entry *e = find(b, id);
	if (e)
		return e->n_parts == n_parts ? ST_OK : ST_INVALID_ARGUMENT;
	struct entry **grown = array_grow(b->entry, b->n, &b->capacity, sizeof(*b->entry));
	if (!grown)
		return ST_NO_MEMORY;
	b->entry = grown;
	e = calloc(1, sizeof(*e));
	if (!e)
		return ST_NO_MEMORY;
	e->id = *id;
	e->n_parts = n_parts;
	b->entry[b->n++] = e;
	return ST_OK;
}

/* A part has put an address before: is this the same one? */
static enum status compare(const struct coll_address *a, uint64_t life, const void *blob, size_t n)
{
	if (a->life != life)
		return ST_ALREADY_EXISTS;
	return a->n_blob == n && !memcmp(a->blob, blob, n) ? ST_OK : ST_MALFORMED;
}

enum status board_put(struct board *b, const struct coll_id *id, uint32_t part, uint64_t life, const void *blob,
		      size_t n)
{
	struct entry *e = find(b, id);
	if (!e)
		return ST_STALE_ATTEMPT;
	if (part >= e->n_parts || !life || !n || n > COLL_MAX_BLOB)
		return ST_INVALID_ARGUMENT;
	struct coll_address *a = &e->address[part];
	if (a->life)
		return compare(a, life, blob, n);
	void *copy = malloc(n);
	if (!copy)
		return ST_NO_MEMORY;
	memcpy(copy, blob, n);
	*a = (struct coll_address){ .life = life, .blob = copy, .n_blob = n };
	e->n_here++;
	assert(e->n_here <= e->n_parts);
	return ST_OK;
}

/* ---- looking ---- */

enum board_state board_state(const struct board *b, const struct coll_id *id)
{
	const struct entry *e = find(b, id);
	if (!e)
		return BOARD_NONE;
	return e->n_here == e->n_parts ? BOARD_COMPLETE : BOARD_COLLECTING;
}

const struct coll_address *board_addresses(const struct board *b, const struct coll_id *id, uint32_t *n_parts)
{
	const struct entry *e = find(b, id);
	if (!e || e->n_here < e->n_parts)
		return NULL;
	*n_parts = e->n_parts;
	return e->address;
}

uint32_t board_missing(const struct board *b, const struct coll_id *id, uint32_t part[COLL_MAX_PARTS])
{
	const struct entry *e = find(b, id);
	uint32_t n = 0;
	for (uint32_t s = 0; e && s < e->n_parts; s++)
		if (!e->address[s].life)
			part[n++] = s;
	return n;
}

uint32_t board_count(const struct board *b)
{
	return b->n;
}

/* ---- forgetting ---- */

static void free_entry(struct entry *e)
{
	for (uint32_t s = 0; s < e->n_parts; s++)
		free((void *)e->address[s].blob);
	free(e);
}

/* Of the job: those below *before, or all if it is NULL. */
static void purge(struct board *b, uint64_t job, const struct coll_id *before)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < b->n; i++) {
		struct entry *e = b->entry[i];
		if (e->id.job == job && (!before || coll_id_compare(&e->id, before) < 0))
			free_entry(e);
		else
			b->entry[kept++] = e;
	}
	b->n = kept;
}

void board_purge(struct board *b, const struct coll_id *before)
{
	purge(b, before->job, before);
}

void board_purge_job(struct board *b, uint64_t job)
{
	purge(b, job, NULL);
}

void board_free(struct board *b)
{
	if (!b)
		return;
	for (uint32_t i = 0; i < b->n; i++)
		free_entry(b->entry[i]);
	free(b->entry);
	free(b);
}
