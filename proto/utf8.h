/* Text of others, which need not be text. */
#ifndef GACC_PROTO_UTF8_H
#define GACC_PROTO_UTF8_H

#include <stddef.h>

/* Length of the UTF-8 sequence at `at`, which is not at the end; 0: there is none, or it is a NUL. */
size_t utf8_length(const void *at, const void *end);
/* Makes a text UTF-8, a '?' for each byte that is none: what was cut to fit may end within a character, and clients refuse the whole
 * message for it. */
void utf8_repair(char *text);

#endif
