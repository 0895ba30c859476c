/* SPDX-License-Identifier: Apache-2.0 */
/* Reads `nodes` of a job's specification, for its check, its placement, and trainers that ask on the wrong node. Any
 * thread. */
#include "control/spec_nodes.h"

#include "control/part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One name of the list, and the ranks that are written behind it (0: none are). */
struct entry {
	const char *name;
	size_t n;
	uint32_t ranks;
};

/* Reads the entry at `at`; returns where the next one begins, NULL: it is wrong. The text of the last one ends at the
 * terminating zero, which is returned. */
static const char *read_entry(const char *at, struct entry *e)
{
	const size_t whole = strcspn(at, ",");
	const char *colon = memchr(at, ':', whole);
	*e = (struct entry){ .name = at, .n = colon ? (size_t)(colon - at) : whole };
	if (!node_name_ok(e->name, e->n))
		return NULL;
	if (colon) {
		const size_t digits = whole - e->n - 1;
		if (digits < 1 || digits > 6 || strspn(colon + 1, "0123456789") < digits || colon[1] == '0')
			return NULL;
		e->ranks = (uint32_t)strtoul(colon + 1, NULL, 10);
	}
	at += whole;
	return *at && !at[1] ? NULL : at + (*at == ',');
}

static uint32_t read_all(const char *nodes, struct entry out[SPEC_MAX_PARTS], char *why, size_t n_why)
{
	uint32_t n = 0;
	for (const char *at = nodes; *at; n++) {
		if (n == SPEC_MAX_PARTS) {
			snprintf(why, n_why, "nodes names more than %d nodes", SPEC_MAX_PARTS);
			return 0;
		}
		const char *next = read_entry(at, &out[n]);
		if (!next) {
			snprintf(
				why, n_why,
				"nodes has \"%.*s\", must be names of at most %d letters, digits and .-_, separated by "
				"commas: a,b or with their ranks a:4,b:4",
				(int)strcspn(at, ","), at, NODE_NAME_MAX);
			return 0;
		}
		for (uint32_t i = 0; i < n; i++)
			if (out[i].n == out[n].n && !memcmp(out[i].name, out[n].name, out[n].n)) {
				snprintf(why, n_why, "nodes names %.*s twice", (int)out[n].n, out[n].name);
				return 0;
			}
		at = next;
	}
	return n;
}

uint32_t spec_nodes_count(const char *nodes, char *why, size_t n_why)
{
	struct entry e[SPEC_MAX_PARTS];
	return read_all(nodes, e, why, n_why);
}

/* The first part of node i. */
static uint32_t first_part(uint32_t parts, uint32_t n_nodes, uint32_t i)
{
	return (uint32_t)(((uint64_t)i * parts + n_nodes - 1) / n_nodes);
}

enum status spec_nodes_check(const struct job_spec *s, char *why, size_t n_why)
{
	struct entry e[SPEC_MAX_PARTS];
	if (!s->nodes || !*s->nodes)
		return ST_OK;
	const uint32_t n = read_all(s->nodes, e, why, n_why);
	if (!n)
		return ST_INVALID_SPEC;
	if (n > s->parts) {
		snprintf(why, n_why, "nodes names %u nodes for %u parts: each node has at least one part", n, s->parts);
		return ST_INVALID_SPEC;
	}
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t first = part_block(s->ranks, s->parts, first_part(s->parts, n, i));
		const uint32_t end = part_block(s->ranks, s->parts, first_part(s->parts, n, i + 1));
		if (e[i].ranks && e[i].ranks != end - first) {
			snprintf(why, n_why,
				 "nodes gives %.*s %u ranks: with %u parts in equal blocks it has %u (%u to %u)",
				 (int)e[i].n, e[i].name, e[i].ranks, s->parts, end - first, first, end - 1);
			return ST_INVALID_SPEC;
		}
	}
	return ST_OK;
}

bool spec_node_of(const struct job_spec *s, uint32_t part, char out[NODE_NAME_MAX + 1])
{
	struct entry e[SPEC_MAX_PARTS];
	char why[8];
	const uint32_t n = s->nodes ? read_all(s->nodes, e, why, sizeof(why)) : 0;
	out[0] = '\0';
	if (!n)
		return false;
	const struct entry *at = &e[(uint64_t)part * n / s->parts];
	memcpy(out, at->name, at->n);
	out[at->n] = '\0';
	return true;
}

uint32_t spec_parts_on(const struct job_spec *s, const char *node)
{
	char name[NODE_NAME_MAX + 1];
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->parts; i++)
		n += !spec_node_of(s, i, name) || !strcmp(name, node);
	return n;
}

uint32_t spec_part_on_node(const struct job_spec *s, uint32_t part)
{
	char name[NODE_NAME_MAX + 1], other[NODE_NAME_MAX + 1];
	const bool named = spec_node_of(s, part, name);
	uint32_t n = 0;
	for (uint32_t i = 0; i < part; i++)
		n += !named || (spec_node_of(s, i, other) && !strcmp(name, other));
	return n;
}

uint32_t spec_ranks_on(const struct job_spec *s, const char *node, uint32_t *first)
{
	char name[NODE_NAME_MAX + 1];
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->parts; i++) {
		if (spec_node_of(s, i, name) && strcmp(name, node) != 0)
			continue;
		const uint32_t at = part_block(s->ranks, s->parts, i);
		*first = n ? *first : at;
		n += part_block(s->ranks, s->parts, i + 1) - at;
	}
	return n;
}
