/* SPDX-License-Identifier: Apache-2.0 */
/* Updates in a manifest, under the names of gacc.internal.v1.Update, for checkpoints and for jobs that begin with one.
 * On the loop thread. */
#include "runtime/manifest_updates.h"

#include "cluster/commit_message.h"
#include "gacc/internal/v1/commit.pb-c.h"
#include "runtime/manifest_message.h"

#include <pthread.h>
#include <string.h>

_Static_assert(UPDATES_MAX_PENDING + 1 <= MANIFEST_MAX_UPDATES, "a manifest has room for all");

static const char *const left_out[] = { "window", NULL }; /* it has a place of its own */
static struct manifest_fields fields;

static void find_fields(void)
{
	manifest_fields_of(&gacc__internal__v1__update__descriptor, left_out, &fields);
}

static void know_fields(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, find_fields);
}

void manifest_put_updates(struct manifest *m, const struct update *u, uint32_t n)
{
	Gacc__Internal__V1__Update message;
	know_fields();
	for (uint32_t i = 0; i < n; i++) {
		struct manifest_update *to = &m->update[m->n_updates++];
		update_to_message(&u[i], &message);
		to->window = u[i].window;
		manifest_put_message(&fields, &message.base, to->to, &to->n);
	}
}

static const struct manifest_field *field_of(const char *name)
{
	for (size_t i = 0; i < fields.n; i++)
		if (!strcmp(fields.field[i].name, name))
			return &fields.field[i];
	return NULL;
}

/* What is out of range becomes a value that update_check refuses. */
static void take_value(const struct manifest_field *f, const struct manifest_value *v, Gacc__Internal__V1__Update *u)
{
	const struct manifest_value zero = { .name = v->name };
	if (!manifest_take_field(f, &u->base, v))
		manifest_take_field(f, &u->base, &zero);
}

uint32_t manifest_take_updates(const struct manifest *m, struct update out[MANIFEST_MAX_UPDATES], const char **unknown)
{
	char why[200];
	*unknown = NULL;
	know_fields();
	for (size_t i = 0; i < m->n_updates; i++) {
		Gacc__Internal__V1__Update message = GACC__INTERNAL__V1__UPDATE__INIT;
		message.window = m->update[i].window;
		out[i] = (struct update){ .window = message.window };
		for (size_t k = 0; k < m->update[i].n; k++) {
			const struct manifest_value *v = &m->update[i].to[k];
			const struct manifest_field *f = field_of(v->name);
			if (f)
				take_value(f, v, &message);
			else
				*unknown = v->name;
		}
		/* an update that sets nothing is kept */
		update_from_message(&message, &out[i], why, sizeof(why));
	}
	return (uint32_t)m->n_updates;
}
