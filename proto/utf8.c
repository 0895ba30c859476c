/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Well-formed: Unicode table 3-7. */
size_t utf8_length(const void *at, const void *end)
{
	const uint8_t *p = at;
	size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
	if (n == 0 || p[0] == 0 || n > (size_t)((const uint8_t *)end - p))
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
	    (p[0] == 0xf4 && p[1] > 0x8f))
		return 0;
	return n;
}

static uint32_t code_point(const uint8_t *p, size_t n)
{
	uint32_t c = n == 1 ? p[0] : p[0] & (0x7fu >> n);
	for (size_t i = 1; i < n; i++)
		c = c << 6 | (p[i] & 0x3f);
	return c;
}

static bool acts(uint32_t c)
{
	static const struct {
		uint32_t first, last;
	} range[] = {
		{ 0, 0x1f },	    { 0x7f, 0x9f },	{ 0x61c, 0x61c },   { 0x180e, 0x180e }, { 0x200e, 0x200f },
		{ 0x2028, 0x202e }, { 0x2060, 0x206f }, { 0xfeff, 0xfeff }, { 0xfff9, 0xfffb }, { 0xe0000, 0xe007f },
	};
	for (size_t i = 0; i < sizeof(range) / sizeof(*range); i++)
		if (c >= range[i].first && c <= range[i].last)
			return true;
	return false;
}

size_t utf8_escape(const void *at, const void *end, enum utf8_style style, char out[UTF8_ESCAPE_MAX])
{
	size_t n = utf8_length(at, end);
	uint32_t c = n ? code_point(at, n) : *(const uint8_t *)at;
	out[0] = 0;
	if (n && !acts(c))
		return n;
	if (!n && style == UTF8_JSON)
		snprintf(out, UTF8_ESCAPE_MAX, "\\ufffd");
	else if (style == UTF8_TEXT && (!n || c < 0x80))
		snprintf(out, UTF8_ESCAPE_MAX, "\\x%02x", c);
	else if (c < 0x10000)
		snprintf(out, UTF8_ESCAPE_MAX, "\\u%04x", c);
	else if (style == UTF8_TEXT)
		snprintf(out, UTF8_ESCAPE_MAX, "\\U%08x", c);
	else
		snprintf(out, UTF8_ESCAPE_MAX, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + (c & 0x3ff));
	return n ? n : 1;
}

void utf8_repair(char *text)
{
	const char *end = text + strlen(text);
	while (text < end) {
		size_t n = utf8_length(text, end);
		if (!n)
			*text = '?';
		text += n ? n : 1;
	}
}
