/* SPDX-License-Identifier: Apache-2.0 */
/* Why a push is refused, for people: by the verdict of accum.h. Pure; any thread. */
#ifndef GACC_ENGINE_REFUSAL_H
#define GACC_ENGINE_REFUSAL_H

#include "engine/accum.h"

#define REFUSAL_BYTES sizeof(((struct engine_answer *)0)->text)

/* The sentence that a trainer reads about a push that is refused. Returns the hint beside it; NULL: the status's own.
 */
const char *refusal_describe(const struct window_state *, const struct push *, const struct verdict *, char *text,
			     size_t n);
/* The same of a push that was queued and is refused now, with this status. */
const char *refusal_describe_queued(const struct window_state *, const struct accum_entry *, enum status, char *text,
				    size_t n);

#endif
