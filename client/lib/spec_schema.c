/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the job file's table of keys as a JSON Schema, for editors and for `gaccctl config schema`. Pure; any
 * thread. */
#include "gacc/gacc_admin.h"
#include "lib/spec.h"
#include "text/yaml_table.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "https://json-schema.org/draft/2020-12/schema"
#define DURATION "^([0-9]+(ms|s|m|h|d))+$"
#define SIZE "^[0-9]+(\\.[0-9]+)?([KMGT]i?B|B)?$"

static json_t *schema_of_table(const struct yaml_field *table);

static bool has_range(const struct yaml_field *f)
{
	return f->min != 0 || f->max != 0;
}

/* A bound that a double holds exactly; infinity is none. */
static void put_bound(json_t *o, const char *key, double v, bool whole)
{
	if (isfinite(v))
		json_object_set_new(o, key, whole ? json_integer((json_int_t)v) : json_real(v));
}

static json_t *number(const struct yaml_field *f, bool whole)
{
	json_t *o = json_pack("{s:s}", "type", whole ? "integer" : "number");

	if (has_range(f)) {
		put_bound(o, "minimum", f->min, whole);
		put_bound(o, "maximum", f->max, whole);
	} else if (f->type == YAML_U32 || f->type == YAML_U64) {
		put_bound(o, "minimum", 0, true);
	}
	return o;
}

static json_t *string(const struct yaml_field *f)
{
	json_t *o = json_pack("{s:s}", "type", "string");

	if (has_range(f)) {
		put_bound(o, "minLength", f->min, true);
		put_bound(o, "maxLength", f->max, true);
	}
	return o;
}

/* "true" as a word is a boolean to other readers of YAML. */
static json_t *enumeration(const struct yaml_field *f)
{
	json_t *values = json_array();

	for (const struct yaml_name *n = f->names; n->name; n++) {
		bool yes = !strcmp(n->name, "true"), no = !strcmp(n->name, "false");

		json_array_append_new(values, yes || no ? json_boolean(yes) : json_string(n->name));
	}
	return json_pack("{s:o}", "enum", values);
}

static json_t *list_of(json_t *items, uint32_t n)
{
	json_t *o = json_pack("{s:s, s:o}", "type", "array", "items", items);

	if (n) {
		put_bound(o, "minItems", n, true);
		put_bound(o, "maxItems", n, true);
	}
	return o;
}

/* Bytes may be a bare number; of times only 0 may. */
static json_t *size(void)
{
	return json_pack("{s:[{s:s, s:i}, {s:s, s:s}]}", "anyOf", "type", "integer", "minimum", 0, "type", "string",
			 "pattern", SIZE);
}

static json_t *duration(void)
{
	return json_pack("{s:[{s:[i]}, {s:s, s:s}]}", "anyOf", "enum", 0, "type", "string", "pattern", DURATION);
}

static json_t *schema_of_type(const struct yaml_field *f)
{
	switch (f->type) {
	case YAML_STRING:
	case YAML_OCTAL:
		return string(f);
	case YAML_BOOL:
		return json_pack("{s:s}", "type", "boolean");
	case YAML_ENUM:
		return enumeration(f);
	case YAML_U32:
	case YAML_U64:
		return number(f, true);
	case YAML_F64:
		return f->n > 1 ? list_of(number(f, false), f->n) : number(f, false);
	case YAML_SIZE:
		return size();
	case YAML_MS:
		return duration();
	case YAML_I64S:
		return list_of(number(f, true), 0);
	case YAML_STRINGS:
		return list_of(string(f), 0);
	case YAML_MAP:
		return json_pack("{s:s, s:o}", "type", "object", "additionalProperties", string(f));
	case YAML_SECTION:
		return schema_of_table(f->fields);
	case YAML_LIST:
		return list_of(schema_of_table(f->fields), 0);
	case YAML_ALIAS:
		break;
	}
	return NULL;
}

/* The default as a value of the schema; NULL: there is none to tell. */
static json_t *default_of(const struct yaml_field *f)
{
	if (!f->initial || !strcmp(f->initial, "nan"))
		return NULL;
	switch (f->type) {
	case YAML_U32:
	case YAML_U64:
		return json_integer((json_int_t)strtoull(f->initial, NULL, 10));
	case YAML_F64:
		return json_real(strtod(f->initial, NULL));
	default:
		return json_string(f->initial);
	}
}

static json_t *schema_of_field(const struct yaml_field *table, const struct yaml_field *f)
{
	const struct yaml_field *type = f;
	json_t *o;

	if (f->type == YAML_ALIAS)
		for (type = table; strcmp(type->name, f->alias_of) != 0;)
			type++;
	o = schema_of_type(type);
	json_object_set_new(o, "description", json_string(f->doc));
	json_object_set_new(o, "default", default_of(f)); /* nothing without one */
	return o;
}

static json_t *schema_of_table(const struct yaml_field *table)
{
	json_t *properties = json_object();

	for (const struct yaml_field *f = table; f->name; f++)
		json_object_set_new(properties, f->name, schema_of_field(table, f));
	return json_pack("{s:s, s:b, s:o}", "type", "object", "additionalProperties", 0, "properties", properties);
}

char *gacc_spec_schema(void)
{
	json_t *o = schema_of_table(spec_table());
	char *text;

	json_object_set_new(o, "$schema", json_string(SCHEMA));
	json_object_set_new(o, "title", json_string("gacc job file"));
	text = json_dumps(o, JSON_INDENT(2));
	json_decref(o);
	return text;
}
