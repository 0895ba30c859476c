/* SPDX-License-Identifier: Apache-2.0 */
/* Recovers the specification of a job from a checkpoint's manifest (gacc_spec_of_manifest; docs/protocol.md,
 * "Checkpoint"), to start a new job with it. Any thread; reads one file. */
#include "gacc/gacc_admin.h"
#include "gacc/v1/common.pb-c.h"
#include "lib/spec.h"
#include "proto/bytes.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int sextet(char c)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *at = c ? strchr(digits, c) : NULL;

	return at ? (int)(at - digits) : -1;
}

/* RFC 4648, section 4, without line breaks. NULL: it is none, or there is no memory. */
static unsigned char *base64(const char *text, size_t *out_n)
{
	size_t n = strlen(text), pad = n && text[n - 1] == '=' ? 1 + (n > 1 && text[n - 2] == '=') : 0, at = 0;
	unsigned char *bytes = n % 4 || n == 0 ? NULL : malloc(n / 4 * 3);
	unsigned bits = 0;

	for (size_t i = 0; bytes && i < n; i++) {
		int v = i < n - pad ? sextet(text[i]) : 0;

		if (v < 0) {
			free(bytes);
			return NULL;
		}
		bits = bits << 6 | (unsigned)v;
		if (i % 4 == 3)
			for (int shift = 16; shift >= 0; shift -= 8)
				bytes[at++] = (unsigned char)(bits >> shift);
	}
	*out_n = at - pad;
	return bytes;
}

/* As a job file. The tensors stay in the checkpoint, from which the job gets them. */
static char *job_file(const char *packed)
{
	ProtobufCMessage *message = NULL;
	size_t n = 0;
	unsigned char *bytes = packed ? base64(packed, &n) : NULL;
	char *text = NULL;

	if (bytes && !bytes_decode(&gacc__v1__job_spec__descriptor, bytes, n, &message)) {
		Gacc__V1__JobSpec *spec = (Gacc__V1__JobSpec *)message;
		size_t n_tensors = spec->n_tensors;

		spec->n_tensors = 0;
		text = spec_text(spec);
		spec->n_tensors = n_tensors;
		bytes_free(message);
	}
	free(bytes);
	return text;
}

gacc_status gacc_spec_of_manifest(const char *text, const char *name, gacc_spec **out, char *why, size_t n)
{
	json_error_t error;
	json_t *manifest = json_loads(text, JSON_REJECT_DUPLICATES, &error);
	const char *format = json_string_value(json_object_get(manifest, "format"));
	char *file = NULL;
	gacc_status st = GACC_EINVAL;

	if (!manifest)
		snprintf(why, n, "%s:%d:%d: %s", name, error.line, error.column, error.text);
	else if (!format || strcmp(format, "gacc checkpoint") != 0)
		snprintf(why, n, "%s: not the manifest of a gacc checkpoint", name);
	else if (!(file = job_file(json_string_value(json_object_get(manifest, "spec")))))
		snprintf(why, n, "%s: \"spec\" is missing or wrong", name);
	else
		st = gacc_spec_parse(file, name, out, why, n);
	free(file);
	json_decref(manifest);
	return st;
}
