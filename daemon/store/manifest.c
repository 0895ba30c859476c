/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes and decodes manifest.json. For checkpoint.c, when it seals and loads checkpoints (in gaccd's pool), and for
 * edge/restoring.c, which frees a loaded one. No shared state, no I/O; any thread. */
#include "store/manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "gacc checkpoint"

/* A decoded manifest with the storage of its strings. */
struct decoded {
	struct manifest m; /* first: a manifest is its address */
	json_t *root;
	void *spec;
};

const char *checkpoint_part_name(enum checkpoint_part p)
{
	static const char *const names[CHECKPOINT_PARTS] = { "model.safetensors", "optimizer.safetensors",
							     "carry.safetensors", "window.safetensors" };
	return names[p];
}

/* ---- writing ---- */

static json_t *of_whole(uint64_t v)
{
	char text[24];
	if (v <= INT64_MAX)
		return json_integer((json_int_t)v);
	snprintf(text, sizeof(text), "0x%" PRIx64, v);
	return json_string(text);
}

static json_t *of_real(double v)
{
	return isfinite(v) ? json_real(v) : json_string(isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
}

static json_t *of_uuid(const uint8_t *uuid)
{
	char text[33];
	for (int i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", uuid[i]);
	return json_string(text);
}

static json_t *of_spec(const void *spec, size_t n)
{
	if (n > INT32_MAX / 2)
		return NULL;
	char *text = malloc(4 * ((n + 2) / 3) + 1);
	if (!text)
		return NULL;
	EVP_EncodeBlock((unsigned char *)text, spec, (int)n);
	json_t *v = json_string(text);
	free(text);
	return v;
}

/* v, or NULL when not all of it could be put in: a manifest that leaves something out would be believed. */
static json_t *whole_or_none(json_t *v, int failures)
{
	if (!failures)
		return v;
	json_decref(v);
	return NULL;
}

static json_t *of_files(const struct checkpoint_file *f)
{
	json_t *list = json_array();
	int failures = 0;
	for (int i = 0; list && i < CHECKPOINT_PARTS; i++) {
		char hex[SHA256_HEX];
		if (!f[i].bytes)
			continue;
		sha256_to_hex(f[i].sha256, hex);
		failures |= json_array_append_new(list, json_pack("{s:s, s:o, s:s}", "name",
								  checkpoint_part_name((enum checkpoint_part)i),
								  "bytes", of_whole(f[i].bytes), "sha256", hex));
	}
	return whole_or_none(list, failures);
}

static json_t *of_values(const struct manifest_value *v, size_t n)
{
	json_t *o = json_object();
	int failures = 0;
	for (size_t i = 0; o && i < n; i++)
		failures |= json_object_set_new(o, v[i].name, v[i].is_real ? of_real(v[i].real) : of_whole(v[i].whole));
	return whole_or_none(o, failures);
}

static json_t *of_updates(const struct manifest *m)
{
	json_t *list = json_array();
	int failures = 0;
	for (size_t i = 0; list && i < m->n_updates; i++)
		failures |=
			json_array_append_new(list, json_pack("{s:o, s:o}", "window", of_whole(m->update[i].window),
							      "values", of_values(m->update[i].to, m->update[i].n)));
	return whole_or_none(list, failures);
}

static json_t *of_carry(const struct manifest *m)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "count", of_whole(m->count), "sum_weight",
			 of_real(m->sum_weight), "sum_loss", of_real(m->sum_loss), "last_rank", of_whole(m->last_rank),
			 "lr", of_real(m->lr), "lr_rank", of_whole(m->lr_rank));
}

/* Into a buffer of its own size: json_dumps, when its own cannot grow, leaves a key out and says nothing. */
static char *dump(const json_t *root, size_t *out_n)
{
	size_t n = json_dumpb(root, NULL, 0, JSON_INDENT(1));
	char *text = n ? malloc(n) : NULL;
	if (text && json_dumpb(root, text, n, JSON_INDENT(1)) != n) {
		free(text);
		return NULL;
	}
	if (text)
		*out_n = n;
	return text;
}

enum status manifest_encode(const struct manifest *m, char **out, size_t *out_n)
{
	json_error_t error;
	json_t *job = json_pack_ex(&error, 0, "{s:o, s:o, s:s, s:o}", "id", of_whole(m->job), "uuid", of_uuid(m->uuid),
				   "name", m->name, "uid", of_whole(m->uid));
	json_t *root = json_pack(
		"{s:s, s:i, s:s, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
		"format", FORMAT, "version", m->n_updates ? MANIFEST_VERSION : 1, "gacc", GACC_VERSION, "id",
		of_whole(m->id), "job", job, "created_unix_nanos", of_whole((uint64_t)m->created_unix_ns), "window",
		of_whole(m->window), "applied_step", of_whole(m->applied_step), "inside_window", (int)m->inside_window,
		"ranks", of_whole(m->ranks), "micro_size", of_whole(m->micro_size), "optimizer", m->optimizer,
		"accumulate_dtype", m->accumulate_dtype, "loss_scale", of_real(m->loss_scale), "params_digest",
		of_whole(m->params_digest), "carry", of_carry(m), "last", of_values(m->last, m->n_last), "updates",
		of_updates(m), "files", of_files(m->file), "spec", of_spec(m->spec, m->n_spec));
	if (!root)
		return !job && json_error_code(&error) == json_error_invalid_utf8 ? ST_INVALID_ARGUMENT : ST_NO_MEMORY;
	char *text = dump(root, out_n);
	json_decref(root);
	if (!text)
		return ST_NO_MEMORY;
	*out = text;
	return ST_OK;
}

/* ---- reading: each reader says whether the key is there and has a value that fits ---- */

static bool whole(const json_t *v, uint64_t *out)
{
	const char *text = json_string_value(v);
	char *end;
	if (json_is_integer(v) && json_integer_value(v) >= 0) {
		*out = (uint64_t)json_integer_value(v);
		return true;
	}
	if (!text || strncmp(text, "0x", 2) || strlen(text) > 18)
		return false;
	*out = strtoull(text + 2, &end, 16);
	return end != text + 2 && !*end;
}

static bool whole32(const json_t *v, uint32_t *out)
{
	uint64_t n;
	if (!whole(v, &n) || n > UINT32_MAX)
		return false;
	*out = (uint32_t)n;
	return true;
}

static bool real(const json_t *v, double *out)
{
	const char *text = json_string_value(v);
	if (json_is_number(v))
		*out = json_number_value(v);
	else if (text && (!strcmp(text, "nan") || !strcmp(text, "inf") || !strcmp(text, "-inf")))
		*out = strtod(text, NULL);
	else
		return false;
	return true;
}

static bool string(const json_t *v, const char **out)
{
	*out = json_string_value(v);
	return *out != NULL;
}

static bool uuid(const json_t *v, uint8_t out[16])
{
	const char *text = json_string_value(v);
	char two[3] = "";
	if (!text || strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
		return false;
	for (int i = 0; i < 16; i++) {
		memcpy(two, text + 2 * i, 2);
		out[i] = (uint8_t)strtoul(two, NULL, 16);
	}
	return true;
}

static bool values(json_t *v, struct manifest_value *out, size_t max, size_t *n)
{
	const char *name;
	json_t *value;
	if (!json_is_object(v) || json_object_size(v) > max)
		return false;
	json_object_foreach(v, name, value)
	{
		struct manifest_value *to = &out[(*n)++];
		to->name = name;
		to->is_real = !whole(value, &to->whole);
		if (to->is_real && !real(value, &to->real))
			return false;
		if (!to->is_real)
			to->real = (double)to->whole;
	}
	return true;
}

static bool last(json_t *v, struct manifest *m)
{
	return values(v, m->last, MANIFEST_MAX_VALUES, &m->n_last);
}

/* Those of version 1 have none. */
static bool updates(json_t *v, struct manifest *m)
{
	json_t *item;
	size_t i;
	if (!v)
		return true;
	if (!json_is_array(v) || json_array_size(v) > MANIFEST_MAX_UPDATES)
		return false;
	json_array_foreach(v, i, item)
	{
		struct manifest_update *u = &m->update[m->n_updates++];
		if (!whole(json_object_get(item, "window"), &u->window) ||
		    !values(json_object_get(item, "values"), u->to, MANIFEST_MAX_CHANGES, &u->n))
			return false;
	}
	return true;
}

static bool spec(const json_t *v, struct decoded *d)
{
	const char *text = json_string_value(v);
	size_t n = text ? strlen(text) : 0;
	if (n == 0 || n % 4)
		return false;
	unsigned char *bytes = malloc(n / 4 * 3);
	int got = bytes ? EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)n) : -1;
	d->spec = bytes;
	if (got < 0)
		return false;
	d->m.spec = bytes;
	d->m.n_spec = (size_t)got - (text[n - 1] == '=') - (text[n - 2] == '=');
	return true;
}

