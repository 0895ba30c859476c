/* SPDX-License-Identifier: Apache-2.0 */
/* YAML into a struct by its table: from a file, or one key. */
#include "text/yaml_table.h"

#include "text/yaml_value.h"

#include <yaml.h>
#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PATH 256

/* One reading: a document, or one value (doc NULL until it is parsed). */
struct reader {
	const char *name;	       /* of the file, or the origin of a single value */
	const struct yaml_field *root; /* the whole table */
	bool marks;		       /* say line and column */
	yaml_document_t *doc;
	struct yaml_origins *origins;
	struct yaml_error *error;
};

__attribute__((format(printf, 3, 4))) static enum status bad(struct reader *r, const yaml_mark_t *at, const char *fmt,
							     ...)
{
	char *to = r->error->text;
	size_t size = sizeof(r->error->text);
	int n = r->marks && at ? snprintf(to, size, "%s:%zu:%zu: ", r->name, at->line + 1, at->column + 1)
			       : snprintf(to, size, "%s: ", r->name);
	va_list ap;
	va_start(ap, fmt);
	if (n < (int)size)
		vsnprintf(to + n, size - (size_t)n, fmt, ap);
	va_end(ap);
	return ST_INVALID_ARGUMENT;
}

/* ---- names ---- */

static const struct yaml_field *find(const struct yaml_field *table, const char *name)
{
	for (const struct yaml_field *f = table; f->name; f++)
		if (strcmp(f->name, name) == 0)
			return f->type == YAML_ALIAS ? find(table, f->alias_of) : f;
	return NULL;
}

static void join(char out[MAX_PATH], const char *path, const char *name)
{
	snprintf(out, MAX_PATH, "%.120s%s%.120s", path, *path ? "." : "", name);
}

/* The path of the first key of that name in the sections of `table`. */
static bool elsewhere(char out[MAX_PATH], const struct yaml_field *table, const char *path, const char *name)
{
	for (const struct yaml_field *f = table; f->name; f++) {
		join(out, path, f->name);
		if (f->type == YAML_SECTION) {
			char in[MAX_PATH];
			memcpy(in, out, sizeof(in));
			if (elsewhere(out, f->fields, in, name))
				return true;
		} else if (strcmp(f->name, name) == 0) {
			return true;
		}
	}
	return false;
}

static enum status unknown(struct reader *r, const yaml_mark_t *at, const struct yaml_field *table, const char *path,
			   const char *name)
{
	const char *words[YAML_MAX_FIELDS + 1];
	size_t n = 0;
	for (const struct yaml_field *f = table; f->name; f++) {
		assert(n < YAML_MAX_FIELDS);
		words[n++] = f->name;
	}
	words[n] = NULL;
	const char *near = yaml_nearest(name, words);
	const char *in = *path ? " in " : "";
	char other[MAX_PATH];
	if (elsewhere(other, r->root, "", name))
		return bad(r, at, "unknown key \"%.100s\"%s%s; there is %s", name, in, path, other);
	if (near)
		return bad(r, at, "unknown key \"%.100s\"%s%s; did you mean \"%s\"?", name, in, path, near);
	char all[300] = "", last[] = ", ...";
	for (size_t i = 0, used = 0; i < n; i++) {
		if (used + strlen(words[i]) + sizeof ", " + sizeof(last) > sizeof(all)) {
			strcpy(all + used, last);
			break;
		}
		used += (size_t)sprintf(all + used, "%s%s", i ? ", " : "", words[i]);
	}
	return bad(r, at, "unknown key \"%.100s\"%s%s; there are %s", name, in, path, all);
}

static void remember(struct reader *r, const yaml_mark_t *at, const struct yaml_field *f)
{
	struct yaml_origins *o = r->origins;
	if (!o)
		return;
	size_t i = 0;
	while (i < o->n && o->at[i].field != f)
		i++;
	assert(i < sizeof(o->at) / sizeof(*o->at));
	o->n += i == o->n;
	o->at[i].field = f;
	if (r->marks && at)
		snprintf(o->at[i].text, sizeof(o->at[i].text), "%.90s:%zu:%zu", r->name, at->line + 1, at->column + 1);
	else
		snprintf(o->at[i].text, sizeof(o->at[i].text), "%.120s", r->name);
}

