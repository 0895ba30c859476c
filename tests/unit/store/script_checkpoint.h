/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of one job in one directory; what a file of one holds tells which it is. */
#ifndef GACC_TESTS_SCRIPT_CHECKPOINT_H
#define GACC_TESTS_SCRIPT_CHECKPOINT_H

#include "store/checkpoint.h"

#define SCRIPT_MAX_ID 20

/* Makes `dir`, too. The files are given to uid. */
enum status script_make(const char *dir, uint64_t id, uint32_t uid);
enum status script_drop(const char *dir, uint64_t id);
enum status script_load(const char *dir, uint64_t id);
enum status script_sweep(const char *dir);

/* Whether it is there; one that is there and not as it was written ends the program. */
bool script_is_there(const char *dir, uint64_t id);
/* Its directory is there, with or without it. */
bool script_has_files(const char *dir, uint64_t id);
/* Nothing is left of writers. */
void script_check_swept(const char *dir);

#endif
