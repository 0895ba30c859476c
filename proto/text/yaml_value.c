/* SPDX-License-Identifier: Apache-2.0 */
#include "text/yaml_value.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct unit {
	const char *name;
	double factor;
};

static const struct unit sizes[] = { { "B", 1 },	{ "K", 0x1p10 },   { "KiB", 0x1p10 }, { "kB", 1e3 },
				     { "KB", 1e3 },	{ "M", 0x1p20 },   { "MiB", 0x1p20 }, { "MB", 1e6 },
				     { "G", 0x1p30 },	{ "GiB", 0x1p30 }, { "GB", 1e9 },     { "T", 0x1p40 },
				     { "TiB", 0x1p40 }, { "TB", 1e12 },	   { NULL, 0 } };
static const struct unit times[] = { { "ms", 1 },     { "s", 1e3 },	{ "m", 60e3 },
				     { "h", 3600e3 }, { "d", 86400e3 }, { NULL, 0 } };

bool yaml_is_scalar(const struct yaml_field *f)
{
	return f->type >= YAML_STRING && f->type <= YAML_OCTAL && f->n <= 1;
}

static bool in_range(const struct yaml_field *f, const char *text, double v, char *why, size_t n_why)
{
	if ((f->min == 0 && f->max == 0) || (v >= f->min && v <= f->max))
		return true;
	if (f->max > 0x1p53 && v < f->min) /* an upper end that nobody reaches says nothing */
		snprintf(why, n_why, "\"%.40s\" must be at least %.15g", text, f->min);
	else
		snprintf(why, n_why, "\"%.40s\" must be in %.15g..%.15g", text, f->min, f->max);
	return false;
}

static bool parse_u64(const struct yaml_field *f, const char *text, uint64_t most, uint64_t *out, char *why,
		      size_t n_why)
{
	char *end;
	errno = 0;
	unsigned long long v = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)*text) || *end) {
		snprintf(why, n_why, "\"%s\" is not a whole number >= 0", text);
		return false;
	}
	if (errno || v > most) {
		snprintf(why, n_why, "%s is too big: the most is %" PRIu64, text, most);
		return false;
	}
	if (!in_range(f, text, (double)v, why, n_why))
		return false;
	*out = v;
	return true;
}

bool yaml_parse_i64(const struct yaml_field *f, const char *text, int64_t *out, char *why, size_t n_why)
{
	char *end;
	errno = 0;
	long long v = strtoll(text, &end, 10);
	if (isspace((unsigned char)*text) || end == text || *end || errno) {
		snprintf(why, n_why, "\"%s\" is not a whole number", text);
		return false;
	}
	if (!in_range(f, text, (double)v, why, n_why))
		return false;
	*out = v;
	return true;
}

bool yaml_parse_f64(const struct yaml_field *f, const char *text, double *out, char *why, size_t n_why)
{
	char *end;
	double v = strtod(text, &end);
	if (isspace((unsigned char)*text) || end == text || *end || !isfinite(v)) {
		snprintf(why, n_why, "\"%s\" is not a finite number", text);
		return false;
	}
	if (!in_range(f, text, v, why, n_why))
		return false;
	*out = v;
	return true;
}

/* A sum of numbers with units, "1h30m"; the unit may be left out when `bare`, and of a zero always. */
static bool parse_units(const struct yaml_field *f, const char *text, const struct unit *units, bool bare,
			uint64_t *out, char *why, size_t n_why)
{
	double sum = 0;
	for (const char *c = text; c == text || *c;) {
		char *end;
		double v = isdigit((unsigned char)*c) ? strtod(c, &end) : NAN;
		if (isnan(v))
			goto bad;
		while (*end == ' ')
			end++;
		size_t n = strcspn(end, "0123456789. ");
		const struct unit *u = units;
		while (u->name && (strlen(u->name) != n || strncmp(u->name, end, n) != 0))
			u++;
		if (n == 0 && (bare || v == 0) && c == text && !*end)
			sum = v;
		else if (u->name)
			sum += v * u->factor;
		else
			goto bad;
		c = end + n;
	}
	if (!(sum < 0x1p63)) {
		snprintf(why, n_why, "%s is too big", text);
		return false;
	}
	if (!in_range(f, text, sum, why, n_why))
		return false;
	*out = (uint64_t)(sum + 0.5);
	return true;
bad:
	snprintf(why, n_why,
		 units == times ? "\"%s\" is not a time: a number and ms, s, m, h or d, as 10s or 1h30m"
				: "\"%s\" is not a size: a number and B, KiB, MiB, GiB or TiB, as 64GiB",
		 text);
	return false;
}

static bool parse_octal(const char *text, uint32_t *out, char *why, size_t n_why)
{
	char *end;
	unsigned long v = strtoul(text, &end, 8);
	if (!isdigit((unsigned char)*text) || *end || v > 07777) {
		snprintf(why, n_why, "\"%s\" is not a file mode, as \"0660\"", text);
		return false;
	}
	*out = (uint32_t)v;
	return true;
}

