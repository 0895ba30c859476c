/* SPDX-License-Identifier: Apache-2.0 */
/* Commits as the journal has them. Until the commits got params_before, the rest was the same. */
#include "runtime/commit_bytes.h"

#include <string.h>

size_t commit_bytes(bool older)
{
	return sizeof(struct commit) - (older ? COMMIT_LACKED : 0);
}

void commit_read(struct commit *to, const void *bytes, bool older)
{
	const size_t head = offsetof(struct commit, params_before), after = head + sizeof(to->params_before);
	_Static_assert(sizeof(to->params_before) == COMMIT_LACKED, "what the older form has less");
	*to = (struct commit){ 0 };
	memcpy(to, bytes, head);
	memcpy((char *)to + (older ? after : head), (const char *)bytes + head, commit_bytes(older) - head);
}
