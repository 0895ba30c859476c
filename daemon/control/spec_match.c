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
		if (!(groups->glob[i] = glob_new(s->group[i].pattern)))
			return false;
	for (uint32_t i = 0; i < s->n_init; i++)
		if (!(init->glob[i] = glob_new(s->init[i].pattern)))
			return false;
	return true;
}

static enum status match_all(const struct patterns *p, const struct tensor_spec *t, uint64_t n, uint16_t *out,
			     uint64_t *steps, char *why, size_t n_why)
{
	for (uint64_t i = 0; i < n; i++) {
		uint32_t rule = 0;
		while (rule < p->n && !glob_match(p->glob[rule], t[i].name, steps))
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
	uint64_t steps = 0;
	enum status st = parse_patterns(s, &groups, &init) ? ST_OK : ST_NO_MEMORY;
	if (!st && m->group)
		st = match_all(&groups, t, m->n, m->group, &steps, why, n_why);
	if (!st && m->init)
		st = match_all(&init, t, m->n, m->init, &steps, why, n_why);
	if (!st && m->init)
		st = check_init(m, t, why, n_why);
	patterns_fini(&groups);
	patterns_fini(&init);
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

static void add_unused(struct unused *u, const char *field, uint32_t rule, const char *pattern)
{
	const char *before =
		u->rules ? ","
			 : "rules without effect, as no tensor's name matches them, or an earlier rule matches first:";
	if (u->rules++ < UNUSED_NAMED && u->at < u->n)
		u->at += (size_t)snprintf(u->text + u->at, u->n - u->at, "%s %s[%u] (pattern \"%.40s\")", before, field,
					  rule, pattern);
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
			add_unused(&u, "param_groups", i, s->group[i].pattern);
	if (m->init)
		mark_used(m->init, m->n, used);
	for (uint32_t i = 0; m->init && i < s->n_init; i++)
		if (!used[i + 1])
			add_unused(&u, "init", i, s->init[i].pattern);
	if (u.rules > UNUSED_NAMED && u.at < n_text)
		snprintf(text + u.at, n_text - u.at, " and %u more", u.rules - UNUSED_NAMED);
}

void spec_match_fini(struct spec_match *m)
{
	free(m->group);
	free(m->init);
	*m = (struct spec_match){ 0 };
}