static bool file(const json_t *v, struct manifest *m)
{
	const char *name = json_string_value(json_object_get(v, "name")),
		   *hex = json_string_value(json_object_get(v, "sha256"));
	for (int i = 0; name && hex && i < CHECKPOINT_PARTS; i++) {
		struct checkpoint_file *f = &m->file[i];
		if (!strcmp(name, checkpoint_part_name((enum checkpoint_part)i)))
			return !f->bytes && whole(json_object_get(v, "bytes"), &f->bytes) && f->bytes > 0 &&
			       sha256_from_hex(hex, f->sha256);
	}
	return false;
}

static bool files(const json_t *v, struct manifest *m)
{
	const json_t *item;
	size_t i;
	if (!json_is_array(v))
		return false;
	json_array_foreach(v, i, item) if (!file(item, m)) return false;
	return m->file[CHECKPOINT_MODEL].bytes && !m->file[CHECKPOINT_CARRY].bytes == !m->inside_window &&
	       !m->file[CHECKPOINT_WINDOW].bytes == !m->inside_window;
}

/* The key that is missing or wrong; NULL: all are good. */
static const char *wrong_key(json_t *o, struct decoded *d)
{
	struct manifest *m = &d->m;
	const json_t *job = json_object_get(o, "job"), *carry = json_object_get(o, "carry");
	uint64_t created = 0;
#define NEED(reader, of, key, out)                                                                                     \
	do {                                                                                                           \
		if (!reader(json_object_get((of), (key)), out))                                                        \
			return (key);                                                                                  \
	} while (0)
	NEED(whole, o, "id", &m->id);
	NEED(whole, job, "id", &m->job);
	NEED(uuid, job, "uuid", m->uuid);
	NEED(string, job, "name", &m->name);
	NEED(whole32, job, "uid", &m->uid);
	NEED(whole, o, "created_unix_nanos", &created);
	NEED(whole, o, "window", &m->window);
	NEED(whole, o, "applied_step", &m->applied_step);
	NEED(whole32, o, "ranks", &m->ranks);
	NEED(whole32, o, "micro_size", &m->micro_size);
	NEED(string, o, "optimizer", &m->optimizer);
	NEED(string, o, "accumulate_dtype", &m->accumulate_dtype);
	NEED(real, o, "loss_scale", &m->loss_scale);
	NEED(whole, o, "params_digest", &m->params_digest);
	NEED(whole, carry, "count", &m->count);
	NEED(real, carry, "sum_weight", &m->sum_weight);
	NEED(real, carry, "sum_loss", &m->sum_loss);
	NEED(whole32, carry, "last_rank", &m->last_rank);
	if (json_object_get(carry, "lr")) { /* older ones have none */
		NEED(real, carry, "lr", &m->lr);
		NEED(whole32, carry, "lr_rank", &m->lr_rank);
	}
	NEED(last, o, "last", m);
	NEED(updates, o, "updates", m);
	NEED(spec, o, "spec", d);
	m->inside_window = json_is_true(json_object_get(o, "inside_window"));
	m->created_unix_ns = (int64_t)created;
	NEED(files, o, "files", m);
#undef NEED
	return NULL;
}