static bool parse_bool(const char *text, int *out, char *why, size_t n_why)
{
	if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) {
		snprintf(why, n_why, "\"%s\" is neither true nor false", text);
		return false;
	}
	*out = text[0] == 't';
	return true;
}

static bool parse_enum(const struct yaml_field *f, const char *text, int *out, char *why, size_t n_why)
{
	const char *words[64];
	size_t n = 0;
	for (const struct yaml_name *e = f->names; e->name; e++) {
		if (strcmp(e->name, text) == 0) {
			*out = e->value;
			return true;
		}
		if (n < sizeof(words) / sizeof(*words) - 1)
			words[n++] = e->name;
	}
	words[n] = NULL;
	int used = snprintf(why, n_why, "\"%s\" is none of", text);
	for (size_t i = 0; i < n && used < (int)n_why; i++)
		used += snprintf(why + used, n_why - (size_t)used, "%s %s", i ? "," : "", words[i]);
	const char *near = yaml_nearest(text, words);
	if (near && used < (int)n_why)
		snprintf(why + used, n_why - (size_t)used, "; did you mean \"%s\"?", near);
	return false;
}

bool yaml_parse_string(const struct yaml_field *f, const char *text, char **out, char *why, size_t n_why)
{
	size_t n = strlen(text);
	for (const char *c = text; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f) {
			snprintf(why, n_why, "control characters are not allowed: 0x%02x at byte %td", (unsigned)*c,
				 c - text);
			return false;
		}
	if ((f->min != 0 || f->max != 0) && ((double)n < f->min || (double)n > f->max)) {
		if (n == 0)
			snprintf(why, n_why, "must not be empty");
		else
			snprintf(why, n_why, "is %zu bytes long: must be %.0f..%.0f", n, f->min, f->max);
		return false;
	}
	char *copy = strdup(text);
	if (!copy) {
		snprintf(why, n_why, "out of memory");
		return false;
	}
	free(*out);
	*out = copy;
	return true;
}

bool yaml_parse_value(const struct yaml_field *f, const char *text, bool initial, void *at, char *why, size_t n_why)
{
	uint64_t v;
	switch (f->type) {
	case YAML_STRING:
		return yaml_parse_string(f, text, at, why, n_why);
	case YAML_BOOL:
		return parse_bool(text, at, why, n_why);
	case YAML_ENUM:
		return parse_enum(f, text, at, why, n_why);
	case YAML_U32:
		if (!parse_u64(f, text, UINT32_MAX, &v, why, n_why))
			return false;
		*(uint32_t *)at = (uint32_t)v;
		return true;
	case YAML_U64:
		return parse_u64(f, text, UINT64_MAX, at, why, n_why);
	case YAML_F64:
		if (initial && strcmp(text, "nan") == 0) {
			for (uint32_t i = 0; i < (f->n ? f->n : 1); i++)
				((double *)at)[i] = NAN;
			return true;
		}
		return yaml_parse_f64(f, text, at, why, n_why);
	case YAML_SIZE:
		return parse_units(f, text, sizes, true, at, why, n_why);
	case YAML_MS:
		return parse_units(f, text, times, false, at, why, n_why);
	default:
		return parse_octal(text, at, why, n_why);
	}
}

static void print_units(uint64_t v, const struct unit *units, FILE *to)
{
	const struct unit *best = NULL;
	for (const struct unit *u = units; u->name; u++) /* the biggest that divides it, in its later spelling */
		if (fmod((double)v, u->factor) == 0 && (!best || u->factor >= best->factor))
			best = u;
	fprintf(to, "%.0f%s", (double)v / best->factor, v ? best->name : "");
}

static void print_string(const char *s, FILE *to)
{
	fputc('"', to);
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			fputc('\\', to);
		fputc(*s, to);
	}
	fputc('"', to);
}

void yaml_print_value(const struct yaml_field *f, const void *at, FILE *to)
{
	switch (f->type) {
	case YAML_STRING:
		print_string(*(char *const *)at ? *(char *const *)at : "", to);
		break;
	case YAML_BOOL:
		fputs(*(const int *)at ? "true" : "false", to);
		break;
	case YAML_ENUM:
		for (const struct yaml_name *e = f->names; e->name; e++)
			if (e->value == *(const int *)at) {
				fputs(e->name, to);
				break;
			}
		break;
	case YAML_U32:
		fprintf(to, "%" PRIu32, *(const uint32_t *)at);
		break;
	case YAML_U64:
		fprintf(to, "%" PRIu64, *(const uint64_t *)at);
		break;
	case YAML_F64:
		fprintf(to, "%.17g", *(const double *)at);
		break;
	case YAML_SIZE:
		print_units(*(const uint64_t *)at, sizes, to);
		break;
	case YAML_MS:
		print_units(*(const uint64_t *)at, times, to);
		break;
	default:
		fprintf(to, "\"%04o\"", (unsigned)*(const uint32_t *)at);
	}
}
