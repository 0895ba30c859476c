/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a command by its name or alias, and for "did you mean" the nearest known name to a misspelt one, by edit
 * distance. Pure; any thread. */
#include "find.h"

#include <string.h>

#define WORD_MAX 40

/* ---- by name ---- */

static bool is_alias(const char *aliases, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = aliases; p && *p; p += strspn(p, " ")) {
		size_t m = strcspn(p, " ");

		if (m == n && !strncmp(p, word, n))
			return true;
		p += m;
	}
	return false;
}

const struct command *command_find(const struct command_table *table, const char *word)
{
	for (const struct command *c = table->commands; c->name; c++)
		if (!strcmp(c->name, word) || is_alias(c->aliases, word))
			return c;
	return NULL;
}

/* ---- by nearness ---- */

static size_t min3(size_t a, size_t b, size_t c)
{
	return a < b ? (a < c ? a : c) : (b < c ? b : c);
}

/* Insertions, deletions, replacements and swaps of neighbours between two words of less than WORD_MAX letters
 * (optimal string alignment). */
static size_t distance(const char *a, size_t n, const char *b, size_t m)
{
	size_t d[WORD_MAX + 1][WORD_MAX + 1];

	for (size_t i = 0; i <= n; i++)
		d[i][0] = i;
	for (size_t j = 0; j <= m; j++)
		d[0][j] = j;
	for (size_t i = 1; i <= n; i++)
		for (size_t j = 1; j <= m; j++) {
			d[i][j] = min3(d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
			    d[i - 2][j - 2] + 1 < d[i][j])
				d[i][j] = d[i - 2][j - 2] + 1;
		}
	return d[n][m];
}

const char *nearest(const char *word, const char *const *names, size_t n)
{
	size_t length = strlen(word), best = length / 3 + 2; /* more edits than that is another word */
	const char *found = NULL;

	if (length > WORD_MAX)
		return NULL;
	for (size_t i = 0; i < n; i++) {
		size_t m = strlen(names[i]), d;

		if (m > WORD_MAX)
			continue;
		d = distance(word, length, names[i], m);
		if (d < best) {
			best = d;
			found = names[i];
		}
	}
	return found;
}
