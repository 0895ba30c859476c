/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks have started and left behind: processes that left the rank's group and session, and then lost their
 * parent.
 *
 * The launcher becomes their parent, because it is a child subreaper (prctl(2)). So it finds all of them while it
 * lives.
 */
#ifndef GACC_LAUNCH_ORPHANS_H
#define GACC_LAUNCH_ORPHANS_H

#include <stdbool.h>

/* Orphans below this process become its children from now on. false: errno. */
bool orphans_adopt(void);
/* Kills and reaps all children of this process, then those that have become its children by that, until none is left;
 * for some seconds at most. Blocks. false: some live on, as they cannot be killed or multiply faster than that. */
bool orphans_end(void);

#endif
