/* SPDX-License-Identifier: Apache-2.0 */
/* Puts text and statuses into messages, and takes them out again. For report_message.c and order_message.c.
 * Any thread; no state. */
#include "cluster/message_text.h"

#include "proto/utf8.h"

#include <string.h>

void message_take_text(char *to, size_t n, const char *from)
{
	const char *end = from + strlen(from);
	size_t at = 0, more;
	while (from + at < end && (more = utf8_length(from + at, end)) && at + more < n)
		at += more;
	memcpy(to, from, at);
	to[at] = '\0';
}

char *message_put_text(const char *text, char *room)
{
	const char *end = text + strlen(text), *at = text;
	size_t n = 1;
	while (at < end && (n = utf8_length(at, end)))
		at += n;
	if (at == end)
		return (char *)text; /* not written to */
	utf8_repair(strcpy(room, text));
	return room;
}

char *message_put_status(enum status st)
{
	return (char *)(st ? status_info(st)->name : "");
}

enum status message_take_status(const char *name)
{
	int st = *name ? status_by_name(name) : ST_OK;
	return st < 0 ? ST_INTERNAL : (enum status)st;
}
