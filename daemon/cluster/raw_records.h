/* SPDX-License-Identifier: Apache-2.0 */
/* The journal's records as gaccds wrote them before they were messages: memory images of structs, which begin with a
 * version. Here are those structs as they were on x86-64, for readers alone; nobody writes them.
 *
 * true: the bytes have that form. Whether the numbers make sense is the caller's to judge. Any thread; no state.
 */
#ifndef GACC_CLUSTER_RAW_RECORDS_H
#define GACC_CLUSTER_RAW_RECORDS_H

#include "cluster/exits_record.h"
#include "cluster/job_records.h"
#include "cluster/view_record.h"

/* Whether the first word is the version of such a record. */
bool raw_record_is(const void *bytes, size_t n);

/* COMMIT: versions 2, without params_before, and 3. *words lie in the record, need not be aligned, and are n_words. */
bool raw_commit_read(const void *bytes, size_t n, struct commit *, const void **words, uint32_t *n_words);
/* UPDATE: version 1. */
bool raw_update_read(const void *bytes, size_t n, struct update *);
/* RESTORED: versions 1, without updates, and 2; both also with a commit without params_before. */
bool raw_restored_read(const void *bytes, size_t n, struct restored *);
/* VIEW: version 1. At *job begins a packed gacc.v1.Job. */
bool raw_view_read(const void *bytes, size_t n, struct view_head *, size_t *job);
/* EXITS: version 1. As exits_record_read, but for the numbers' ranges. */
enum status raw_exits_read(const void *bytes, size_t n, uint32_t ranks, struct exits *, char *why, size_t n_why);

#endif
