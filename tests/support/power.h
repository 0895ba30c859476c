/* SPDX-License-Identifier: Apache-2.0 */
/* Files that forget what was not synced when the power fails. power_record.c notes in a log (power_log.c) what a
 * process does to the files under one directory (its functions stand before libc's, for shared libraries, too: SQLite);
 * power_disk.c makes, from the first so many of these operations, a directory as a disk may hold it after a power cut,
 * and power_same.c tells which of these are the same.
 *
 * What a disk may hold (docs/decisions.md, "The disk after a power cut"):
 * - what was synced is there: fsync and fdatasync of a file keep its bytes and size, fsync also its owner and mode,
 * fsync of a directory the names in it. A file that was synced may still have no name.
 * - of what came later, anything: each 512-byte sector as any write has left it, the size as any operation has left it,
 * bytes that the disk has never written zeros or garbage, and any subset of the changes to a directory. A rename is
 * there or is not.
 *
 * One thread at a time records. All functions end the program with a message when they fail.
 */
#ifndef GACC_TESTS_POWER_H
#define GACC_TESTS_POWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POWER_SECTOR 512
#define POWER_NAME 80

enum power_kind {
	POWER_CREATE,	/* node, in directory dir with this name */
	POWER_WRITE,	/* node, n bytes at `at` */
	POWER_SIZE,	/* node, to `at` bytes */
	POWER_META,	/* node, owner and mode */
	POWER_SYNC,	/* node: fsync */
	POWER_DATASYNC, /* node: fdatasync */
	POWER_UNLINK,	/* name in dir, also of a directory */
	POWER_RENAME,	/* node, from name in dir to name2 in dir2 */
	POWER_NOTE	/* at: what the process says of itself */
};

struct power_op {
	enum power_kind kind;
	bool is_dir; /* CREATE */
	int node, dir, dir2;
	uint32_t mode, uid, gid; /* CREATE, META */
	uint64_t at, n;
	size_t data; /* of a WRITE, in the log's arena */
	char name[POWER_NAME], name2[POWER_NAME];
};

struct power_log;

struct power_log *power_new(void); /* in memory that child processes share */
/* Forgets all, and begins with what is in the directory, all of it synced. Node 0 is the directory. */
void power_begin(struct power_log *, const char *dir);
size_t power_ops(const struct power_log *, const struct power_op **out);
const unsigned char *power_data(const struct power_log *, const struct power_op *);

/* In the process under test: everything is noted from here on. It ends with status 0 behind the stop_at-th operation;
 * 0: never. */
void power_record(struct power_log *, uint64_t stop_at);
void power_note(uint64_t value);

enum power_image {
	POWER_NOTHING, /* nothing survives that was not synced */
	POWER_NAMES,   /* all names and owners, no bytes */
	POWER_DATA,    /* all bytes, no names */
	POWER_LATER,   /* all but the first change of each directory, all bytes, and every second file's owner */
	POWER_ALL,     /* as if only the process had died */
	POWER_RANDOM   /* drawn */
};
extern const char *const power_image_name[];

/* Makes in the empty directory `to` what may be left after the first `ops` operations. The same seed makes the same. */
void power_cut(const struct power_log *, size_t ops, enum power_image, uint64_t seed, const char *to);

/* Whether the image after the first `ops` operations need not be looked at: it is the one after `ops - 1`, or one of
 * the images before it in the enum is the same. Not for POWER_ALL and POWER_RANDOM. */
bool power_repeats(const struct power_log *, size_t ops, enum power_image);

/* splitmix64: the next number of a sequence. */
uint64_t power_draw(uint64_t *state);

#endif