static enum status judge(const char *path, struct decoded *d, char *why, size_t n_why)
{
	const char *format = json_string_value(json_object_get(d->root, "format"));
	uint64_t version = 0;
	if (!format || strcmp(format, FORMAT) || !whole(json_object_get(d->root, "version"), &version)) {
		snprintf(why, n_why, "%s: not the manifest of a gacc checkpoint", path);
		return ST_MALFORMED;
	}
	if (version < 1 || version > MANIFEST_VERSION) {
		snprintf(why, n_why, "%s: version %" PRIu64 ", this gaccd knows 1 to %d", path, version,
			 MANIFEST_VERSION);
		return ST_VERSION_SKEW;
	}
	const char *key = wrong_key(d->root, d);
	if (key)
		snprintf(why, n_why, "%s: \"%s\" is missing or wrong", path, key);
	return key ? ST_MALFORMED : ST_OK;
}

enum status manifest_decode(const char *path, const char *text, size_t n, struct manifest **out, char *why,
			    size_t n_why)
{
	json_error_t error;
	struct decoded *d = calloc(1, sizeof(*d));
	if (!d)
		return ST_NO_MEMORY;
	d->root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
	enum status st = ST_MALFORMED;
	if (d->root)
		st = judge(path, d, why, n_why);
	else
		snprintf(why, n_why, "%s:%d:%d: %s", path, error.line, error.column, error.text);
	if (st)
		manifest_free(&d->m);
	else
		*out = &d->m;
	return st;
}

void manifest_free(struct manifest *m)
{
	struct decoded *d = (struct decoded *)m;
	if (!d)
		return;
	json_decref(d->root);
	free(d->spec);
	free(d);
}
