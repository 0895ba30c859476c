/* SPDX-License-Identifier: Apache-2.0 */
/* `gaccd --check-upgrade`: what becomes of this node's jobs if this build takes over (control/upgrade.h). Each gaccd
 * notes in state_dir/build what it is, so the check needs no running gaccd and disturbs none. For the daemon and
 * main.c.
 */
#ifndef GACC_EDGE_UPGRADE_CHECK_H
#define GACC_EDGE_UPGRADE_CHECK_H

#include "host/conf.h"

/* This build, for the next one. A failure is logged, and leaves no file. At the start. */
void upgrade_check_note(const struct conf *);
/* Prints it; the process's exit code: 0, 1 (not known), or one of the following. */
int upgrade_check(const struct conf *);
#define UPGRADE_EXIT_WAITS 3
#define UPGRADE_EXIT_LOSES 4

#endif
