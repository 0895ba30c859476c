/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates that are no longer valid before their time, by serial number. One list for the process. Any thread. */
#ifndef GACC_RPC_REVOKED_H
#define GACC_RPC_REVOKED_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>

#define REVOKED_SERIAL_MAX 40 /* hex digits: RFC 5280 allows 20 bytes */

/* The serial number of a PEM certificate of n bytes, in lower case hex without leading zeros; false: it has none that
 * can be read. */
bool revoked_serial(const char *pem, size_t n, char out_serial[REVOKED_SERIAL_MAX + 1]);
/* Is it in the list? */
bool revoked_has(const char *serial);
/* Reads a new list: a serial number a line, as openssl x509 -serial prints it, with or without "serial=" and colons;
 * '#' begins a comment. IO_ERROR, INVALID_CONFIG (a line is no number), NO_MEMORY: logged, and the old list stays. */
enum status revoked_load(const char *path);

#endif
