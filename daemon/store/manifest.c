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

static json_t *of_files(const struct manifest *m)
{
	json_t *list = json_array();
	const struct checkpoint_file *f;
	char name[CHECKPOINT_FILE_NAME], hex[SHA256_HEX];
	int failures = 0;
	for (uint32_t i = 0; list && (f = manifest_file(m, i, name)); i++) {
		if (!f->bytes)
			continue;
		sha256_to_hex(f->sha256, hex);
		failures |= json_array_append_new(
			list, json_pack("{s:s, s:o, s:s}", "name", name, "bytes", of_whole(f->bytes), "sha256", hex));
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

static json_t *of_carry(const struct manifest_carry *c)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "count", of_whole(c->count), "sum_weight",
			 of_real(c->sum_weight), "sum_loss", of_real(c->sum_loss), "last_rank", of_whole(c->last_rank),
			 "lr", of_real(c->lr), "lr_rank", of_whole(c->lr_rank));
}

/* What each of several parts has of the open window, in how many shares the optimizer state is, and how many trainers
 * have a state of their own: nothing of a job that has none of it. */
static int put_parts(json_t *root, const struct manifest *m)
{
	json_t *list = m->n_parts ? json_array() : NULL;
	int failures = 0;
	for (uint32_t i = 0; list && i < m->n_parts; i++)
		failures |= json_array_append_new(list, of_carry(&m->part[i].carry));
	failures = m->n_parts ? json_object_set_new(root, "parts", whole_or_none(list, failures)) : 0;
	if (m->n_shares)
		failures |= json_object_set_new(root, "shares", of_whole(m->n_shares));
	return m->n_states ? failures | json_object_set_new(root, "states", of_whole(m->n_states)) : failures;
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
		"format", FORMAT, "version",
		m->n_states    ? 5
		: m->n_shares  ? 4
		: m->n_parts   ? 3
		: m->n_updates ? 2
			       : 1,
		"gacc", GACC_VERSION, "id", of_whole(m->id), "job", job, "created_unix_nanos",
		of_whole((uint64_t)m->created_unix_ns), "window", of_whole(m->window), "applied_step",
		of_whole(m->applied_step), "inside_window", (int)m->inside_window, "ranks", of_whole(m->ranks),
		"micro_size", of_whole(m->micro_size), "optimizer", m->optimizer, "accumulate_dtype",
		m->accumulate_dtype, "loss_scale", of_real(m->loss_scale), "params_digest", of_whole(m->params_digest),
		"carry", of_carry(&m->carry), "last", of_values(m->last, m->n_last), "updates", of_updates(m), "files",
		of_files(m), "spec", of_spec(m->spec, m->n_spec));
	if (!root)
		return !job && json_error_code(&error) == json_error_invalid_utf8 ? ST_INVALID_ARGUMENT : ST_NO_MEMORY;
	char *text = put_parts(root, m) ? NULL : dump(root, out_n);
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
	char is[CHECKPOINT_FILE_NAME];
	struct checkpoint_file *f;
	for (uint32_t i = 0; name && hex && (f = (struct checkpoint_file *)manifest_file(m, i, is)); i++)
		if (!strcmp(name, is))
			return !f->bytes && whole(json_object_get(v, "bytes"), &f->bytes) && f->bytes > 0 &&
			       sha256_from_hex(hex, f->sha256);
	return false;
}

/* Shares are by part, and a whole optimizer state is not. */
static bool has_state(const struct manifest *m)
{
	bool by_part = false;
	for (uint32_t i = 0; i < manifest_by_part(m); i++)
		by_part |= m->part[i].file[CHECKPOINT_OPTIMIZER].bytes > 0;
	return m->n_shares ? !m->file[CHECKPOINT_OPTIMIZER].bytes : !by_part;
}

/* A sum and who is in it come together; where the parts have them, some part has. */
static bool has_window(const struct manifest *m)
{
	const struct checkpoint_file *f = m->file;
	bool sum = f[CHECKPOINT_CARRY].bytes, who = f[CHECKPOINT_WINDOW].bytes, good = true, any = false;
	for (uint32_t i = 0; i < manifest_by_part(m); i++) {
		f = m->part[i].file;
		good &= !f[CHECKPOINT_CARRY].bytes == !f[CHECKPOINT_WINDOW].bytes;
		any |= f[CHECKPOINT_CARRY].bytes > 0;
	}
	if (m->n_parts)
		return good && any && m->inside_window && !sum && !who;
	if (m->n_shares && (any || m->inside_window)) /* it has parts, and they have none of it */
		return false;
	return sum == m->inside_window && who == m->inside_window;
}

static bool files(const json_t *v, struct manifest *m)
{
	const json_t *item;
	size_t i;
	if (!json_is_array(v))
		return false;
	json_array_foreach(v, i, item) if (!file(item, m)) return false;
	return m->file[CHECKPOINT_MODEL].bytes && has_state(m) && has_window(m) && !m->states.bytes == !m->n_states;
}

/* Each of these says which key is missing or wrong; NULL: all are good. */
#define NEED(reader, of, key, out)                                                                                     \
	do {                                                                                                           \
		if (!reader(json_object_get((of), (key)), out))                                                        \
			return (key);                                                                                  \
	} while (0)

static const char *wrong_carry(const json_t *o, struct manifest_carry *c)
{
	NEED(whole, o, "count", &c->count);
	NEED(real, o, "sum_weight", &c->sum_weight);
	NEED(real, o, "sum_loss", &c->sum_loss);
	NEED(whole32, o, "last_rank", &c->last_rank);
	if (json_object_get(o, "lr")) { /* older ones have none */
		NEED(real, o, "lr", &c->lr);
		NEED(whole32, o, "lr_rank", &c->lr_rank);
	}
	return NULL;
}

/* Only with an open window of several parts. */
static bool parts(const json_t *v, struct manifest *m)
{
	const json_t *item;
	size_t i;
	if (!v)
		return true;
	if (!json_is_array(v) || json_array_size(v) < 2 || json_array_size(v) > MANIFEST_MAX_PARTS)
		return false;
	json_array_foreach(v, i, item) if (wrong_carry(item, &m->part[i].carry)) return false;
	m->n_parts = (uint32_t)json_array_size(v);
	return true;
}

/* Only of a sharded job, whose parts they are. */
static bool shares(const json_t *v, struct manifest *m)
{
	if (!v)
		return true;
	return whole32(v, &m->n_shares) && m->n_shares >= 2 && m->n_shares <= MANIFEST_MAX_PARTS &&
	       (!m->n_parts || m->n_parts == m->n_shares);
}

/* Only where trainers have given any; `ranks` has been read. */
static bool states(const json_t *v, struct manifest *m)
{
	return !v || (whole32(v, &m->n_states) && m->n_states && m->n_states <= m->ranks);
}

static const char *wrong_key(json_t *o, struct decoded *d)
{
	struct manifest *m = &d->m;
	const json_t *job = json_object_get(o, "job");
	const char *key;
	uint64_t created = 0;
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
	if ((key = wrong_carry(json_object_get(o, "carry"), &m->carry)))
		return key;
	NEED(parts, o, "parts", m);
	NEED(shares, o, "shares", m);
	NEED(states, o, "states", m);
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
