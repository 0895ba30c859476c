/* SPDX-License-Identifier: Apache-2.0 */
/* Prints JSON text as YAML, for `gaccctl describe` and `config show`. Pure except for the output stream; gaccctl's
 * main thread. */
#include "yaml.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h> /* NOLINT(readability-duplicate-include): libyaml's */

static bool emit_value(yaml_emitter_t *e, json_t *v);

static bool emit_scalar(yaml_emitter_t *e, const char *text, bool quoted)
{
	yaml_event_t event;

	return yaml_scalar_event_initialize(&event, NULL, NULL, (const yaml_char_t *)text, (int)strlen(text), !quoted,
					    quoted,
					    quoted ? YAML_DOUBLE_QUOTED_SCALAR_STYLE : YAML_PLAIN_SCALAR_STYLE) &&
	       yaml_emitter_emit(e, &event);
}

/* Words that readers of YAML would take for something else than a string. */
static bool is_plain(const char *s)
{
	static const char *const words[] = { "true", "false", "null", "yes", "no", "on", "off", "y", "n", NULL };

	for (size_t i = 0; words[i]; i++)
		if (!strcasecmp(s, words[i]))
			return false;
	if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || *s == '_' || *s == '/'))
		return false;
	for (; *s; s++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./ ", *s))
			return false;
	return s[-1] != ' ';
}

/* Numbers, true, false and null are written in YAML as in JSON. */
static bool emit_plain(yaml_emitter_t *e, json_t *v)
{
	char *text = json_dumps(v, JSON_ENCODE_ANY);
	bool ok = text && emit_scalar(e, text, false);

	free(text);
	return ok;
}

static bool emit_array(yaml_emitter_t *e, json_t *v)
{
	yaml_event_t event;
	bool ok = yaml_sequence_start_event_initialize(&event, NULL, NULL, 1, YAML_BLOCK_SEQUENCE_STYLE) &&
		  yaml_emitter_emit(e, &event);

	for (size_t i = 0; i < json_array_size(v) && ok; i++)
		ok = emit_value(e, json_array_get(v, i));
	return ok && yaml_sequence_end_event_initialize(&event) && yaml_emitter_emit(e, &event);
}

static bool emit_object(yaml_emitter_t *e, json_t *v)
{
	yaml_event_t event;
	const char *key;
	json_t *item;
	bool ok = yaml_mapping_start_event_initialize(&event, NULL, NULL, 1, YAML_BLOCK_MAPPING_STYLE) &&
		  yaml_emitter_emit(e, &event);

	json_object_foreach(v, key, item) ok = ok && emit_scalar(e, key, !is_plain(key)) && emit_value(e, item);
	return ok && yaml_mapping_end_event_initialize(&event) && yaml_emitter_emit(e, &event);
}

static bool emit_value(yaml_emitter_t *e, json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_OBJECT:
		return emit_object(e, v);
	case JSON_ARRAY:
		return emit_array(e, v);
	case JSON_STRING:
		return emit_scalar(e, json_string_value(v), !is_plain(json_string_value(v)));
	default:
		return emit_plain(e, v);
	}
}

static bool emit_document(yaml_emitter_t *e, json_t *v)
{
	yaml_event_t event;

	return yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING) && yaml_emitter_emit(e, &event) &&
	       yaml_document_start_event_initialize(&event, NULL, NULL, NULL, 1) && yaml_emitter_emit(e, &event) &&
	       emit_value(e, v) && yaml_document_end_event_initialize(&event, 1) && yaml_emitter_emit(e, &event) &&
	       yaml_stream_end_event_initialize(&event) && yaml_emitter_emit(e, &event) && yaml_emitter_flush(e);
}

bool yaml_of_json(const char *json, FILE *out)
{
	json_t *v = json_loads(json, JSON_DECODE_ANY, NULL);
	yaml_emitter_t emitter;
	bool ok;

	if (!v || !yaml_emitter_initialize(&emitter)) {
		json_decref(v);
		return false;
	}
	yaml_emitter_set_output_file(&emitter, out);
	yaml_emitter_set_unicode(&emitter, 1);
	yaml_emitter_set_width(&emitter, -1);
	ok = emit_document(&emitter, v);
	yaml_emitter_delete(&emitter);
	json_decref(v);
	return ok;
}
