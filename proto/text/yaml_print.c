/* SPDX-License-Identifier: Apache-2.0 */
/* A struct by its table as text: with documentation for people, value by value for programs. */
#include "text/yaml_table.h"

#include "text/yaml_value.h"

#include <stdio.h>
#include <stdlib.h>

static void print_fields(const struct yaml_field *table, const void *obj, const struct yaml_origins *o, int indent,
			 FILE *to)
{
	for (const struct yaml_field *f = table; f->name; f++) {
		const void *at = (const char *)obj + f->offset;
		if (f->type == YAML_SECTION) {
			fprintf(to, "%*s%s:\n", indent, "", f->name);
			print_fields(f->fields, at, o, indent + 2, to);
		} else if (yaml_is_scalar(f)) {
			fprintf(to, "%*s# %s\n%*s%s: ", indent, "", f->doc, indent, "", f->name);
			yaml_print_value(f, at, to);
			fprintf(to, "  # %s\n", yaml_origin(o, f));
		}
	}
}

void yaml_print(const struct yaml_field *table, const void *obj, const struct yaml_origins *o, FILE *to)
{
	print_fields(table, obj, o, 0, to);
}

struct each {
	const struct yaml_origins *origins;
	bool (*fn)(void *arg, const char *path, const char *value, const char *origin);
	void *arg;
};

static bool each_scalar(const struct each *e, const struct yaml_field *f, const char *path, const void *at)
{
	char *text = NULL;
	size_t n = 0;
	FILE *to = f->type == YAML_STRING ? NULL : open_memstream(&text, &n);
	if (to)
		yaml_print_value(f, at, to);
	if (f->type != YAML_STRING && (!to || fclose(to)))
		return false;
	const char *value = f->type == YAML_STRING ? *(char *const *)at : text;
	if (f->type == YAML_OCTAL) { /* quoted in files, where it would be a number */
		text[n - 1] = '\0';
		value++;
	}
	bool ok = e->fn(e->arg, path, value ? value : "", yaml_origin(e->origins, f));
	free(text);
	return ok;
}

static bool each_field(const struct each *e, const struct yaml_field *table, const char *prefix, const void *obj)
{
	bool ok = true;
	for (const struct yaml_field *f = table; f->name && ok; f++) {
		const void *at = (const char *)obj + f->offset;
		char path[128];
		snprintf(path, sizeof(path), "%s%s%s", prefix, *prefix ? "." : "", f->name);
		if (f->type == YAML_SECTION)
			ok = each_field(e, f->fields, path, at);
		else if (yaml_is_scalar(f))
			ok = each_scalar(e, f, path, at);
	}
	return ok;
}

bool yaml_each(const struct yaml_field *table, const void *obj, const struct yaml_origins *o,
	       bool (*fn)(void *arg, const char *path, const char *value, const char *origin), void *arg)
{
	return each_field(&(struct each){ o, fn, arg }, table, "", obj);
}
