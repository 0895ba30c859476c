/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the last lines of a log out of a buffer, as valid UTF-8 that fits into a message: a rank's last words in a
 * failure. Pure; any thread. */
#include "host/log_tail.h"

#include "proto/utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static size_t trimmed(const char *text, size_t n)
{
	while (n && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' '))
		n--;
	return n;
}

/* Where the last `max` lines begin. */
static const char *first_line(const char *text, size_t n, size_t max)
{
	const char *at = text + n;
	for (; at > text; at--)
		if (at[-1] == '\n' && !--max)
			break;
	return at;
}

static char *line(const char *at, size_t n)
{
	const char *end = at + (n < LOG_TAIL_LINE - 1 ? n : LOG_TAIL_LINE - 1);
	char *out = malloc(LOG_TAIL_LINE), *to = out;
	while (out && at < end) {
		char escape[UTF8_ESCAPE_MAX];
		size_t length = utf8_length(at, end), all = utf8_escape(at, end, UTF8_TEXT, escape);
		bool ok = *at == '\t' || !*escape;
		if (!length && n >= LOG_TAIL_LINE && end - at < 4)
			break; /* a character that is cut */
		if (!ok)
			*to++ = '?';
		for (size_t i = 0; ok && i < length; i++)
			*to++ = at[i];
		at += all;
	}
	if (out)
		*to = '\0';
	return out;
}

size_t log_tail(const char *text, size_t n, char **out, size_t max)
{
	size_t found = 0;
	n = trimmed(text, n);
	const char *end = text + n, *at = first_line(text, n, max);
	while (n && at <= end && found < max) {
		const char *nl = memchr(at, '\n', (size_t)(end - at));
		const char *stop = nl ? nl : end;
		size_t length = (size_t)(stop - at);
		out[found] = line(at, length && stop[-1] == '\r' ? length - 1 : length);
		if (!out[found])
			break;
		found++;
		at = stop + 1;
	}
	return found;
}
