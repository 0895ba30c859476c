/* SPDX-License-Identifier: Apache-2.0 */
/* Paths that users write with the job's id and name in them: output.log_dir, checkpoint.dir. gaccd and clients expand
 * them alike. */
#ifndef GACC_PROTO_PATH_H
#define GACC_PROTO_PATH_H

#include <stdint.h>

#define UUID_TEXT 37

/* "d5e15a60-9e46-49e1-090b-f59ce3da2a4b" */
void uuid_text(const uint8_t uuid[16], char out[UUID_TEXT]);
/* `pattern` with %j as the id, %x as the name, %u as the uuid and %% as %; malloc'ed. NULL: no memory. In the name each
 * / and a first dot become _, so that it is an entry of the directory before it and no other place. Ids are of one
 * gaccd, uuids of all. */
char *path_expand(const char *pattern, uint64_t id, const char *name, const char *uuid);

#endif
