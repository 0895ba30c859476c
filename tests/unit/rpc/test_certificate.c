/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of certificates that are refused, and of gaccd's own. Made with openssl, as operators make them; dates
 * that it cannot write are set here. */
#include "certify.h"
#include "rpc/certificate.h"
#include "rpc/credentials.h"
#include "support/suite.h"

#include <check.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char text[3][16384], why[RPC_CERTIFICATE_WHY];

/* NAME.pem, valid until the next with the same i. */
static const char *pem_of(int i, const char *name)
{
	FILE *file = fopen(path_of(0, name, "pem"), "re");
	ck_assert_ptr_nonnull(file);
	text[i][fread(text[i], 1, sizeof(text[i]) - 1, file)] = '\0';
	fclose(file);
	return text[i];
}

static bool known; /* after is_ok: of an authority in the file */

static bool is_ok(const char *pem, const char *chain, const char *ca, enum rpc_certificate_use use)
{
	snprintf(why, sizeof(why), "%s", "");
	return rpc_certificate_ok(pem, chain, ca, use, &known, why, sizeof(why));
}

static void refused(const char *name, enum rpc_certificate_use use, const char *begin, const char *end)
{
	ck_assert(!is_ok(pem_of(0, name), NULL, path_of(1, "ca", "pem"), use));
	ck_assert_msg(!strncmp(why, begin, strlen(begin)) && strstr(why, end), "%s", why);
}

/* NAME.pem again, signed by `authority`, from so many seconds from now on for an hour. */
static void set_dates(const char *name, const char *authority, long from)
{
	BIO *in = BIO_new_mem_buf(pem_of(0, name), -1);
	X509 *certificate = PEM_read_bio_X509(in, NULL, NULL, NULL);
	FILE *key_file = fopen(path_of(0, authority, "key"), "re"), *out;
	ck_assert_ptr_nonnull(key_file);
	EVP_PKEY *key = PEM_read_PrivateKey(key_file, NULL, NULL, NULL);
	X509_gmtime_adj(X509_getm_notBefore(certificate), from);
	X509_gmtime_adj(X509_getm_notAfter(certificate), from + 3600);
	ck_assert_int_gt(X509_sign(certificate, key, EVP_sha256()), 0);
	out = fopen(path_of(0, name, "pem"), "we");
	ck_assert_int_eq(PEM_write_X509(out, certificate), 1);
	fclose(out);
	fclose(key_file);
	EVP_PKEY_free(key);
	X509_free(certificate);
	BIO_free(in);
}

static const char *date(long from, char out[32])
{
	const time_t when = time(NULL) + from;
	struct tm tm;
	strftime(out, 32, "%Y-%m-%d", gmtime_r(&when, &tm));
	return out;
}

/* ---- those of others ---- */

START_TEST(good_ones)
{
	const char *const names[] = { "hub", "a", "boss", "plain" };
	for (size_t i = 0; i < 4; i++) {
		ck_assert_msg(is_ok(pem_of(0, names[i]), NULL, path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT),
			      "%s", why);
		ck_assert_msg(is_ok(pem_of(0, names[i]), "", path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_SERVER), "%s",
			      why);
	}
}
END_TEST

START_TEST(out_of_date)
{
	char from[32], end[128];
	set_dates("a", "ca", -86400);
	snprintf(end, sizeof(end), ") has expired, on %s ", date(-86400 + 3600, from));
	refused("a", RPC_CERTIFICATE_OF_CLIENT, "certificate \"a\" (role node/a, serial ", end);
	ck_assert_ptr_nonnull(strstr(why, " UTC: have the authority make another one (deploy/make-certs.sh)"));
	set_dates("hub", "ca", 86400);
	snprintf(end, sizeof(end), ") is valid from %s ", date(86400, from));
	refused("hub", RPC_CERTIFICATE_OF_SERVER, "certificate \"hub\" (role coordinator/hub, serial ", end);
	/* without the time: the text of a minute later would be news again */
	ck_assert_ptr_nonnull(
		strstr(why, " UTC on, which the clock here has not reached: set the clocks right, or wait until "
			    "then"));
	set_dates("a", "ca", -60);
	ck_assert(is_ok(pem_of(0, "a"), NULL, path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT));
	set_dates("ca", "ca", -86400);
	refused("a", RPC_CERTIFICATE_OF_CLIENT, "certificate \"a\" (role node/a, serial ",
		"): its authority \"authority\" is not valid (certificate has expired): renew that");
	set_dates("ca", "ca", 86400);
	snprintf(end, sizeof(end), "): its authority \"authority\" is valid from %s ", date(86400, from));
	refused("a", RPC_CERTIFICATE_OF_CLIENT, "certificate \"a\" (role node/a, serial ", end);
	ck_assert_ptr_nonnull(
		strstr(why, " UTC on, which the clock here has not reached: set the clocks right, or wait until "
			    "then"));
	ck_assert_ptr_null(strstr(why, "renew"));
}
END_TEST

