/* SPDX-License-Identifier: Apache-2.0 */
/* Values that operators have set (control/updates.h) in a manifest: what holds in its window and is not the spec's, and
 * what is to come. Any thread.
 */
#ifndef GACC_RUNTIME_MANIFEST_UPDATES_H
#define GACC_RUNTIME_MANIFEST_UPDATES_H

#include "control/updates.h"
#include "store/manifest.h"

/* At most MANIFEST_MAX_UPDATES. */
void manifest_put_updates(struct manifest *, const struct update *, uint32_t n);
/* Returns how many. A value that this gaccd does not know: *unknown is its name, else NULL. */
uint32_t manifest_take_updates(const struct manifest *, struct update out[MANIFEST_MAX_UPDATES], const char **unknown);

#endif
