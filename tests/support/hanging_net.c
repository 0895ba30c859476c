/* SPDX-License-Identifier: Apache-2.0 */
/* Members of communicators whose calls never come back, for tests of who waits for them; in the engine, coll.h's
 * threads. */
#include "hanging_net.h"

#include "coll/coll.h"

#include <unistd.h>

static const void *blob(const struct coll *m, size_t *n)
{
	*n = 4;
	return "blob";
}

static enum status join(struct coll *m, const struct coll_address *all)
{
	while (m)
		pause();
	return ST_OK;
}

static void look(struct coll *m, struct coll_state *out)
{
	*out = (struct coll_state){ .phase = COLL_JOINING };
}

static enum status fail(struct coll *m, enum status st, const char *text)
{
	return st;
}

static enum status open_member(struct coll_net *net, const struct coll_config *c, struct coll **out,
			       struct coll_failure *why)
{
	static const struct coll_ops ops = { .blob = blob, .join = join, .poll = look, .fail = fail };
	static struct coll member;
	member = (struct coll){ .ops = &ops, .part = c->part, .n_parts = c->n_parts };
	*out = &member;
	return ST_OK;
}

static struct coll_net *open_net(const char *address, struct coll_failure *why)
{
	static const struct coll_net_ops ops = { .open = open_member };
	static struct coll_net net = { .ops = &ops };
	return &net;
}

const struct engine_net hanging_net = { open_net };
