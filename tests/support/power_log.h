/* SPDX-License-Identifier: Apache-2.0 */
/* The log behind power.h: power_log.c begins it, power_record.c goes on with it. All functions end the program with a
 * message when they fail. */
#ifndef GACC_TESTS_POWER_LOG_H
#define GACC_TESTS_POWER_LOG_H

#include "support/power.h"

#include <sys/stat.h>

#define MAX_OPS 100000
#define MAX_NODES 4096
#define MAX_DATA ((size_t)512 << 20)

struct power_log {
	size_t n_ops, n_data;
	int n_nodes;
	struct {
		dev_t dev;
		ino_t ino;
	} node[MAX_NODES]; /* the newest of an inode counts: numbers are used again */
	struct power_op op[MAX_OPS];
	unsigned char data[MAX_DATA];
};

/* Notes an operation; data: the bytes of a WRITE, else NULL. */
void power_add(struct power_log *, const struct power_op *, const void *data);
/* A new file or directory: the CREATE, and a number for it, which it returns. */
int power_add_create(struct power_log *, int dir, const char *name, const struct stat *);
/* The number of the file; -1: it is not known. */
int power_node_of(const struct power_log *, const struct stat *);
void power_set_name(char to[POWER_NAME], const char *name);
_Noreturn void power_die(const char *what); /* says errno, too */

#endif
