/* SPDX-License-Identifier: Apache-2.0 */
/* Which ended jobs are deleted when there are more than are kept. Pure; any thread. */
#ifndef GACC_CONTROL_FORGET_H
#define GACC_CONTROL_FORGET_H

#include <stddef.h>
#include <stdint.h>

/* uid: the owners of all ended jobs, oldest first; n > 0; scratch: n elements. Returns the index of the oldest job of
 * the user who has most of them (of two with as many, of the one whose oldest is older): so nobody's jobs push out
 * those of one who has fewer. out_lead: so many of this user's oldest jobs, that one included, may go before it is
 * another's turn; at least 1. */
size_t forget_choose(const uint32_t *uid, size_t n, uint32_t *scratch, size_t *out_lead);

#endif
