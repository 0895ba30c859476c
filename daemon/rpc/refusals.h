/* SPDX-License-Identifier: Apache-2.0 */
/* Which refused certificates are told: each once in ten minutes, as who is refused dials each second. Strangers choose
 * what their certificates say, so the number of lines is limited; those that an authority has signed which is known
 * here, of which somebody has to mend something, have lines of their own. Pure; the caller has the lock. */
#ifndef GACC_RPC_REFUSALS_H
#define GACC_RPC_REFUSALS_H

#include "rpc/certificate.h"

#include <stdbool.h>
#include <time.h>

#define REFUSALS_STRANGERS 16
#define REFUSALS_KNOWN 64
#define REFUSALS_AGAIN_S 600

struct refusal {
	time_t at; /* 0: free */
	char why[RPC_CERTIFICATE_WHY];
};

/* All zero at first. */
struct refusals {
	struct refusal strangers[REFUSALS_STRANGERS], known[REFUSALS_KNOWN];
};

/* Whether this refusal is to be told now, and then *out_last: it is the last one for some time, so that the line should
 * say so. known: the certificate is of a known authority. now: seconds of a clock that does not go back. */
bool refusals_add(struct refusals *, const char *why, bool known, time_t now, bool *out_last);

#endif
