/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the room: text and statuses in messages. Any thread; no state. */
#ifndef GACC_CLUSTER_MESSAGE_TEXT_H
#define GACC_CLUSTER_MESSAGE_TEXT_H

#include "proto/status.h"

#include <stddef.h>

/* Text into `to`, cut at a character when it is too long. */
void message_take_text(char *to, size_t n, const char *from);
/* Text for a message, which must be UTF-8: `text` itself, or a mended copy in `room`, which has space for it. */
char *message_put_text(const char *text, char *room);
/* A status' name; "" for ST_OK. Static storage, not to be written to. */
char *message_put_status(enum status);
/* "": ST_OK; a name that is not known: ST_INTERNAL. */
enum status message_take_status(const char *name);

#endif
