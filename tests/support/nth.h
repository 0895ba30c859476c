/* SPDX-License-Identifier: Apache-2.0 */
/* The n-th call fails, once: nth_io.c interposes on system calls about files under one directory, nth_alloc.c on malloc
 * and its family. Linked into a test program, their functions stand before libc's, for shared libraries, too (SQLite).
 * Nothing fails unless armed; arming counts from 1 anew. One thread at a time.
 */
#ifndef GACC_TESTS_NTH_H
#define GACC_TESTS_NTH_H

#include <stdbool.h>

enum nth_kind { NTH_EIO, NTH_ENOSPC, NTH_SHORT /* writes alone: half of it is written */, NTH_ALLOC, NTH_KINDS };

/* n = 0: only counts. While armed, syncs of files there are not passed on. */
void nth_io_arm(const char *dir, enum nth_kind, unsigned n);
/* `own_only`: of the program itself and of libprotobuf-c, which unpacks messages for it; not of other libraries (gRPC
 * ends the process when there is no memory). */
void nth_alloc_arm(unsigned n, bool own_only);
/* Back to normal; how many calls there were. */
unsigned nth_io_disarm(void);
unsigned nth_alloc_disarm(void);
/* The file whose sync failed since arming; "": none. */
const char *nth_io_lost(void);

#endif
