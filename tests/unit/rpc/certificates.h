/* SPDX-License-Identifier: Apache-2.0 */
/* Two servers (two_servers.h) that know each other by certificates. */
#ifndef GACC_TESTS_CERTIFICATES_H
#define GACC_TESTS_CERTIFICATES_H

#include "certify.h"

/* set_up with a hub that has this certificate. */
void set_up_with(const char *hubs_certificate);
/* The node's upstream with this certificate. */
void dial_as(const char *who, const char *server_name);

#endif
