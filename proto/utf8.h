/* SPDX-License-Identifier: Apache-2.0 */
/* Text that comes from others and may not be UTF-8. Any thread; no state. */
#ifndef GACC_PROTO_UTF8_H
#define GACC_PROTO_UTF8_H

#include <stddef.h>

/* Length of the UTF-8 sequence at `at`, which is not at the end; 0: there is none, or it is a NUL. */
size_t utf8_length(const void *at, const void *end);
#define UTF8_ESCAPE_MAX 16
enum utf8_style {
	UTF8_TEXT, /* \x1b, \u202e, \U000e0001: for people, and inside double quotes of YAML */
	UTF8_JSON  /* \u001b, a surrogate pair beyond U+FFFF; what is no UTF-8 becomes U+FFFD */
};
/* The bytes of the character at `at`, which is not at the end, 1 if it is no UTF-8. `out`: "" if it may be shown as it
 * is; else what to write instead, because it would act on a terminal or a reader: control characters (C0, DEL, C1), and
 * format characters that reorder, break or hide text (bidi controls, line separators, tags). Joiners, which scripts
 * need, may be shown. */
size_t utf8_escape(const void *at, const void *end, enum utf8_style, char out[UTF8_ESCAPE_MAX]);
/* Makes a text UTF-8, a '?' for each byte that is none: what was cut to fit may end within a character, and clients
 * refuse the whole message for it. */
void utf8_repair(char *text);

#endif
