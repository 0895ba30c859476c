/* SPDX-License-Identifier: Apache-2.0 */
/* The log files of ranks, as they grow: <dir>/worker_<rank>.log, given out in whole lines. Of a rank on another node
 * the log comes from there, by gaccd. */
#ifndef GACCCTL_FOLLOW_H
#define GACCCTL_FOLLOW_H

#include "gacc/gacc_admin.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define FOLLOW_ALL UINT64_MAX

struct follower {
	char path[4096];
	uint32_t rank;
	bool prefix;   /* "[rank3] " before each line */
	bool escaped;  /* control and format characters are shown, not sent to the terminal */
	uint64_t tail; /* start with the last so many lines */
	int fd;	       /* -1: not there yet */
	char *line;    /* what came after the last line break */
	size_t n, room;
	/* of a rank whose log is not found here; client NULL: it is nowhere else */
	gacc_client *client;
	char job[24];
	char *node;
	gacc_log_piece *last; /* NULL: nothing has been read */
	bool failed;	      /* the last attempt to read it there */
};

void follower_init(struct follower *f, const char *dir, uint32_t rank, bool prefix, uint64_t tail);
/* If there is no such file here, the log is that of a rank on this node (copied). */
void follower_on_node(struct follower *f, gacc_client *client, uint64_t job, const char *node);
/* Prints the lines that came since the last call; at_end: also an unfinished one. */
void follower_pump(struct follower *f, FILE *out, bool at_end);
/* There is, or was, such a file. */
bool follower_exists(struct follower *f);
void follower_fini(struct follower *f);

/* Is `rank` in a list such as "0,2"? "all" and "none" are lists too. */
bool rank_listed(const char *list, uint32_t rank);
/* Is the text a list, of ranks below `limit`? */
bool rank_list_ok(const char *list, uint32_t limit);

/* A descriptor for poll() that becomes readable when a file in `dir` grows; -1: none could be made. */
int follow_changes(const char *dir);
/* Makes it unreadable again. */
void follow_changes_seen(int fd);

#endif
