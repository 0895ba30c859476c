/* SPDX-License-Identifier: Apache-2.0 */
/* A VFS for SQLite that gathers the writes to a write-ahead log. Private to the room.
 *
 * SQLite writes a commit in two pieces for each page (24 bytes and the page), one behind the other, and then syncs.
 * Each small write costs the file system about as much as all of them in one. Here they wait in memory, 64 KiB at most,
 * until the log is synced, read, measured, shortened or closed, or a write comes that does not follow the one before;
 * then they are one write. All other files are those of the VFS that is the default.
 *
 * Only for connections that sync each commit (synchronous = FULL): else a process that is killed would lose commits
 * that it had written. A write that fails is reported by the call that waits for it, with the write's own code; what
 * waited is then dropped, as SQLite undoes the transaction.
 */
#ifndef GACC_STORE_WAL_FILE_H
#define GACC_STORE_WAL_FILE_H

#define WAL_FILE_ROOM (64 << 10)

/* Registers it over the VFS that is the default at the time, and returns its name for sqlite3_open_v2. Any thread;
 * never blocks for long. NULL: SQLite cannot. */
const char *wal_file_vfs(void);

#endif