START_TEST(of_another_authority)
{
	const char *const end = ") is of another authority than those in ";
	refused("mallory", RPC_CERTIFICATE_OF_CLIENT, "certificate \"mallory\" (role node/a, serial ", end);
	ck_assert_ptr_nonnull(strstr(why, "/ca.pem: use one that they have made"));
	new_authority(); /* of the same name: its signature is another */
	refused("a", RPC_CERTIFICATE_OF_CLIENT, "certificate \"a\" (role node/a, serial ", end);
	refused("hub", RPC_CERTIFICATE_OF_SERVER, "certificate \"hub\" (role coordinator/hub, serial ", end);
}
END_TEST

START_TEST(for_something_else)
{
	certify("guest", "DNS:x\\\\nextendedKeyUsage=serverAuth");
	certify_for("guest", "URI:spiffe://lab/node/guest", "serverAuth");
	certify_for("host", "URI:spiffe://lab/coordinator/host", "clientAuth");
	refused("guest", RPC_CERTIFICATE_OF_CLIENT, "certificate \"guest\" (role node/guest",
		") is not for clients, by its");
	refused("host", RPC_CERTIFICATE_OF_SERVER, "certificate \"host\" (role coordinator/host",
		") is not for servers, by");
	ck_assert(is_ok(pem_of(0, "guest"), NULL, path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_SERVER));
	ck_assert(is_ok(pem_of(0, "host"), NULL, path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT));
}
END_TEST

/* An authority that ours has made signs; who connects sends its certificate, too. */
START_TEST(over_another_authority)
{
	certify_between("middle");
	certify_by("middle", "leaf", "node");
	ck_assert_msg(is_ok(pem_of(0, "leaf"), pem_of(1, "middle"), path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT),
		      "%s", why);
	refused("leaf", RPC_CERTIFICATE_OF_CLIENT, "certificate \"leaf\" (role node/leaf", "is of another authority");
	/* a file with that one alone will do, as with gRPC */
	ck_assert(is_ok(pem_of(0, "leaf"), NULL, path_of(1, "middle", "pem"), RPC_CERTIFICATE_OF_CLIENT));
	ck_assert(!is_ok(pem_of(0, "leaf"), pem_of(1, "a"), path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT));
	/* a certificate that is no authority's makes none */
	certify_by("a", "forged", "node");
	ck_assert(!is_ok(pem_of(0, "forged"), pem_of(1, "a"), path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT));
	ck_assert_msg(strstr(why, "certificate \"forged\" (role node/forged"), "%s", why);
}
END_TEST

/* What TLS itself would not take. */
START_TEST(too_weak)
{
	certify_rsa("good", 2048, "sha256");
	certify_rsa("short", 1024, "sha256");
	certify_rsa("old", 2048, "sha1");
	ck_assert_msg(is_ok(pem_of(0, "good"), NULL, path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT), "%s", why);
	refused("short", RPC_CERTIFICATE_OF_CLIENT, "certificate \"short\" (role node/short, serial ",
		") is not valid (EE certificate key too weak): have the authority");
	refused("old", RPC_CERTIFICATE_OF_SERVER, "certificate \"old\" (role node/old, serial ",
		") is not valid (CA signature digest algorithm too weak): have the authority");
	certify_by("short", "leaf", "node");
	ck_assert(!is_ok(pem_of(0, "leaf"), pem_of(1, "short"), path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT));
	ck_assert_msg(strstr(why, "): its authority \"short\" is not valid (CA certificate key too weak)"), "%s", why);
}
END_TEST

