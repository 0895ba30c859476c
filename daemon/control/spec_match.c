/* SPDX-License-Identifier: Apache-2.0 */
/* Matches a job's tensors with its param_groups and init rules, for tensor_set.c when a set is built or a plan is
 * made. No state; any thread, in gaccd the pool. */
#include "control/spec_match.h"

#include "control/glob.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rules of one field of the specification, in order. */
struct patterns {
	const char *field;
	struct glob **glob;
	uint32_t n;
};

static void patterns_fini(struct patterns *p)
{
	for (uint32_t i = 0; p->glob && i < p->n; i++)
		glob_free(p->glob[i]);
	free(p->glob);
}

static bool patterns_init(struct patterns *p, const char *field, uint32_t n)
{
	*p = (struct patterns){ .field = field, .glob = calloc(n + 1, sizeof(*p->glob)), .n = n };
	return p->glob;
}

static bool parse_patterns(const struct job_spec *s, struct patterns *groups, struct patterns *init)
{
	if (!patterns_init(groups, "param_groups", s->n_groups) || !patterns_init(init, "init", s->n_init))
		return false;
	for (uint32_t i = 0; i < s->n_groups; i++)
		if (*s->group[i].pattern && !(groups->glob[i] = glob_new(s->group[i].pattern)))
			return false;
	for (uint32_t i = 0; i < s->n_init; i++)
		if (!(init->glob[i] = glob_new(s->init[i].pattern)))
			return false;
	return true;
}

/* ---- by name ---- */

/* A name of a group's `tensors`. */
struct named {
	const char *name;
	uint32_t rule;
	bool is_there; /* some tensor has it; of equal names, the first one's */
};

static int by_name(const void *a, const void *b)
{
	const struct named *x = a, *y = b;
	const int order = strcmp(x->name, y->name);
	return order ? order : (x->rule > y->rule) - (x->rule < y->rule);
}

struct named_list {
	struct named *named; /* [n], by name, and of equal names by rule */
	size_t n;
};

static bool list_named(const struct job_spec *s, struct named_list *l)
{
	size_t n = 0;
	for (uint32_t i = 0; i < s->n_groups; i++)
		n += s->group[i].n_tensors;
	*l = (struct named_list){ .named = malloc((n + 1) * sizeof(*l->named)) };
	for (uint32_t i = 0; l->named && i < s->n_groups; i++)
		for (uint32_t k = 0; k < s->group[i].n_tensors; k++)
			l->named[l->n++] = (struct named){ s->group[i].tensor[k], i, false };
	if (l->named)
		qsort(l->named, n, sizeof(*l->named), by_name);
	return l->named;
}