const char *yaml_origin(const struct yaml_origins *o, const struct yaml_field *f)
{
	for (size_t i = 0; i < o->n; i++)
		if (o->at[i].field == f)
			return o->at[i].text;
	return "";
}

/* ---- from nodes ---- */

static const char *text_of(const yaml_node_t *n)
{
	if (n->type != YAML_SCALAR_NODE || strlen((const char *)n->data.scalar.value) != n->data.scalar.length)
		return NULL;
	return (const char *)n->data.scalar.value;
}

/* "key:" with nothing behind it stands for an empty section or list. */
static bool is_empty(const yaml_node_t *n)
{
	return n->type == YAML_SCALAR_NODE && n->data.scalar.length == 0 &&
	       n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static enum status apply_section(struct reader *, const struct yaml_field *table, const yaml_node_t *, void *obj,
				 const char *path);

static size_t n_items(const yaml_node_t *n)
{
	return n->type == YAML_SEQUENCE_NODE ? (size_t)(n->data.sequence.items.top - n->data.sequence.items.start) : 0;
}

static const yaml_node_t *item(struct reader *r, const yaml_node_t *n, size_t i)
{
	return yaml_document_get_node(r->doc, n->data.sequence.items.start[i]);
}

static void free_list(const struct yaml_field *f, struct yaml_list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		if (f->type == YAML_LIST) {
			yaml_fini(f->fields, (char *)l->items + i * f->item_bytes);
		} else if (f->type == YAML_MAP) {
			free(((struct yaml_pair *)l->items)[i].key);
			free(((struct yaml_pair *)l->items)[i].value);
		} else if (f->type == YAML_STRINGS) {
			free(((char **)l->items)[i]);
		}
	}
	free(l->items);
	*l = (struct yaml_list){ 0, NULL };
}

/* An empty list for up to n items; it grows by l->n++, so that a half-read one can be freed. */
static enum status new_list(struct reader *r, const yaml_node_t *node, const struct yaml_field *f, const char *path,
			    size_t n, size_t most, size_t bytes, struct yaml_list *l)
{
	if (n > most)
		return bad(r, &node->start_mark, "%s: %zu items, the most is %zu", path, n, most);
	free_list(f, l);
	if (n && !(l->items = calloc(n, bytes)))
		return ST_NO_MEMORY;
	return ST_OK;
}

static enum status apply_list(struct reader *r, const struct yaml_field *f, const yaml_node_t *node,
			      struct yaml_list *l, const char *path)
{
	if (node->type != YAML_SEQUENCE_NODE && !is_empty(node))
		return bad(r, &node->start_mark, "%s: must be a list", path);
	struct reader inner = *r;
	inner.origins = NULL;
	size_t n = n_items(node);
	enum status st = new_list(r, node, f, path, n, YAML_MAX_LIST, f->item_bytes, l);
	for (size_t i = 0; i < n && st == ST_OK; i++) {
		void *obj = (char *)l->items + f->item_bytes * l->n++;
		st = yaml_init(f->fields, obj, NULL, r->error);
		if (st == ST_OK)
			st = apply_section(&inner, f->fields, item(r, node, i), obj, path);
	}
	return st;
}

static enum status apply_i64s(struct reader *r, const struct yaml_field *f, const yaml_node_t *node,
			      struct yaml_list *l, const char *path)
{
	char why[256];
	if (node->type != YAML_SEQUENCE_NODE)
		return bad(r, &node->start_mark, "%s: must be a list of numbers", path);
	enum status st = new_list(r, node, f, path, n_items(node), YAML_MAX_SHORT, sizeof(int64_t), l);
	for (size_t i = 0; i < n_items(node) && st == ST_OK; i++) {
		const yaml_node_t *v = item(r, node, i);
		if (!text_of(v))
			return bad(r, &v->start_mark, "%s: must be a list of numbers", path);
		if (!yaml_parse_i64(f, text_of(v), (int64_t *)l->items + l->n, why, sizeof(why)))
			return bad(r, &v->start_mark, "%s: %s", path, why);
		l->n++;
	}
	return st;
}

