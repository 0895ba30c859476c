/* SPDX-License-Identifier: Apache-2.0 */
/* A commit in a manifest, under the names of gacc.internal.v1.Commit, for checkpoints and for jobs that begin with one.
 * On the loop thread. */
#include "runtime/manifest_commit.h"

#include "cluster/commit_message.h"
#include "gacc/internal/v1/commit.pb-c.h"
#include "runtime/manifest_message.h"

#include <pthread.h>
#include <string.h>

/* Fields of a decision that mean something in its own job only. */
static const char *const left_out[] = { "job_id", "epoch", "term", "attempt", "final", "params_before", NULL };
static struct manifest_fields fields;

static void find_fields(void)
{
	manifest_fields_of(&gacc__internal__v1__commit__descriptor, left_out, &fields);
}

static void know_fields(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, find_fields);
}

void manifest_put_commit(struct manifest *m, const struct commit *k)
{
	struct commit_room room;
	know_fields();
	manifest_put_message(&fields, &commit_to_message(k, &room)->base, m->last, &m->n_last);
}

static const struct manifest_value *find(const struct manifest *m, const char *name)
{
	for (size_t i = 0; i < m->n_last; i++)
		if (!strcmp(m->last[i].name, name))
			return &m->last[i];
	return NULL;
}

bool manifest_take_commit(const struct manifest *m, struct commit *out)
{
	const struct commit none = { 0 };
	struct commit_room room;
	struct Gacc__Internal__V1__Commit *k = commit_to_message(&none, &room);
	char why[200];
	know_fields();
	for (size_t i = 0; i < fields.n; i++) {
		const struct manifest_value *v = find(m, fields.field[i].name);
		if (v && !manifest_take_field(&fields.field[i], &k->base, v))
			return false;
	}
	return commit_from_message(k, NULL, out, why, sizeof(why)) == ST_OK;
}
