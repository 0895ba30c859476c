/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers what SQLite writes to a write-ahead log, and writes it in one piece before it is synced. For sql.c, on the
 * thread that calls it. */
#include "store/wal_file.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The default VFS's file follows this struct in the memory that SQLite gives us (szOsFile). */
struct wal_file {
	sqlite3_file base;
	unsigned char *bytes; /* [WAL_FILE_ROOM], of which n wait to be written at this place */
	int n;
	sqlite3_int64 at;
};

static sqlite3_vfs *under;

static struct wal_file *wal(sqlite3_file *f)
{
	return (struct wal_file *)f;
}

static sqlite3_file *real(sqlite3_file *f)
{
	return (sqlite3_file *)(wal(f) + 1);
}

/* ---- what waits ---- */

static int flush(sqlite3_file *f)
{
	struct wal_file *w = wal(f);
	int n = w->n;
	w->n = 0;
	return n ? real(f)->pMethods->xWrite(real(f), w->bytes, n, w->at) : SQLITE_OK;
}

static int on_write(sqlite3_file *f, const void *bytes, int n, sqlite3_int64 at)
{
	struct wal_file *w = wal(f);
	if (w->n && (at != w->at + w->n || n > WAL_FILE_ROOM - w->n)) {
		int rc = flush(f);
		if (rc)
			return rc;
	}
	if (n > WAL_FILE_ROOM)
		return real(f)->pMethods->xWrite(real(f), bytes, n, at);
	if (!w->n)
		w->at = at;
	memcpy(w->bytes + w->n, bytes, (size_t)n);
	w->n += n;
	return SQLITE_OK;
}

/* ---- what must find it written ---- */

static int on_close(sqlite3_file *f)
{
	int rc = flush(f), closed = real(f)->pMethods->xClose(real(f));
	free(wal(f)->bytes);
	return rc ? rc : closed;
}

static int on_read(sqlite3_file *f, void *bytes, int n, sqlite3_int64 at)
{
	int rc = flush(f);
	return rc ? rc : real(f)->pMethods->xRead(real(f), bytes, n, at);
}

static int on_truncate(sqlite3_file *f, sqlite3_int64 size)
{
	int rc = flush(f);
	return rc ? rc : real(f)->pMethods->xTruncate(real(f), size);
}

static int on_sync(sqlite3_file *f, int flags)
{
	int rc = flush(f);
	return rc ? rc : real(f)->pMethods->xSync(real(f), flags);
}

static int on_size(sqlite3_file *f, sqlite3_int64 *size)
{
	int rc = flush(f);
	return rc ? rc : real(f)->pMethods->xFileSize(real(f), size);
}

/* ---- the rest ---- */

static int on_lock(sqlite3_file *f, int level)
{
	return real(f)->pMethods->xLock(real(f), level);
}

static int on_unlock(sqlite3_file *f, int level)
{
	return real(f)->pMethods->xUnlock(real(f), level);
}

static int on_reserved(sqlite3_file *f, int *out)
{
	return real(f)->pMethods->xCheckReservedLock(real(f), out);
}

static int on_control(sqlite3_file *f, int op, void *arg)
{
	return real(f)->pMethods->xFileControl(real(f), op, arg);
}

static int on_sector(sqlite3_file *f)
{
	return real(f)->pMethods->xSectorSize(real(f));
}

static int on_characteristics(sqlite3_file *f)
{
	return real(f)->pMethods->xDeviceCharacteristics(real(f));
}

static const sqlite3_io_methods methods = {
	.iVersion = 1, /* a log has no shared memory of its own, and is not mapped */
	.xClose = on_close,
	.xRead = on_read,
	.xWrite = on_write,
	.xTruncate = on_truncate,
	.xSync = on_sync,
	.xFileSize = on_size,
	.xLock = on_lock,
	.xUnlock = on_unlock,
	.xCheckReservedLock = on_reserved,
	.xFileControl = on_control,
	.xSectorSize = on_sector,
	.xDeviceCharacteristics = on_characteristics,
};

static int on_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out)
{
	if (!(flags & SQLITE_OPEN_WAL))
		return under->xOpen(under, name, f, flags, out);
	*wal(f) = (struct wal_file){ .bytes = malloc(WAL_FILE_ROOM) };
	if (!wal(f)->bytes)
		return SQLITE_NOMEM;
	int rc = under->xOpen(under, name, real(f), flags, out);
	if (real(f)->pMethods)
		f->pMethods = &methods; /* SQLite closes it, also if rc is an error */
	else
		free(wal(f)->bytes);
	return rc;
}

const char *wal_file_vfs(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static sqlite3_vfs vfs;
	int rc = SQLITE_OK;
	pthread_mutex_lock(&lock);
	sqlite3_vfs *now = sqlite3_vfs_find(NULL);
	if (!now) {
		rc = SQLITE_NOMEM;
	} else if (now != under) {
		vfs = *now;
		vfs.zName = "gacc";
		vfs.pNext = NULL;
		vfs.xOpen = on_open;
		vfs.szOsFile = (int)sizeof(struct wal_file) + now->szOsFile;
		rc = sqlite3_vfs_register(&vfs, 0);
		under = rc ? under : now;
	}
	pthread_mutex_unlock(&lock);
	return rc ? NULL : "gacc";
}