static enum status apply_strings(struct reader *r, const struct yaml_field *f, const yaml_node_t *node,
				 struct yaml_list *l, const char *path)
{
	char why[256];
	if (node->type != YAML_SEQUENCE_NODE)
		return bad(r, &node->start_mark, "%s: must be a list of words", path);
	enum status st = new_list(r, node, f, path, n_items(node), YAML_MAX_SHORT, sizeof(char *), l);
	for (size_t i = 0; i < n_items(node) && st == ST_OK; i++) {
		const yaml_node_t *v = item(r, node, i);
		if (!text_of(v))
			return bad(r, &v->start_mark, "%s: must be a list of words", path);
		if (!yaml_parse_string(f, text_of(v), (char **)l->items + l->n, why, sizeof(why)))
			return bad(r, &v->start_mark, "%s: %s", path, why);
		l->n++;
	}
	return st;
}

static enum status apply_f64s(struct reader *r, const struct yaml_field *f, const yaml_node_t *node, double *out,
			      const char *path)
{
	char why[256];
	if (n_items(node) != f->n)
		return bad(r, &node->start_mark, "%s: must be a list of %u numbers", path, (unsigned)f->n);
	for (uint32_t i = 0; i < f->n; i++) {
		const yaml_node_t *v = item(r, node, i);
		if (!text_of(v))
			return bad(r, &v->start_mark, "%s: must be a list of %u numbers", path, (unsigned)f->n);
		if (!yaml_parse_f64(f, text_of(v), &out[i], why, sizeof(why)))
			return bad(r, &v->start_mark, "%s: %s", path, why);
	}
	return ST_OK;
}

