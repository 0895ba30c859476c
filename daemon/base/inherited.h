/* SPDX-License-Identifier: Apache-2.0 */
/* What a process inherits from its parent besides arguments, environment and limits, and must not depend on:
 * signals that are ignored or blocked, and standard descriptors that are closed. */
#ifndef GACC_BASE_INHERITED_H
#define GACC_BASE_INHERITED_H

#include <stdbool.h>

/* To be called first of all, before anything opens a descriptor or starts a thread. Afterwards no signal is blocked,
 * the ends of children are told, a file that grows beyond RLIMIT_FSIZE is an error (EFBIG) instead of the end, and 0, 1
 * and 2 are open. false with errno: /dev/null cannot be opened. */
bool inherited_mend(void);

#endif
