/* SPDX-License-Identifier: Apache-2.0 */
/* YAML files into C structs, by one table of keys that is also the documentation.
 *
 * A table is an array of fields that ends with a NULL name. It says where in the struct each value lies, how it is
 * written, its range, its default and what it means. Whatever the table does not know is an error that names the place
 * and the nearest thing it knows. JSON is accepted, being YAML.
 *
 * Strings and lists that a struct owns are malloc'ed; yaml_fini frees them. Any thread; no globals, no log: errors are
 * text for the user, "FILE:LINE:COLUMN: what", with ST_INVALID_ARGUMENT (or ST_NO_MEMORY). On an error the struct is
 * partly filled and still to be given to yaml_fini.
 */
#ifndef GACC_TEXT_YAML_TABLE_H
#define GACC_TEXT_YAML_TABLE_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define YAML_MAX_FILE (64u << 20) /* bytes */
#define YAML_MAX_LIST (1u << 20)  /* items of one list */
#define YAML_MAX_SHORT 256	  /* items of a map or of a list of numbers or strings */
#define YAML_MAX_FIELDS 64	  /* of one table */

enum yaml_type {
	YAML_STRING = 1, /* char *; min..max bytes of UTF-8 without control characters */
	YAML_BOOL,	 /* int 0 or 1: true, false */
	YAML_ENUM,	 /* int: one of `names` */
	YAML_U32,	 /* uint32_t in min..max */
	YAML_U64,	 /* uint64_t in min..max */
	YAML_F64,	 /* `n` doubles, finite, in min..max; n > 1 is written as a list of n */
	YAML_SIZE,	 /* uint64_t bytes in min..max: 4096, 512KiB, 64GiB, 1.5GB */
	/* uint64_t milliseconds in min..max: 200ms, 10s, 5m, 1h30m, 2d; a bare number other than 0 is refused */
	YAML_MS,
	YAML_OCTAL,   /* uint32_t file mode */
	YAML_I64S,    /* struct yaml_list of int64_t in min..max */
	YAML_STRINGS, /* struct yaml_list of char *, each as YAML_STRING */
	YAML_MAP,     /* struct yaml_list of struct yaml_pair: free keys, string values */
	YAML_SECTION, /* a struct of `fields` inside the struct */
	YAML_LIST,    /* struct yaml_list of structs of `fields`, `item_bytes` each */
	YAML_ALIAS    /* another name of the field `alias_of` of the same table */
};

struct yaml_name {
	const char *name; /* NULL ends the array */
	int value;
};

struct yaml_pair {
	char *key, *value;
};

struct yaml_list {
	size_t n;
	void *items;
};

struct yaml_field {
	const char *name;
	enum yaml_type type;
	size_t offset; /* in the struct that the table describes; of a section's fields: in the section's */
	/* the default as a user would write it; NULL: all bits zero. F64 also takes "nan": unset */
	const char *initial;
	double min, max; /* both 0: the type's own range */
	const struct yaml_name *names;
	const struct yaml_field *fields;
	const char *alias_of;
	size_t item_bytes;
	uint32_t n;	 /* F64: how many; 0 means 1 */
	const char *doc; /* one sentence */
};

/* Where the values of a struct came from: "default", "gaccd.yaml:3:11", "--set"; not of fields of lists. */
struct yaml_origins {
	size_t n;
	struct yaml_origin {
		const struct yaml_field *field;
		char text[128];
	} at[128];
};

struct yaml_error {
	char text[512];
};

/* Sets every default in zeroed memory. `o` may be NULL here and below. */
enum status yaml_init(const struct yaml_field *table, void *obj, struct yaml_origins *o, struct yaml_error *);
/* Reads n bytes of a file called `name`. */
enum status yaml_read(const struct yaml_field *table, void *obj, const char *name, const char *text, size_t n,
		      struct yaml_origins *o, struct yaml_error *);
/* Sets one key, "listen.socket", from text: a scalar as it is, a list or a section as YAML. `origin` is what errors
 * begin with. */
enum status yaml_set(const struct yaml_field *table, void *obj, const char *path, const char *text, const char *origin,
		     struct yaml_origins *o, struct yaml_error *);
void yaml_fini(const struct yaml_field *table, void *obj);

/* Where the field's value came from; "" if it was never set. */
const char *yaml_origin(const struct yaml_origins *, const struct yaml_field *);
/* The tables' scalars and sections as YAML with documentation and origins; lists are left out. */
void yaml_print(const struct yaml_field *table, const void *obj, const struct yaml_origins *, FILE *);
/* Calls `fn` for each scalar in their order: path "listen.socket", the value as yaml_set takes it, the origin; until it
 * returns false. False: it did, or there was no memory. */
bool yaml_each(const struct yaml_field *table, const void *obj, const struct yaml_origins *,
	       bool (*fn)(void *arg, const char *path, const char *value, const char *origin), void *arg);
/* The nearest of `words` (NULL-terminated) to `word`, by edits; NULL: none is near. */
const char *yaml_nearest(const char *word, const char *const *words);

#endif