/* Only what an authority has signed, which nobody can do in its name. */
START_TEST(whose_certificates_are_known)
{
	certify_rsa("short", 1024, "sha256");
	certify_rsa("old", 2048, "sha1");
	certify_for("guest", "URI:spiffe://lab/node/guest", "serverAuth");
	set_dates("a", "ca", -86400);
	set_dates("hub", "ca", 86400);
	static const char *const ours[] = { "short", "old", "guest", "a", "hub", "boss" };
	for (size_t i = 0; i < 6; i++) {
		const bool ok = is_ok(pem_of(0, ours[i]), NULL, path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT);
		ck_assert_msg(known && ok == !strcmp(ours[i], "boss"), "%s: %s", ours[i], why);
	}
	refused("mallory", RPC_CERTIFICATE_OF_CLIENT, "certificate \"mallory\"", "");
	ck_assert(!known);
	certify_by("boss", "forged", "node"); /* who has a certificate could make any number */
	ck_assert(!is_ok(pem_of(0, "forged"), pem_of(1, "boss"), path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT));
	ck_assert_msg(!known, "%s", why);
	new_authority(); /* as a stranger's of the same name */
	for (size_t i = 0; i < 6; i++) {
		ck_assert(!is_ok(pem_of(0, ours[i]), NULL, path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT));
		ck_assert_msg(!known, "%s: %s", ours[i], why);
	}
	ck_assert(!is_ok("", NULL, path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT) && !known);
	ck_assert(!is_ok(pem_of(0, "a"), NULL, "/nowhere/ca.pem", RPC_CERTIFICATE_OF_CLIENT) && known);
}
END_TEST

START_TEST(what_cannot_be_read)
{
	ck_assert(!is_ok("", NULL, path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT));
	ck_assert_str_eq(why, "its certificate cannot be read");
	ck_assert(!is_ok(NULL, NULL, path_of(1, "ca", "pem"), RPC_CERTIFICATE_OF_CLIENT));
	ck_assert(!is_ok(pem_of(0, "a"), NULL, "/nowhere/ca.pem", RPC_CERTIFICATE_OF_CLIENT));
	ck_assert_ptr_nonnull(strstr(why, "the authorities in /nowhere/ca.pem cannot be read (No such file"));
	ck_assert(!is_ok(pem_of(0, "a"), NULL, path_of(1, "a", "key"), RPC_CERTIFICATE_OF_CLIENT));
	ck_assert_ptr_nonnull(strstr(why, "cannot be read"));
}
END_TEST

/* ---- the own one ---- */

static struct rpc_own_certificate own;

static void look(const char *name, const char *key, const char *node, const char *address, bool dials)
{
	static char cert_path[512], key_path[512], ca_path[512];
	snprintf(cert_path, sizeof(cert_path), "%s", path_of(0, name, "pem"));
	snprintf(key_path, sizeof(key_path), "%s", path_of(0, key, "key"));
	snprintf(ca_path, sizeof(ca_path), "%s", path_of(0, "ca", "pem"));
	const struct rpc_tls_files files = { cert_path, key_path, ca_path };
	rpc_own_certificate(&files, node, address, dials, &own);
}

static void has_fault(const char *said)
{
	ck_assert_msg(strstr(own.fault, said), "%s", own.fault);
}

START_TEST(the_own_one)
{
	look("a", "a", "a", "127.0.0.1", true); /* for two days */
	ck_assert_str_eq(own.fault, "");
	ck_assert_msg(!strncmp(own.name, "certificate \"a\" (role node/a, serial ", 37), "%s", own.name);
	ck_assert_msg(strstr(own.note, ") expires on ") && strstr(own.note, "no restart is needed"), "%s", own.note);
	ck_assert(llabs(own.expires_unix - (int64_t)time(NULL) - 2 * 86400) < 600);
	certify_days("a", "URI:spiffe://lab/node/a" LOCAL, 30);
	look("a", "a", "a", "127.0.0.1", true);
	ck_assert_str_eq(own.note, "");
	look("a", "a", "a", "10.0.0.7", true);
	ck_assert_msg(strstr(own.note, ") does not name node.data_address, 10.0.0.7: "), "%s", own.note);
	ck_assert_str_eq(own.fault, "");
	certify_days("plain", "DNS:plain", 30); /* of no cluster: it has no data network */
	look("plain", "plain", "a", "10.0.0.7", false);
	ck_assert_str_eq(own.fault, "");
	ck_assert_str_eq(own.note, "");
	certify_days("hub", "URI:spiffe://lab/coordinator/hub" LOCAL, 30);
	look("hub", "hub", "hub", "127.0.0.1", false);
	ck_assert_str_eq(own.fault, "");
}
END_TEST

