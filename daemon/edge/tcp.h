/* SPDX-License-Identifier: Apache-2.0 */
/* gaccd's side of gRPC over TCP. Private to the edge; loop thread. */
#ifndef GACC_EDGE_TCP_H
#define GACC_EDGE_TCP_H

#include "edge/daemon.h"

#include <stdio.h>

/* Listens at listen.tcp, if it is set: with certificates, or with a token. INVALID_CONFIG, IO_ERROR, NO_MEMORY: logged.
 */
enum status tcp_listen(struct daemon *);
/* Reads tls.revoked, if it is set. IO_ERROR, INVALID_CONFIG, NO_MEMORY: logged, and the old list stays. */
enum status tcp_read_revoked(struct daemon *);
/* SIGHUP: the same again, with a line in the log that says what has been read. */
void tcp_reload(struct daemon *);

/* For gaccd --check-config, before a daemon exists: writes which of the files besides the certificates
 * (own_certificate.h) is no file. false: gaccd would not start. */
bool tcp_check_files(const struct conf *, FILE *to);

#endif
