/* SPDX-License-Identifier: Apache-2.0 */
/* Files with the token that callers without a certificate show (listen.token_file, cluster.token_file). */
#ifndef GACC_HOST_TOKEN_FILE_H
#define GACC_HOST_TOKEN_FILE_H

#include "proto/status.h"

#include <stddef.h>

#define TOKEN_MAX 512 /* bytes, with the end */

/* The first line of the file, 16 characters at least; others than its owner must not be able to read it. `key` is what
 * the log calls it. INVALID_CONFIG, which is logged. */
enum status token_file_read(const char *key, const char *path, char out[TOKEN_MAX]);

#endif
