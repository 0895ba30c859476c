/* SPDX-License-Identifier: Apache-2.0 */
/* Which rule of a specification holds for which tensor.
 *
 * Users choose the rules and the names, so this is bounded: rules times tensors (SPEC_MAX_MATCHES), and steps of the
 * matcher (SPEC_MAX_MATCH_STEPS), which come to less than two seconds. That is too long for the event loop: it is done
 * in the pool, and the result is kept with the job's tensor set.
 */
#ifndef GACC_CONTROL_SPEC_MATCH_H
#define GACC_CONTROL_SPEC_MATCH_H

#include "control/spec.h"

#define SPEC_MAX_MATCHES (UINT64_C(1) << 26)	 /* param_groups and init rules, times tensors */
#define SPEC_MAX_MATCH_STEPS (UINT64_C(1) << 29) /* of glob_match, all pairs together */

struct spec_match {
	uint64_t n;	 /* tensors */
	uint16_t *group; /* of each tensor: index into spec->group + 1; 0: none. NULL: the spec has no groups */
	uint16_t *init;	 /* likewise into spec->init */
};

/* Matches all; any thread. ST_INVALID_SPEC with why (also when a tensor with storage of its own has no init rule
 * although the spec has some), ST_NO_MEMORY. */
enum status spec_match(const struct job_spec *, const struct tensor_spec *, uint64_t n, struct spec_match *out,
		       char *why, size_t n_why);
/* Rules of the spec that hold for no tensor, as a sentence: a mistyped pattern, or one behind a wider one; "": each
 * holds for some. */
void spec_match_unused(const struct spec_match *, const struct job_spec *, char *text, size_t n_text);
void spec_match_fini(struct spec_match *);

/* Index into spec->group, or -1. */
static inline int spec_match_group(const struct spec_match *m, uint64_t tensor)
{
	return m->group ? (int)m->group[tensor] - 1 : -1;
}
/* NULL: none. */
static inline const struct init_rule *spec_match_init(const struct spec_match *m, const struct job_spec *s,
						      uint64_t tensor)
{
	return m->init && m->init[tensor] ? &s->init[m->init[tensor] - 1].rule : NULL;
}

#endif
