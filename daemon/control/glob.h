/* SPDX-License-Identifier: Apache-2.0 */
/* Shell patterns for names of tensors, as fnmatch(3) without flags in the C locale: * ? [..] and \ before a character.
 * A [ without its ] stands for itself; [.x.] and [=x=] are not known.
 *
 * fnmatch tries all ways to divide a name among the *s of a pattern, which takes hours with a few dozen of them. This
 * one only ever goes back to the last *: what an earlier * could take more, the last one can take as well.
 */
#ifndef GACC_CONTROL_GLOB_H
#define GACC_CONTROL_GLOB_H

#include <stdbool.h>
#include <stdint.h>

struct glob; /* a pattern, ready to be matched */

/* NULL: no memory. Any thread; takes strlen(pattern)^2 steps at most, so bound the pattern. */
struct glob *glob_new(const char *pattern);
void glob_free(struct glob *); /* takes NULL */
/* Does the pattern match all of `text`? Adds the steps that it took to *steps: at most (strlen(pattern) + 1) *
 * (strlen(text) + 1), of a few instructions each. Any thread. */
bool glob_match(const struct glob *, const char *text, uint64_t *steps);

#endif
