/* SPDX-License-Identifier: Apache-2.0 */
/* gaccd's own certificate: looked at once a minute, and whenever a coordinator cannot be reached. An operator is told
 * when others will refuse it, or soon will. Loop thread. */
#ifndef GACC_EDGE_OWN_CERTIFICATE_H
#define GACC_EDGE_OWN_CERTIFICATE_H

#include "edge/daemon.h"
#include "rpc/certificate.h"

#include <stdio.h>

/* false: this configuration has none, and *out is empty. Reads the files. */
bool own_certificate_look(const struct conf *, struct rpc_own_certificate *out);
/* Looks again when it is time, and tells events Certificate. */
void own_certificate_tick(struct daemon *, struct now);
/* For gaccd --check-config, before a daemon exists: writes what is wrong. false: it cannot be used. */
bool own_certificate_check(const struct conf *, FILE *to);

#endif