/* The first entry with this name; NULL: none has it. */
static struct named *find_named(const struct named_list *l, const char *name)
{
	size_t low = 0, high = l->n;
	while (low < high) {
		const size_t mid = low + (high - low) / 2;
		if (strcmp(l->named[mid].name, name) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low < l->n && !strcmp(l->named[low].name, name) ? &l->named[low] : NULL;
}

/* Groups that name a tensor come before later ones whose patterns match it. */
static void match_named(struct named_list *l, const struct tensor_spec *t, uint64_t n, uint16_t *group)
{
	for (uint64_t i = 0; i < n && l->n; i++) {
		struct named *e = find_named(l, t[i].name);
		if (!e)
			continue;
		e->is_there = true;
		if (!group[i] || e->rule < group[i] - 1u)
			group[i] = (uint16_t)(e->rule + 1);
	}
}

/* One name that no tensor has is a mistake, of the name or of the tensor set. */
static enum status check_named(const struct named_list *l, char *why, size_t n_why)
{
	for (size_t i = 0; i < l->n; i++) {
		if (l->named[i].is_there || (i && !strcmp(l->named[i].name, l->named[i - 1].name)))
			continue;
		snprintf(why, n_why, "param_groups[%u].tensors: there is no tensor \"%.120s\"", l->named[i].rule,
			 l->named[i].name);
		return ST_INVALID_SPEC;
	}
	return ST_OK;
}

/* ---- by pattern ---- */

static enum status match_all(const struct patterns *p, const struct tensor_spec *t, uint64_t n, uint16_t *out,
			     uint64_t *steps, char *why, size_t n_why)
{
	for (uint64_t i = 0; i < n; i++) {
		uint32_t rule = 0;
		while (rule < p->n && !(p->glob[rule] && glob_match(p->glob[rule], t[i].name, steps)))
			rule++;
		out[i] = (uint16_t)(rule < p->n ? rule + 1 : 0);
		if (*steps <= SPEC_MAX_MATCH_STEPS)
			continue;
		snprintf(why, n_why,
			 "%s: matching the patterns takes more than %" PRIu64 " steps, reached at tensor %" PRIu64
			 " of %" PRIu64 ": use fewer patterns, or fewer * in them",
			 p->field, SPEC_MAX_MATCH_STEPS, i, n);
		return ST_INVALID_SPEC;
	}
	return ST_OK;
}

/* Aliases share their target's values. */
static enum status check_init(const struct spec_match *m, const struct tensor_spec *t, char *why, size_t n_why)
{
	for (uint64_t i = 0; i < m->n; i++)
		if (!m->init[i] && !(t[i].alias_of && *t[i].alias_of)) {
			snprintf(why, n_why, "no init rule matches tensor \"%s\": add one with pattern \"*\"",
				 t[i].name);
			return ST_INVALID_SPEC;
		}
	return ST_OK;
}

static enum status match_both(const struct job_spec *s, const struct tensor_spec *t, struct spec_match *m, char *why,
			      size_t n_why)
{
	struct patterns groups = { .n = 0 }, init = { .n = 0 };
	struct named_list named = { .n = 0 };
	uint64_t steps = 0;
	enum status st = parse_patterns(s, &groups, &init) && list_named(s, &named) ? ST_OK : ST_NO_MEMORY;
	if (!st && m->group)
		st = match_all(&groups, t, m->n, m->group, &steps, why, n_why);
	if (!st && m->group)
		match_named(&named, t, m->n, m->group);
	if (!st)
		st = check_named(&named, why, n_why);
	if (!st && m->init)
		st = match_all(&init, t, m->n, m->init, &steps, why, n_why);
	if (!st && m->init)
		st = check_init(m, t, why, n_why);
	patterns_fini(&groups);
	patterns_fini(&init);
	free(named.named);
	return st;
}

enum status spec_match(const struct job_spec *s, const struct tensor_spec *t, uint64_t n, struct spec_match *out,
		       char *why, size_t n_why)
{
	struct spec_match m = { .n = n };
	uint64_t rules = (uint64_t)s->n_groups + s->n_init;
	if (rules && n > SPEC_MAX_MATCHES / rules) {
		snprintf(why, n_why,
			 "param_groups, init: %" PRIu64 " rules for %" PRIu64
			 " tensors: their product must be at most %" PRIu64
			 ": use fewer rules, with patterns that match more tensors",
			 rules, n, SPEC_MAX_MATCHES);
		return ST_INVALID_SPEC;
	}
	if (s->n_groups)
		m.group = malloc((n + 1) * sizeof(*m.group));
	if (s->n_init)
		m.init = malloc((n + 1) * sizeof(*m.init));
	enum status st =
		(s->n_groups && !m.group) || (s->n_init && !m.init) ? ST_NO_MEMORY : match_both(s, t, &m, why, n_why);
	if (st)
		spec_match_fini(&m);
	else
		*out = m;
	return st;
}

#define UNUSED_NAMED 2 /* in the sentence, which is to fit into an event */

struct unused {
	char *text;
	size_t at, n;
	uint32_t rules;
};

/* `what` is what `name` is: "pattern", "tensor" or "first tensor". */
static void add_unused(struct unused *u, const char *field, uint32_t rule, const char *what, const char *name)
{
	const char *before =
		u->rules ? ","
			 : "rules without effect, as no tensor's name matches them, or an earlier rule matches first:";
	if (u->rules++ < UNUSED_NAMED && u->at < u->n)
		u->at += (size_t)snprintf(u->text + u->at, u->n - u->at, "%s %s[%u] (%s \"%.40s\")", before, field,
					  rule, what, name);
}

static void add_unused_group(struct unused *u, uint32_t i, const struct spec_group *g)
{
	if (*g->pattern || !g->n_tensors)
		add_unused(u, "param_groups", i, "pattern", g->pattern);
	else
		add_unused(u, "param_groups", i, g->n_tensors > 1 ? "first tensor" : "tensor", g->tensor[0]);
}

static void mark_used(const uint16_t *rule, uint64_t n, bool used[SPEC_MAX_RULES + 1])
{
	memset(used, 0, (SPEC_MAX_RULES + 1) * sizeof(used[0]));
	for (uint64_t i = 0; i < n; i++)
		used[rule[i]] = true;
}

void spec_match_unused(const struct spec_match *m, const struct job_spec *s, char *text, size_t n_text)
{
	struct unused u = { text, 0, n_text, 0 };
	bool used[SPEC_MAX_RULES + 1];
	text[0] = '\0';
	if (m->group)
		mark_used(m->group, m->n, used);
	for (uint32_t i = 0; m->group && i < s->n_groups; i++)
		if (!used[i + 1])
			add_unused_group(&u, i, &s->group[i]);
	if (m->init)
		mark_used(m->init, m->n, used);
	for (uint32_t i = 0; m->init && i < s->n_init; i++)
		if (!used[i + 1])
			add_unused(&u, "init", i, "pattern", s->init[i].pattern);
	if (u.rules > UNUSED_NAMED && u.at < n_text)
		snprintf(text + u.at, n_text - u.at, " and %u more", u.rules - UNUSED_NAMED);
}

void spec_match_fini(struct spec_match *m)
{
	free(m->group);
	free(m->init);
	*m = (struct spec_match){ 0 };
}