static enum status apply_map(struct reader *r, const struct yaml_field *f, const yaml_node_t *node, struct yaml_list *l,
			     const char *path)
{
	char why[256];
	if (node->type != YAML_MAPPING_NODE && !is_empty(node))
		return bad(r, &node->start_mark, "%s: must be a mapping", path);
	size_t n = is_empty(node) ? 0 : (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
	enum status st = new_list(r, node, f, path, n, YAML_MAX_SHORT, sizeof(struct yaml_pair), l);
	struct yaml_pair *pairs = l->items;
	for (size_t i = 0; i < n && st == ST_OK; i++) {
		const yaml_node_t *k = yaml_document_get_node(r->doc, node->data.mapping.pairs.start[i].key);
		const yaml_node_t *v = yaml_document_get_node(r->doc, node->data.mapping.pairs.start[i].value);
		if (!text_of(k) || !text_of(v))
			return bad(r, &k->start_mark, "%s: keys and values must be strings", path);
		for (size_t j = 0; j < i; j++)
			if (strcmp(pairs[j].key, text_of(k)) == 0)
				return bad(r, &k->start_mark, "%s: \"%.100s\" is given twice", path, text_of(k));
		l->n++;
		if (!yaml_parse_string(f, text_of(k), &pairs[i].key, why, sizeof(why)))
			return bad(r, &k->start_mark, "%s: %s", path, why);
		if (!yaml_parse_string(f, text_of(v), &pairs[i].value, why, sizeof(why)))
			return bad(r, &v->start_mark, "%s: %s", path, why);
	}
	return st;
}

static enum status apply(struct reader *r, const struct yaml_field *f, const yaml_node_t *node, void *at,
			 const char *path)
{
	char why[256];
	enum status st = ST_OK;
	switch (f->type) {
	case YAML_SECTION:
		return apply_section(r, f->fields, node, at, path);
	case YAML_LIST:
		st = apply_list(r, f, node, at, path);
		break;
	case YAML_I64S:
		st = apply_i64s(r, f, node, at, path);
		break;
	case YAML_STRINGS:
		st = apply_strings(r, f, node, at, path);
		break;
	case YAML_MAP:
		st = apply_map(r, f, node, at, path);
		break;
	default:
		if (!yaml_is_scalar(f)) {
			st = apply_f64s(r, f, node, at, path);
			break;
		}
		if (!text_of(node))
			return bad(r, &node->start_mark, "%s: must be one value", path);
		if (!yaml_parse_value(f, text_of(node), false, at, why, sizeof(why)))
			return bad(r, &node->start_mark, "%s: %s", path, why);
	}
	if (st == ST_OK)
		remember(r, &node->start_mark, f);
	return st;
}

static enum status apply_section(struct reader *r, const struct yaml_field *table, const yaml_node_t *node, void *obj,
				 const char *path)
{
	uint64_t seen = 0;
	if (is_empty(node))
		return ST_OK;
	if (node->type != YAML_MAPPING_NODE)
		return bad(r, &node->start_mark, "%s%smust be a mapping of keys", path, *path ? ": " : "");
	for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++) {
		const yaml_node_t *k = yaml_document_get_node(r->doc, p->key);
		const char *name = text_of(k);
		if (!name)
			return bad(r, &k->start_mark, "keys must be words");
		const struct yaml_field *f = find(table, name);
		if (!f)
			return unknown(r, &k->start_mark, table, path, name);
		if (seen >> (f - table) & 1)
			return bad(r, &k->start_mark, "\"%s\" sets %s a second time", name, f->name);
		seen |= UINT64_C(1) << (f - table);
		char inner[MAX_PATH];
		join(inner, path, f->name);
		enum status st = apply(r, f, yaml_document_get_node(r->doc, p->value), (char *)obj + f->offset, inner);
		if (st)
			return st;
	}
	return ST_OK;
}

/* ---- documents ---- */

static enum status syntax_error(struct reader *r, const yaml_parser_t *p)
{
	const char *what = p->problem ? p->problem : "cannot be read";
	if (p->error == YAML_MEMORY_ERROR)
		return ST_NO_MEMORY;
	if (!strcmp(what, "found character that cannot start any token"))
		what = "found character that cannot start any token: YAML is indented with spaces, not tabs, and @, ` "
		       "and % need quotes";
	if (p->error == YAML_READER_ERROR) /* it knows no line */
		return bad(r, NULL, "byte %zu: %s: 0x%02x", p->problem_offset, what, (unsigned)p->problem_value);
	return bad(r, &p->problem_mark, "%s", what);
}

#define MAX_BRACKETS 256

/* libyaml takes time with the square of the depth of nested brackets: where they are too deep, if they are. Quoted ones
 * count, too. */
static bool too_deep(const char *text, size_t n, yaml_mark_t *at)
{
	size_t depth = 0;
	*at = (yaml_mark_t){ 0 };
	for (; at->index < n; at->index++, at->column++) {
		char c = text[at->index];
		if (c == '\n') {
			at->line++;
			at->column = (size_t)-1;
		}
		if (c == '[' || c == '{')
			depth++;
		if (depth > MAX_BRACKETS)
			return true;
		if ((c == ']' || c == '}') && depth)
			depth--;
	}
	return false;
}

