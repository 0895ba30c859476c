/* SPDX-License-Identifier: Apache-2.0 */
/* Which of some words was meant. */
#include "text/yaml_table.h"

#include <string.h>

static size_t min3(size_t a, size_t b, size_t c)
{
	size_t m = a < b ? a : b;
	return m < c ? m : c;
}

/* Levenshtein's distance; words over 64 bytes count as far. */
static size_t distance(const char *a, const char *b)
{
	size_t n = strlen(a), m = strlen(b), row[65];
	if (n > 64 || m > 64)
		return 64;
	for (size_t j = 0; j <= m; j++)
		row[j] = j;
	for (size_t i = 1; i <= n; i++) {
		size_t diagonal = row[0];
		row[0] = i;
		for (size_t j = 1; j <= m; j++) {
			size_t up = row[j];
			row[j] = min3(up + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
			diagonal = up;
		}
	}
	return row[m];
}

const char *yaml_nearest(const char *word, const char *const *words)
{
	const char *best = NULL;
	size_t least = (strlen(word) + 2) / 3 + 1;
	for (; *words; words++) {
		size_t d = distance(word, *words);
		if (d < least) {
			least = d;
			best = *words;
		}
	}
	return best;
}
