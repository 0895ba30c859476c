/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates for tests, made with openssl in a folder of the test. */
#ifndef GACC_TESTS_CERTIFY_H
#define GACC_TESTS_CERTIFY_H

#define LOCAL ",IP:127.0.0.1"

/* An authority; and of it, for two days: hub (a coordinator), a (a node), boss (an admin), plain (no role), both (two
 * roles), far and farhub (of another cluster); and mallory, signed by itself. */
void certify_all(void);
/* Another authority in the place of the first; what that has signed stays. */
void new_authority(void);
/* NAME.pem and NAME.key, signed by the authority; `san` are its subject alternative names. */
void certify(const char *name, const char *san);
void certify_days(const char *name, const char *san, int days);
/* use: the extended key usage, "serverAuth" */
void certify_for(const char *name, const char *san, const char *use);
/* Of the role ROLE/NAME, signed by another than the authority. */
void certify_by(const char *authority, const char *name, const char *role);
/* An authority that the authority has made. */
void certify_between(const char *name);
/* Of the role node/NAME, with an RSA key of so many bits, signed with `digest` ("sha256"); it may sign others. */
void certify_rsa(const char *name, int bits, const char *digest);
/* NAME.key is encrypted from now on, with a pass phrase. */
void encrypt_key(const char *name);
/* Puts the certificate of `authority` behind that of `name`, in its file. */
void join_chain(const char *name, const char *authority);
/* Of NAME.KIND; valid until the next with the same i (0 to 2). */
const char *path_of(int i, const char *name, const char *kind);

#endif
