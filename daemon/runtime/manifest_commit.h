/* SPDX-License-Identifier: Apache-2.0 */
/* A window's outcome in a manifest: every field that a restored job builds on, by name. Any thread. */
#ifndef GACC_RUNTIME_MANIFEST_COMMIT_H
#define GACC_RUNTIME_MANIFEST_COMMIT_H

#include "control/messages.h"
#include "store/manifest.h"

void manifest_put_commit(struct manifest *, const struct commit *);
/* Fields that the manifest lacks are zero (it was written by an older gaccd), unknown ones are passed over. false:
 * there is no outcome in it, or one that makes no sense. */
bool manifest_take_commit(const struct manifest *, struct commit *out);

#endif