START_TEST(faults_of_the_own_one)
{
	look("a", "a", "b", "127.0.0.1", true);
	has_fault(") is for node a, and node.name is b: use the certificate of b, or set node.name");
	look("hub", "hub", "hub", "127.0.0.1", true);
	has_fault(": the role has to be node/hub, as this gaccd dials a coordinator: have the authority");
	look("plain", "plain", "a", "127.0.0.1", true);
	has_fault("certificate \"plain\" (no role, serial ");
	look("both", "both", "a", "127.0.0.1", false);
	has_fault("(a role that cannot be read, serial ");
	look("a", "a", "a", "127.0.0.1", false);
	has_fault(": the role has to be coordinator/a, as this gaccd coordinates");
	look("boss", "boss", "a", "127.0.0.1", false);
	has_fault("(role admin/jane, serial ");
	has_fault(": the role has to be coordinator/a, as this gaccd coordinates");
	look("boss", "boss", "a", "127.0.0.1", true);
	has_fault(": the role has to be node/a, as this gaccd dials a coordinator");
	look("a", "hub", "a", "127.0.0.1", true);
	has_fault("/hub.key cannot be read or is encrypted, or is not that of the certificate in ");
	look("mallory", "mallory", "a", "127.0.0.1", true);
	has_fault("is of another authority than those in ");
	look("nobody", "a", "a", "127.0.0.1", true);
	has_fault("no certificate can be read from ");
	ck_assert_str_eq(own.name, "");
	set_dates("a", "ca", -86400);
	look("a", "a", "a", "127.0.0.1", true);
	has_fault(") has expired, on ");
	ck_assert_int_lt(own.expires_unix, (int64_t)time(NULL));
	ck_assert_str_eq(own.note, "");
}
END_TEST

/* Nobody waits for who would write to a FIFO. */
START_TEST(no_regular_files)
{
	static const char *const kinds[][2] = { { "a", "pem" }, { "a", "key" }, { "ca", "pem" } };
	char kept[512], is_fifo[600];
	for (size_t i = 0; i < 3; i++) {
		const char *path = path_of(1, kinds[i][0], kinds[i][1]);
		snprintf(kept, sizeof(kept), "%s.kept", path);
		snprintf(is_fifo, sizeof(is_fifo), "%s is not a regular file: put the PEM file", path);
		ck_assert(!rename(path, kept) && !mkfifo(path, 0600));
		look("a", "a", "a", "127.0.0.1", true);
		has_fault(is_fifo);
		if (i == 2) {
			ck_assert(!is_ok(pem_of(0, "a"), NULL, path, RPC_CERTIFICATE_OF_CLIENT));
			ck_assert_msg(strstr(why, " cannot be read (not a regular file): mend the file"), "%s", why);
		}
		ck_assert(!unlink(path) && !rename(kept, path));
	}
}
END_TEST

/* gaccd on a terminal must not wait for a pass phrase. */
START_TEST(an_encrypted_key)
{
	int terminal, ended;
	encrypt_key("a");
	const pid_t pid = forkpty(&terminal, NULL, NULL, NULL);
	ck_assert_int_ge(pid, 0);
	if (!pid) {
		look("a", "a", "a", "127.0.0.1", true);
		_exit(strstr(own.fault, "/a.key cannot be read or is encrypted, or is not that of the ") ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(pid, &ended, 0), pid);
	ck_assert(WIFEXITED(ended) && !WEXITSTATUS(ended));
	close(terminal);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("certificate");
	TCase *t = tcase_create("certificates");
	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, certify_all, NULL);
	tcase_add_test(t, good_ones);
	tcase_add_test(t, out_of_date);
	tcase_add_test(t, of_another_authority);
	tcase_add_test(t, for_something_else);
	tcase_add_test(t, over_another_authority);
	tcase_add_test(t, too_weak);
	tcase_add_test(t, whose_certificates_are_known);
	tcase_add_test(t, what_cannot_be_read);
	tcase_add_test(t, the_own_one);
	tcase_add_test(t, faults_of_the_own_one);
	tcase_add_test(t, no_regular_files);
	tcase_add_test(t, an_encrypted_key);
	suite_add_tcase(s, t);
	return suite_run(s);
}
