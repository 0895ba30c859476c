/* SPDX-License-Identifier: Apache-2.0 */
/* What was given on the command line, for the handlers: options as text, flags, numbers and durations. gaccctl's main
 * thread. */
#include "command.h"
#include "output.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *opt_each(const struct invocation *inv, const char *name, size_t i)
{
	for (size_t k = 0; k < inv->n_given; k++)
		if (!strcmp(inv->given[k].option->name, name) && !i--)
			return inv->given[k].value ? inv->given[k].value : "";
	return NULL;
}

const char *opt(const struct invocation *inv, const char *name)
{
	const char *last = NULL, *value;

	for (size_t i = 0; (value = opt_each(inv, name, i)); i++)
		last = value;
	return last;
}

bool opt_flag(const struct invocation *inv, const char *name)
{
	return opt(inv, name) != NULL;
}

bool opt_uint(struct invocation *inv, const char *name, uint64_t min, uint64_t max, uint64_t fallback, uint64_t *out,
	      int *exit_status)
{
	const char *text = opt(inv, name);
	unsigned long long v;
	char *end;

	*out = fallback;
	if (!text)
		return true;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno || *end || !isdigit((unsigned char)*text) || v < min || v > max) {
		*exit_status = fail_usage(inv, "--%s %s: a number from %llu to %llu is needed", name, text,
					  (unsigned long long)min, (unsigned long long)max);
		return false;
	}
	*out = v;
	return true;
}

bool parse_duration(const char *text, int64_t *out_ms)
{
	static const struct {
		const char *unit;
		int64_t ms;
	} units[] = { { "ms", 1 }, { "s", 1000 }, { "m", 60000 }, { "h", 3600000 }, { "d", 86400000 } };
	int64_t total = 0;

	if (!*text)
		return false;
	while (*text) {
		char *end;
		long v = strtol(text, &end, 10);
		size_t i, letters = strspn(end, "abcdefghijklmnopqrstuvwxyz");

		if (!isdigit((unsigned char)*text) || v > INT32_MAX)
			return false;
		for (i = 0; i < 5; i++)
			if (strlen(units[i].unit) == letters && !strncmp(end, units[i].unit, letters))
				break;
		if (i == 5)
			return false;
		total += v * units[i].ms;
		if (total > INT32_MAX)
			return false;
		text = end + letters;
	}
	*out_ms = total;
	return true;
}

bool opt_duration(struct invocation *inv, const char *name, int64_t fallback_ms, int64_t *out_ms, int *exit_status)
{
	const char *text = opt(inv, name);

	*out_ms = fallback_ms;
	if (!text || parse_duration(text, out_ms))
		return true;
	*exit_status = fail_usage(inv, "--%s %s: a time such as 10s, 250ms or 1h30m is needed", name, text);
	return false;
}
