/* SPDX-License-Identifier: Apache-2.0 */
/* Matches names of tensors with the patterns of param_groups and init, for spec_match.c, on any thread. The work is
 * bounded, as users choose both sides (glob.h). */
#include "control/glob.h"

#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind { ONE, ANY, STAR, SET, END };

struct token {
	uint8_t kind, c; /* c: of ONE */
	uint16_t set;	 /* of SET: index */
};

struct set {
	uint64_t word[4]; /* a bit for each byte */
};

struct glob {
	struct set *set;
	struct token token[]; /* ends with END */
};

static const struct {
	const char *name;
	int (*has)(int);
} classes[] = {
	{ "alnum", isalnum }, { "alpha", isalpha }, { "blank", isblank }, { "cntrl", iscntrl },
	{ "digit", isdigit }, { "graph", isgraph }, { "lower", islower }, { "print", isprint },
	{ "punct", ispunct }, { "space", isspace }, { "upper", isupper }, { "xdigit", isxdigit },
};

static void add(struct set *s, unsigned low, unsigned high)
{
	for (unsigned c = low; c <= high; c++)
		s->word[c / 64] |= UINT64_C(1) << c % 64;
}

static bool has(const struct set *s, unsigned char c)
{
	return s->word[c / 64] >> c % 64 & 1;
}

/* The class at p ("[:digit:]"): its length, added to the set; 0: there is none. */
static size_t add_class(struct set *s, const char *p)
{
	for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
		size_t n = strlen(classes[i].name);
		if (strncmp(p, "[:", 2) || strncmp(p + 2, classes[i].name, n) || strncmp(p + 2 + n, ":]", 2))
			continue;
		for (unsigned c = 0; c < 128; c++)
			if (classes[i].has((int)c))
				add(s, c, c);
		return n + 4;
	}
	return 0;
}

/* The next character of a bracket expression, the one behind \ if that comes first. */
static unsigned char literal(const char **p)
{
	if (**p == '\\' && (*p)[1])
		++*p;
	return (unsigned char)*(*p)++;
}

/* The bracket expression whose [ is before p: the place behind its ], or NULL: it has none. */
static const char *parse_set(const char *p, struct set *out)
{
	bool invert = *p == '!' || *p == '^', first = true;
	struct set s = { { 0 } };
	for (p += invert; first || *p != ']'; first = false) {
		size_t n = add_class(&s, p);
		p += n;
		if (n)
			continue;
		if (!*p)
			return NULL;
		unsigned low = literal(&p), high = low;
		if (p[0] == '-' && p[1] && p[1] != ']') {
			p++;
			high = literal(&p);
		}
		add(&s, low, high);
	}
	for (int i = 0; i < 4 && invert; i++)
		s.word[i] = ~s.word[i];
	*out = s;
	return p + 1;
}

static size_t count_brackets(const char *p)
{
	size_t n = 0;
	for (; *p; p++)
		n += *p == '[' || *p == '\\';
	return n;
}

static void parse(struct glob *g, const char *p)
{
	struct token *t = g->token;
	uint16_t n_sets = 0;
	while (*p) {
		const char *end = *p == '[' ? parse_set(p + 1, &g->set[n_sets]) : NULL;
		if (*p == '*') {
			if (t == g->token || t[-1].kind != STAR)
				*t++ = (struct token){ .kind = STAR };
		} else if (*p == '?') {
			*t++ = (struct token){ .kind = ANY };
		} else if (end) {
			*t++ = (struct token){ .kind = SET, .set = n_sets++ };
			p = end - 1;
		} else if (*p == '\\' && !p[1]) { /* matches nothing: a set without a member */
			*t++ = (struct token){ .kind = SET, .set = n_sets++ };
		} else {
			p += *p == '\\';
			*t++ = (struct token){ .kind = ONE, .c = (uint8_t)*p };
		}
		p++;
	}
	*t = (struct token){ .kind = END };
}

struct glob *glob_new(const char *pattern)
{
	struct glob *g = malloc(sizeof(*g) + (strlen(pattern) + 1) * sizeof(g->token[0]));
	if (!g)
		return NULL;
	g->set = calloc(count_brackets(pattern) + 1, sizeof(*g->set));
	if (!g->set) {
		free(g);
		return NULL;
	}
	parse(g, pattern);
	return g;
}

void glob_free(struct glob *g)
{
	if (!g)
		return;
	free(g->set);
	free(g);
}

static bool matches(const struct glob *g, const struct token *t, unsigned char c)
{
	switch (t->kind) {
	case ONE:
		return t->c == c;
	case ANY:
		return true;
	case SET:
		return has(&g->set[t->set], c);
	default:
		return false;
	}
}

bool glob_match(const struct glob *g, const char *text, uint64_t *steps)
{
	const struct token *t = g->token, *star = NULL;
	const char *retry = NULL; /* where, so far, the text matched by what follows the last * begins */
	for (;; ++*steps) {
		if (t->kind == STAR) {
			star = ++t;
			retry = text;
		} else if (*text && matches(g, t, (unsigned char)*text)) {
			t++;
			text++;
		} else if (!*text && t->kind == END) {
			return true;
		} else if (star && *retry) {
			t = star;
			text = ++retry;
		} else {
			return false;
		}
	}
}