/* Parses one document and gives its root to `f`, or to the table if f is NULL. */
static enum status read_document(struct reader *r, const struct yaml_field *table, const struct yaml_field *f,
				 void *obj, const char *path, const char *text, size_t n)
{
	yaml_parser_t p;
	yaml_document_t doc, more;
	yaml_mark_t at;
	if (too_deep(text, n, &at))
		return bad(r, &at, "more than %d open brackets", MAX_BRACKETS);
	if (!yaml_parser_initialize(&p))
		return ST_NO_MEMORY;
	enum status st = ST_OK;
	yaml_parser_set_encoding(&p, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&p, (const unsigned char *)text, n);
	if (!yaml_parser_load(&p, &doc)) {
		st = syntax_error(r, &p);
		goto out;
	}
	r->doc = &doc;
	const yaml_node_t *root = yaml_document_get_root_node(&doc);
	if (root)
		st = f ? apply(r, f, root, obj, path) : apply_section(r, table, root, obj, path);
	if (st == ST_OK && root) {
		if (!yaml_parser_load(&p, &more)) {
			st = syntax_error(r, &p);
		} else {
			const yaml_node_t *second = yaml_document_get_root_node(&more);
			if (second)
				st = bad(r, &second->start_mark, "a second document: one file is one document");
			yaml_document_delete(&more);
		}
	}
	yaml_document_delete(&doc);
out:
	yaml_parser_delete(&p);
	return st;
}

enum status yaml_read(const struct yaml_field *table, void *obj, const char *name, const char *text, size_t n,
		      struct yaml_origins *o, struct yaml_error *error)
{
	struct reader r = { .name = name, .root = table, .marks = true, .origins = o, .error = error };
	if (n > YAML_MAX_FILE)
		return bad(&r, NULL, "is bigger than %u MiB", YAML_MAX_FILE >> 20);
	return read_document(&r, table, NULL, obj, "", text, n);
}

enum status yaml_set(const struct yaml_field *table, void *obj, const char *path, const char *text, const char *origin,
		     struct yaml_origins *o, struct yaml_error *error)
{
	struct reader r = { .name = origin, .root = table, .origins = o, .error = error };
	char seen[MAX_PATH] = "", name[64], why[256];
	const struct yaml_field *f = NULL;
	for (const char *c = path;; c++) {
		size_t n = strcspn(c, ".");
		snprintf(name, sizeof(name), "%.*s", (int)(n < sizeof(name) ? n : sizeof(name)), c);
		if (f && f->type != YAML_SECTION)
			return bad(&r, NULL, "%s has no keys below it", seen);
		if (f)
			table = f->fields;
		if (!(f = find(table, name)))
			return unknown(&r, NULL, table, seen, name);
		char longer[MAX_PATH];
		join(longer, seen, f->name);
		memcpy(seen, longer, sizeof(seen));
		obj = (char *)obj + f->offset;
		c += n;
		if (!*c)
			break;
	}
	if (!yaml_is_scalar(f))
		return read_document(&r, NULL, f, obj, seen, text, strlen(text));
	if (!yaml_parse_value(f, text, false, obj, why, sizeof(why)))
		return bad(&r, NULL, "%s: %s", seen, why);
	remember(&r, NULL, f);
	return ST_OK;
}

enum status yaml_init(const struct yaml_field *table, void *obj, struct yaml_origins *o, struct yaml_error *error)
{
	struct reader r = { .name = "default", .origins = o, .error = error };
	char why[256];
	for (const struct yaml_field *f = table; f->name; f++) {
		void *at = (char *)obj + f->offset;
		if (f->type == YAML_SECTION) {
			enum status st = yaml_init(f->fields, at, o, error);
			if (st)
				return st;
		} else if (f->initial) {
			if (!yaml_parse_value(f, f->initial, true, at, why, sizeof(why)))
				return bad(&r, NULL, "%s: %s", f->name, why);
			remember(&r, NULL, f);
		}
	}
	return ST_OK;
}

void yaml_fini(const struct yaml_field *table, void *obj)
{
	for (const struct yaml_field *f = table; f->name; f++) {
		void *at = (char *)obj + f->offset;
		if (f->type == YAML_SECTION) {
			yaml_fini(f->fields, at);
		} else if (f->type == YAML_STRING) {
			free(*(char **)at);
			*(char **)at = NULL;
		} else if (f->type == YAML_LIST || f->type == YAML_MAP || f->type == YAML_I64S ||
			   f->type == YAML_STRINGS) {
			free_list(f, at);
		}
	}
}
