/* SPDX-License-Identifier: Apache-2.0 */
#include "faulty_vfs.h"

#include <sqlite3.h>
#include <stdbool.h>
#include <stdlib.h>

static sqlite3_vfs *real_vfs;
static int calls, syncs, fail_at, fail_code;
static bool disk_full;

/* The real file follows this struct in the memory that SQLite gives us (szOsFile). */
struct faulty_file {
	sqlite3_file base;
};

static sqlite3_file *real(sqlite3_file *f)
{
	return (sqlite3_file *)((struct faulty_file *)f + 1);
}

static bool fault(void)
{
	return ++calls == fail_at;
}

static int f_close(sqlite3_file *f)
{
	return real(f)->pMethods->xClose(real(f));
}

static int f_read(sqlite3_file *f, void *buf, int n, sqlite3_int64 at)
{
	return real(f)->pMethods->xRead(real(f), buf, n, at);
}

static bool has_room(sqlite3_file *f, sqlite3_int64 end)
{
	sqlite3_int64 size = 0;
	return !disk_full || (real(f)->pMethods->xFileSize(real(f), &size) == SQLITE_OK && end <= size);
}

static int f_write(sqlite3_file *f, const void *buf, int n, sqlite3_int64 at)
{
	if (!has_room(f, at + n))
		return SQLITE_FULL;
	if (!fault())
		return real(f)->pMethods->xWrite(real(f), buf, n, at);
	real(f)->pMethods->xWrite(real(f), buf, n / 2, at); /* torn */
	return fail_code;
}

static int f_truncate(sqlite3_file *f, sqlite3_int64 size)
{
	return fault() ? fail_code : real(f)->pMethods->xTruncate(real(f), size);
}

static int f_sync(sqlite3_file *f, int flags)
{
	syncs++;
	return fault() ? fail_code : real(f)->pMethods->xSync(real(f), flags);
}

static int f_size(sqlite3_file *f, sqlite3_int64 *size)
{
	return real(f)->pMethods->xFileSize(real(f), size);
}

static int f_lock(sqlite3_file *f, int level)
{
	return real(f)->pMethods->xLock(real(f), level);
}

static int f_unlock(sqlite3_file *f, int level)
{
	return real(f)->pMethods->xUnlock(real(f), level);
}

static int f_reserved(sqlite3_file *f, int *out)
{
	return real(f)->pMethods->xCheckReservedLock(real(f), out);
}

static int f_control(sqlite3_file *f, int op, void *arg)
{
	if (op == SQLITE_FCNTL_SIZE_HINT && !has_room(f, *(sqlite3_int64 *)arg))
		return SQLITE_IOERR_WRITE;
	return real(f)->pMethods->xFileControl(real(f), op, arg);
}

static int f_sector(sqlite3_file *f)
{
	return real(f)->pMethods->xSectorSize(real(f));
}

static int f_characteristics(sqlite3_file *f)
{
	return real(f)->pMethods->xDeviceCharacteristics(real(f));
}

/* Version 1 has no shared memory, which EXCLUSIVE locking does not need. */
static const sqlite3_io_methods methods = {
	.iVersion = 1,
	.xClose = f_close,
	.xRead = f_read,
	.xWrite = f_write,
	.xTruncate = f_truncate,
	.xSync = f_sync,
	.xFileSize = f_size,
	.xLock = f_lock,
	.xUnlock = f_unlock,
	.xCheckReservedLock = f_reserved,
	.xFileControl = f_control,
	.xSectorSize = f_sector,
	.xDeviceCharacteristics = f_characteristics,
};

static int v_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out)
{
	int rc = real_vfs->xOpen(real_vfs, name, real(f), flags, out);
	f->pMethods = real(f)->pMethods ? &methods : NULL;
	return rc;
}

void faulty_vfs_install(void)
{
	static sqlite3_vfs vfs;
	if (real_vfs)
		return;
	real_vfs = sqlite3_vfs_find(NULL);
	vfs = *real_vfs;
	vfs.zName = "faulty";
	vfs.pNext = NULL;
	vfs.xOpen = v_open;
	vfs.szOsFile = (int)sizeof(struct faulty_file) + real_vfs->szOsFile;
	if (sqlite3_vfs_register(&vfs, 1))
		abort();
}

void faulty_vfs_fill(bool full)
{
	disk_full = full;
}

void faulty_vfs_arm(int n, int code)
{
	calls = syncs = 0;
	fail_at = n;
	fail_code = code;
}

int faulty_vfs_calls(void)
{
	return calls;
}

int faulty_vfs_syncs(void)
{
	return syncs;
}
