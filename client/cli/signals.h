/* SPDX-License-Identifier: Apache-2.0 */
/* SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGCHLD as a descriptor for poll(). */
#ifndef GACCCTL_SIGNALS_H
#define GACCCTL_SIGNALS_H

/* From now on they wait. Call it before other threads exist, which inherit it. */
void signals_block(void);
/* A signalfd for them; -1: none could be made. */
int signals_open(void);
/* The next one that waits; 0: none. */
int signals_next(int fd);

#endif
