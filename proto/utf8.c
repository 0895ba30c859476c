#include "proto/utf8.h"

#include <stdint.h>
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
