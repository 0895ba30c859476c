/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of lost and altered journals share: lives that end without a word, and copies of a journal's files. Around
 * journal_rig.h. */
#ifndef GACC_TEST_LOST_RIG_H
#define GACC_TEST_LOST_RIG_H

#include "journal_rig.h"

#include <sys/types.h>

/* A journal's files, and what follows its path in their names. */
enum { MAIN, WAL, SHM, ANCHOR, LOST_PARTS };
extern const char *const lost_part[LOST_PARTS];
#define WINDOWS 9

/* Path of a file, with `also` behind it; until the next call. */
const char *lost_path(int part, const char *also);

/* Copies of all files, in memory. */
struct lost_image {
	char *data[LOST_PARTS];
	ssize_t n[LOST_PARTS]; /* -1: not there */
};

void lost_take(struct lost_image *);
void lost_put(const struct lost_image *, int part);
void lost_put_all(const struct lost_image *);
void lost_free(struct lost_image *);

/* A process writes jobs 1 to 3, of which 2 is over and 1 gets these windows, and dies without a word; `moved`: the log
 * is in the file then. kept: the descriptor of what is kept outside the files; -1: none. */
void lost_live_and_die(int kept, bool moved, uint64_t windows_from, uint64_t windows_to);
/* Opens the journal and closes it. *whole: all that was written is in it, up to WINDOWS. */
enum status lost_open_again(int kept, bool *whole);
/* As a step of the schema leaves it: with a column more, and not sealed since. */
void lost_add_a_column(void);

#endif
