/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates for tests of two servers, made with openssl in a folder of the test. */
#ifndef GACC_TESTS_CERTIFICATES_H
#define GACC_TESTS_CERTIFICATES_H

#define LOCAL ",IP:127.0.0.1"

/* An authority; and of it: hub (a coordinator), a (a node), boss (an admin), plain (no role), both (two roles); and
 * mallory, signed by itself. */
void certify_all(void);
/* Another authority in the place of the first; what that has signed stays. */
void new_authority(void);
/* NAME.pem and NAME.key, signed by the authority; `san` are its subject alternative names. */
void certify(const char *name, const char *san);
/* Of NAME.KIND; valid until the next with the same i (0 to 2). */
const char *path_of(int i, const char *name, const char *kind);

/* set_up with a hub that has this certificate. */
void set_up_with(const char *hubs_certificate);
/* The node's upstream with this certificate. */
void dial_as(const char *who, const char *server_name);

#endif
