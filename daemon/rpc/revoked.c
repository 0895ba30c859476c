/* SPDX-License-Identifier: Apache-2.0 */
/* The list of revoked certificates, and the serial number of a certificate in PEM. For peer.c and credentials.c; any
 * thread. */
#include "rpc/revoked.h"

#include "base/log.h"
#include "base/regular.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HEAD_BYTES 96 /* of a certificate; its serial number is among them */

struct list {
	size_t n;
	char serial[][REVOKED_SERIAL_MAX + 1];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct list *list; /* NULL: none */

/* ---- certificates ---- */

static int base64_value(char c)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *at = c ? strchr(digits, c) : NULL;
	return at ? (int)(at - digits) : -1;
}

/* The first bytes of the first block. */
static size_t decode_head(const char *pem, size_t n, uint8_t out[HEAD_BYTES])
{
	static const char begin[] = "-----BEGIN CERTIFICATE-----";
	const char *at = memmem(pem, n, begin, sizeof(begin) - 1), *end = pem + n;
	uint32_t bits = 0;
	unsigned n_bits = 0;
	size_t len = 0;
	for (at = at ? at + sizeof(begin) - 1 : end; at < end && len < HEAD_BYTES; at++) {
		int value = base64_value(*at);
		if (value < 0 && !isspace((unsigned char)*at))
			break;
		if (value < 0)
			continue;
		bits = bits << 6 | (uint32_t)value;
		n_bits += 6;
		if (n_bits >= 8)
			out[len++] = (uint8_t)(bits >> (n_bits -= 8));
	}
	return len;
}

struct der {
	const uint8_t *at, *end;
};

/* Enters an element with this tag (DER); false: it is another. *out_len: its length. */
static bool enter(struct der *d, uint8_t tag, size_t *out_len)
{
	if (d->end - d->at < 2 || d->at[0] != tag)
		return false;
	size_t len = d->at[1], n_more = len & 0x80 ? len & 0x7f : 0;
	d->at += 2;
	if (n_more > 3 || (size_t)(d->end - d->at) < n_more)
		return false;
	len = n_more ? 0 : len;
	for (size_t i = 0; i < n_more; i++)
		len = len << 8 | *d->at++;
	*out_len = len;
	return true;
}

/* Certificate { TBSCertificate { [0] version, serialNumber, ... */
bool revoked_serial(const char *pem, size_t n, char out_serial[REVOKED_SERIAL_MAX + 1])
{
	uint8_t head[HEAD_BYTES];
	struct der d = { .at = head, .end = head + decode_head(pem, n, head) };
	size_t len;
	if (!enter(&d, 0x30, &len)) /* Certificate */
		return false;
	if (!enter(&d, 0x30, &len)) /* TBSCertificate */
		return false;
	if (enter(&d, 0xa0, &len)) {
		if ((size_t)(d.end - d.at) < len)
			return false;
		d.at += len;
	}
	if (!enter(&d, 0x02, &len) || len == 0 || (size_t)(d.end - d.at) < len)
		return false;
	for (; len > 1 && *d.at == 0; len--)
		d.at++;
	if (len > REVOKED_SERIAL_MAX / 2)
		return false;
	char hex[REVOKED_SERIAL_MAX + 1];
	for (size_t i = 0; i < len; i++)
		snprintf(hex + 2 * i, 3, "%02x", d.at[i]);
	strcpy(out_serial, hex[0] == '0' && hex[1] ? hex + 1 : hex);
	return true;
}

bool revoked_has(const char *serial)
{
	bool has = false;
	pthread_mutex_lock(&mutex);
	for (size_t i = 0; list && i < list->n && !has; i++)
		has = strcmp(list->serial[i], serial) == 0;
	pthread_mutex_unlock(&mutex);
	return has;
}

/* ---- the file ---- */

/* "" when the line has none; false: it is no number. */
static bool read_line(char *line, char out_serial[REVOKED_SERIAL_MAX + 1])
{
	size_t n = 0;
	line[strcspn(line, "#\r\n")] = 0;
	if (strncasecmp(line, "serial=", 7) == 0)
		line += 7;
	for (; *line; line++) {
		if (isspace((unsigned char)*line) || *line == ':')
			continue;
		if (n == 1 && out_serial[0] == '0')
			n = 0; /* zeros in front say nothing: some write "00:8A" */
		if (!isxdigit((unsigned char)*line) || n == REVOKED_SERIAL_MAX)
			return false;
		out_serial[n++] = (char)tolower((unsigned char)*line);
	}
	out_serial[n] = 0;
	return true;
}

static enum status read_lines(FILE *file, const char *path, struct list **out)
{
	char *line = NULL, serial[REVOKED_SERIAL_MAX + 1];
	size_t room = 0, number = 0;
	enum status st = ST_OK;
	while (!st && getline(&line, &room, file) >= 0) {
		number++;
		if (!read_line(line, serial)) {
			log_error("tls.revoked: %s:%zu: not a serial number in hex", path, number);
			st = ST_INVALID_CONFIG;
		} else if (serial[0]) {
			struct list *l = realloc(*out, sizeof(*l) + ((*out)->n + 1) * sizeof(l->serial[0]));
			if (l) {
				strcpy(l->serial[l->n++], serial);
				*out = l;
			}
			st = l ? ST_OK : ST_NO_MEMORY;
		}
	}
	if (!st && ferror(file)) {
		log_error("tls.revoked: cannot read %s: %s", path, strerror(errno));
		st = ST_IO_ERROR;
	}
	free(line);
	return st;
}

enum status revoked_load(const char *path)
{
	struct list *l = calloc(1, sizeof(*l));
	if (!l)
		return ST_NO_MEMORY;
	const char *why;
	FILE *file = regular_open(path, &why);
	enum status st = file ? read_lines(file, path, &l) : ST_IO_ERROR;
	if (!file)
		log_error("tls.revoked: cannot read %s: %s", path, why);
	else
		fclose(file);
	if (!st) {
		pthread_mutex_lock(&mutex);
		struct list *old = list;
		list = l;
		l = old;
		pthread_mutex_unlock(&mutex);
	}
	free(l);
	return st;
}
