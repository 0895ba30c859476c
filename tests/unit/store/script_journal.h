/* SPDX-License-Identifier: Apache-2.0 */
/* A job's records, one operation after the other, and what a journal says as a text that can be compared. */
#ifndef GACC_TESTS_SCRIPT_JOURNAL_H
#define GACC_TESTS_SCRIPT_JOURNAL_H

#include "store/journal.h"

#define SCRIPT_WINDOWS 20 /* more than JOURNAL_KEEP_PAYLOADS */
#define SCRIPT_TERM 1	  /* the operation that takes the term */
#define SCRIPT_FIRST_WINDOW 6
#define SCRIPT_BATCH (SCRIPT_FIRST_WINDOW + SCRIPT_WINDOWS) /* all others write one record */
#define SCRIPT_BATCH_RECORDS 8
#define SCRIPT_OPERATIONS (SCRIPT_BATCH + 2)

/* Operation `at`; the term is taken once and kept. */
enum status script_operation(struct journal *, int at, uint64_t *term);

struct script_text {
	char s[16384];
	size_t n;
};

enum status script_describe(struct journal *, struct script_text *);

#endif
