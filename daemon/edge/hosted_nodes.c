/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of a job is on which node: for Submit, the recovery, and a trainer that asks on the wrong node. Loop
 * thread. */
#include "edge/hosted_nodes.h"

#include "control/alike.h"
#include "control/members.h"
#include "edge/node_facts.h"

#include <stdio.h>
#include <string.h>

static bool is_here(const struct daemon *d, const char *name)
{
	return !strcmp(name, d->node.conf->node.name);
}

/* "a, b, c": what the cluster has. */
static void name_members(const struct daemon *d, char *out, size_t n)
{
	size_t at = (size_t)snprintf(out, n, "%s", d->node.conf->node.name);
	for (uint32_t i = 0; i < members_n(d->members) && at < n; i++)
		at += (size_t)snprintf(out + at, n - at, ", %s", members_at(d->members, i)->facts.node);
}

#define YOUNG_NS (INT64_C(3) * 1000000000) /* nodes dial at least once a second */

static bool is_young(const struct daemon *d)
{
	return daemon_now(d).unix_ns - d->started_unix_ns < YOUNG_NS && *d->node.conf->listen.tcp;
}

/* Of a node that may have parts now; NULL: this one is not known. */
static const struct member_facts *facts_by_name(const struct daemon *d, const char *name,
						const struct member_facts *own)
{
	const struct member *m = is_here(d, name) ? NULL : members_find(d->members, name);
	return is_here(d, name) ? own : m && m->known ? &m->facts : NULL;
}

/* Whether the engines of all nodes can reach each other, as far as addresses tell. */
static bool check_reach(const struct daemon *d, const struct job_spec *s, char *why, size_t n_why)
{
	char name[NODE_NAME_MAX + 1];
	struct member_facts own;
	const struct member_facts *first = NULL;
	node_build(d, &own);
	for (uint32_t i = 0; i < s->parts; i++) {
		if (!spec_node_of(s, i, name))
			return true; /* all are here */
		const struct member_facts *f = facts_by_name(d, name, &own);
		first = first ? first : f;
		if (f && f != first && !nodes_reach(first, f, why, n_why))
			return false;
	}
	return true;
}

enum status hosted_nodes_check(const struct daemon *d, const struct job_spec *s, const char **field, char *why,
			       size_t n_why)
{
	char name[NODE_NAME_MAX + 1], known[160] = "";
	for (uint32_t i = 0; i < s->parts; i++) {
		if (!spec_node_of(s, i, name) || is_here(d, name))
			continue;
		*field = "nodes";
		const struct member *m = members_find(d->members, name);
		if (!m && is_young(d)) {
			snprintf(why, n_why,
				 "node %s is not known yet: this gaccd has just started, and waits for its nodes",
				 name);
			return ST_UNAVAILABLE;
		}
		if (!m) {
			name_members(d, known, sizeof(known));
			snprintf(why, n_why, "the cluster has no node %s; it has %s", name, known);
			return ST_INVALID_SPEC;
		}
		if (m->drained) {
			snprintf(why, n_why, "node %s is drained: it gets no new parts until gaccctl nodes undrain %s",
				 name, name);
			return ST_INVALID_SPEC;
		}
		if (!m->link) {
			snprintf(why, n_why, "node %s is not linked to this gaccd now; see gaccctl nodes", name);
			return ST_UNAVAILABLE;
		}
	}
	*field = "nodes";
	return check_reach(d, s, why, n_why) ? ST_OK : ST_INVALID_SPEC;
}

/* Of a node that is among the members: as in struct link_message. */
static uint32_t number_of(const struct members *m, const char *name)
{
	const struct member *is = members_find(m, name);
	uint32_t i = 0;
	while (members_at(m, i) != is)
		i++;
	return i + 1;
}

enum status hosted_nodes_assign(struct hosted *h)
{
	char name[NODE_NAME_MAX + 1];
	for (uint32_t i = 0; i < h->n_parts; i++) {
		if (!spec_node_of(h->spec, i, name) || is_here(h->d, name))
			continue;
		enum status st = members_expect(h->d->members, name, true, daemon_now(h->d));
		if (st)
			return st;
		h->part[i].node = number_of(h->d->members, name);
	}
	return ST_OK;
}

bool hosted_has_part_on(const struct hosted *h, uint32_t node)
{
	uint32_t i = 0;
	while (i < h->n_parts && h->part[i].node != node)
		i++;
	return i < h->n_parts;
}

void hosted_nodes_forget(struct hosted *h)
{
	struct daemon *d = h->d;
	for (uint32_t i = 0; i < h->n_parts; i++) {
		const uint32_t node = h->part[i].node;
		bool wanted = false;
		for (uint32_t k = 0; k < d->n_jobs && !wanted; k++)
			wanted = d->job[k] != h && hosted_has_part_on(d->job[k], node);
		if (node && !wanted)
			members_expect(d->members, members_at(d->members, node - 1)->facts.node, false, daemon_now(d));
	}
}

uint32_t hosted_parts_here(const struct hosted *h)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < h->n_parts; i++)
		n += !h->part[i].node;
	return n;
}

const char *hosted_node(const struct hosted *h, uint32_t part)
{
	const uint32_t node = h->part[part].node;
	return node ? members_at(h->d->members, node - 1)->facts.node : h->d->node.conf->node.name;
}

void hosted_node_name(const struct hosted *h, uint32_t part, char out[NODE_NAME_MAX + 1])
{
	snprintf(out, NODE_NAME_MAX + 1, "%s", hosted_node(h, part));
}

uint32_t hosted_part_with(const struct hosted *h, uint32_t rank)
{
	uint32_t i = 0;
	while (i + 1 < h->n_parts && rank >= part_block(h->spec->ranks, h->n_parts, i + 1))
		i++;
	return i;
}

bool hosted_part_has(const struct hosted *h, uint32_t part, uint32_t rank)
{
	return rank >= part_block(h->spec->ranks, h->n_parts, part) &&
	       rank < part_block(h->spec->ranks, h->n_parts, part + 1);
}

/* Of a node, or our own. NULL: it has not said Hello in this term. */
static const struct member_facts *facts_of(const struct daemon *d, uint32_t node, const struct member_facts *own)
{
	const struct member *m = node ? members_at(d->members, node - 1) : NULL;
	return !m ? own : m->known ? &m->facts : NULL;
}

void hosted_nodes_compare(struct hosted *h, struct now now)
{
	struct member_facts own;
	if (!h->coord || h->n_parts == 1)
		return;
	node_build(h->d, &own);
	const struct member_facts *first = facts_of(h->d, h->part[0].node, &own);
	for (uint32_t i = 1; i < h->n_parts; i++) {
		const struct member_facts *other = facts_of(h->d, h->part[i].node, &own);
		char why[256] = "";
		if (first && other && first != other)
			nodes_alike(first, other, why, sizeof(why));
		coord_part_unlike(h->coord, i, why, now);
	}
}

void hosted_node_address(const struct hosted *h, uint32_t part, char out[MEMBER_ADDRESS])
{
	struct member_facts own;
	node_build(h->d, &own);
	const struct member_facts *f = facts_of(h->d, h->part[part].node, &own);
	snprintf(out, MEMBER_ADDRESS, "%s", f ? f->data_address : "");
}

uint32_t hosted_node_protocol(const struct hosted *h, uint32_t part)
{
	const struct member_facts own = { .protocol_max = PEER_PROTOCOL };
	const struct member_facts *f = facts_of(h->d, h->part[part].node, &own);
	return f ? f->protocol_max : UINT32_MAX;
}
