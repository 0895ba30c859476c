/* SPDX-License-Identifier: Apache-2.0 */
/* Judges certificates with OpenSSL and puts into words what is wrong. For the connections of the server and of the
 * channels to upstreams (credentials.c), and for gaccd itself, which looks at its own. Any thread. */
#include "rpc/certificate.h"

#include "base/regular.h"
#include "rpc/credentials.h"
#include "rpc/revoked.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_BETWEEN 10 /* certificates that a peer may send besides its own */
#define STRENGTH 2     /* OpenSSL's security level, that of TLS: RSA from 2048 bits, SHA-2 */
#define SOON_S (14 * INT64_C(86400))
#define TOO_EARLY ", which the clock here has not reached: set the clocks right, or wait until then"
#define MAKE_ANOTHER "have the authority make another one (deploy/make-certs.sh)"

/* ---- reading ---- */

/* Without it OpenSSL asks the terminal for a pass phrase, and the loop waits for the answer. gRPC tries this one. */
static char no_phrase[] = "";

static X509 *read_text(const char *pem)
{
	BIO *text = pem ? BIO_new_mem_buf(pem, -1) : NULL;
	X509 *certificate = text ? PEM_read_bio_X509(text, NULL, NULL, no_phrase) : NULL;
	BIO_free(text);
	return certificate;
}

static STACK_OF(X509) * read_all(BIO *text)
{
	STACK_OF(X509) *all = sk_X509_new_null();
	X509 *next;
	while (all && text && sk_X509_num(all) < MAX_BETWEEN && (next = PEM_read_bio_X509(text, NULL, NULL, no_phrase)))
		if (!sk_X509_push(all, next))
			X509_free(next);
	return all;
}

static void read_names(X509 *certificate, struct rpc_identity *out)
{
	GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
	for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
		const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
		if (name->type == GEN_URI)
			rpc_identity_add(out, (const char *)ASN1_STRING_get0_data(name->d.uniformResourceIdentifier),
					 (size_t)ASN1_STRING_length(name->d.uniformResourceIdentifier));
	}
	GENERAL_NAMES_free(names);
}

static X509 *read_file(const char *path)
{
	const char *why;
	FILE *file = regular_open(path, &why);
	X509 *certificate = file ? PEM_read_X509(file, NULL, NULL, no_phrase) : NULL;
	if (file)
		fclose(file);
	return certificate;
}

void rpc_certificate_cluster(const char *path, char out[RPC_CLUSTER_MAX + 1])
{
	struct rpc_identity own = { 0 };
	X509 *certificate = read_file(path);
	if (certificate)
		read_names(certificate, &own);
	X509_free(certificate);
	snprintf(out, RPC_CLUSTER_MAX + 1, "%s", own.is_bad ? "" : own.cluster);
}

/* ---- words ---- */

/* "2026-11-28 09:30 UTC" */
static const char *date_text(const ASN1_TIME *date, char out[32])
{
	struct tm tm;
	if (!ASN1_TIME_to_tm(date, &tm) || !strftime(out, 32, "%Y-%m-%d %H:%M UTC", &tm))
		snprintf(out, 32, "an unknown date");
	return out;
}

/* Others have chosen the names. */
static void make_plain(char *text)
{
	for (char *c = text; *c; c++)
		*c = *c < ' ' || *c > '~' || *c == '"' ? '?' : *c;
}

/* certificate "b" (role node/b, serial 0a1b) */
static void name_it(X509 *certificate, char *out, size_t n)
{
	struct rpc_identity identity = { 0 };
	char common[65] = "", role[RPC_ROLE_NAME_MAX + 24] = "no role", serial[REVOKED_SERIAL_MAX + 1] = "?";
	BIGNUM *number = ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), NULL);
	char *hex = number ? BN_bn2hex(number) : NULL;
	X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, common, sizeof(common));
	make_plain(common);
	read_names(certificate, &identity);
	if (identity.is_bad)
		snprintf(role, sizeof(role), "a role that cannot be read");
	else if (identity.role)
		snprintf(role, sizeof(role), "role %s/%s", rpc_role_word(identity.role), identity.name);
	if (hex)
		snprintf(serial, sizeof(serial), "%s", hex);
	for (char *c = serial; *c; c++)
		*c = *c >= 'A' && *c <= 'F' ? (char)(*c + 'a' - 'A') : *c;
	snprintf(out, n, "certificate \"%s\" (%s, serial %s)", common, role, serial);
	OPENSSL_free(hex);
	BN_free(number);
}

/* The certificate does not lead to an authority that is known here. */
static bool is_stranger(int error)
{
	switch (error) {
	case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
	case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
	case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
	case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
	case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
	case X509_V_ERR_CERT_SIGNATURE_FAILURE:
		return true;
	default:
		return false;
	}
}

/* What OpenSSL's number means for who has to mend it. Always the same of a certificate: who tells it tells it once
 * (credentials.c, node_dial.c). */
static void explain(X509 *certificate, int error, const char *ca, enum rpc_certificate_use use, char *why, size_t n_why)
{
	char name[256], date[32];
	name_it(certificate, name, sizeof(name));
	if (is_stranger(error))
		snprintf(why, n_why,
			 "%s is of another authority than those in %.200s: use one that they have made, or add its "
			 "authority there",
			 name, ca);
	else if (error == X509_V_ERR_CERT_HAS_EXPIRED)
		snprintf(why, n_why, "%s has expired, on %s: " MAKE_ANOTHER, name,
			 date_text(X509_get0_notAfter(certificate), date));
	else if (error == X509_V_ERR_CERT_NOT_YET_VALID)
		snprintf(why, n_why, "%s is valid from %s on" TOO_EARLY, name,
			 date_text(X509_get0_notBefore(certificate), date));
	else if (error == X509_V_ERR_INVALID_PURPOSE)
		snprintf(why, n_why, "%s is not for %s, by its extended key usage: " MAKE_ANOTHER, name,
			 use == RPC_CERTIFICATE_OF_CLIENT ? "clients" : "servers");
	else
		snprintf(why, n_why, "%s is not valid (%s): " MAKE_ANOTHER, name, X509_verify_cert_error_string(error));
}

/* ---- judging ---- */

/* The fault is that of an authority. */
static void explain_authority(X509 *certificate, X509 *authority, int error, char *why, size_t n_why)
{
	char name[256], date[32], common[65] = "";
	name_it(certificate, name, sizeof(name));
	X509_NAME_get_text_by_NID(X509_get_subject_name(authority), NID_commonName, common, sizeof(common));
	make_plain(common);
	if (error == X509_V_ERR_CERT_NOT_YET_VALID)
		snprintf(why, n_why, "%s: its authority \"%s\" is valid from %s on" TOO_EARLY, name, common,
			 date_text(X509_get0_notBefore(authority), date));
	else
		snprintf(why, n_why, "%s: its authority \"%s\" is not valid (%s): renew that, and what it has made",
			 name, common, X509_verify_cert_error_string(error));
}

/* The authorities in a file, which are read anew when it is another one; who connects may not make gaccd read it again
 * and again. For X509_STORE_free; NULL: it cannot be read, and *out_why says why. */
static X509_STORE *authorities(const char *ca, const char **out_why)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct {
		char path[256];
		struct stat of;
		X509_STORE *store; /* NULL: none */
	} kept;
	struct stat now;
	X509_STORE *store = NULL;
	*out_why = "no certificate";
	int fd = regular_open_fd(ca, out_why); /* X509_STORE_load_file would wait for a FIFO's writer */
	if (fd < 0)
		return NULL;
	const bool known = !fstat(fd, &now);
	close(fd);
	if (!known)
		return NULL;
	pthread_mutex_lock(&lock);
	const bool same = kept.store && !strcmp(kept.path, ca) && now.st_ino == kept.of.st_ino &&
			  now.st_dev == kept.of.st_dev && now.st_size == kept.of.st_size &&
			  !memcmp(&now.st_mtim, &kept.of.st_mtim, sizeof(now.st_mtim)) &&
			  !memcmp(&now.st_ctim, &kept.of.st_ctim, sizeof(now.st_ctim));
	if (!same) {
		X509_STORE_free(kept.store);
		kept.store = X509_STORE_new();
		kept.of = now;
		snprintf(kept.path, sizeof(kept.path), "%s", ca);
		if (kept.store && (strlen(ca) >= sizeof(kept.path) || !X509_STORE_load_file(kept.store, ca))) {
			X509_STORE_free(kept.store);
			kept.store = NULL;
		}
	}
	if (kept.store && X509_STORE_up_ref(kept.store))
		store = kept.store;
	pthread_mutex_unlock(&lock);
	return store;
}

/* Whether an authority has signed it, whatever its date, purpose and strength. The name of an authority alone would
 * show nothing: strangers can write it, and OpenSSL looks at purpose and strength before the signatures. */
static bool is_signed(X509 *certificate, STACK_OF(X509) * between, X509_STORE *store)
{
	X509_STORE_CTX *asked = X509_STORE_CTX_new();
	bool is = false;
	if (asked && X509_STORE_CTX_init(asked, store, certificate, between)) {
		X509_STORE_CTX_set_flags(asked, X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_NO_CHECK_TIME);
		X509_VERIFY_PARAM_set_auth_level(X509_STORE_CTX_get0_param(asked), 0);
		is = X509_verify_cert(asked) == 1;
	}
	X509_STORE_CTX_free(asked);
	return is;
}

static bool verify(X509 *certificate, STACK_OF(X509) * between, const char *ca, enum rpc_certificate_use use,
		   bool *out_known, char *why, size_t n_why)
{
	const char *unread;
	X509_STORE *store = authorities(ca, &unread);
	X509_STORE_CTX *asked = X509_STORE_CTX_new();
	bool ok = false;
	if (!store || !asked) {
		snprintf(why, n_why, "the authorities in %.200s cannot be read (%s): mend the file", ca,
			 store ? "no memory" : unread);
		*out_known = true;
	} else if (X509_STORE_CTX_init(asked, store, certificate, between)) {
		X509_STORE_CTX_set_purpose(asked, use == RPC_CERTIFICATE_OF_CLIENT ? X509_PURPOSE_SSL_CLIENT
										   : X509_PURPOSE_SSL_SERVER);
		/* as gRPC: an authority in the file is one, also if another has signed it */
		X509_STORE_CTX_set_flags(asked, X509_V_FLAG_PARTIAL_CHAIN);
		/* 0 unless it is set: keys and digests that can be broken */
		X509_VERIFY_PARAM_set_auth_level(X509_STORE_CTX_get0_param(asked), STRENGTH);
		ok = X509_verify_cert(asked) == 1;
		const int error = X509_STORE_CTX_get_error(asked);
		X509 *at = X509_STORE_CTX_get_current_cert(asked);
		if (!ok && at && X509_STORE_CTX_get_error_depth(asked) > 0 && !is_stranger(error))
			explain_authority(certificate, at, error, why, n_why);
		else if (!ok)
			explain(certificate, error, ca, use, why, n_why);
		*out_known = ok || (!is_stranger(error) && is_signed(certificate, between, store));
	}
	X509_STORE_CTX_free(asked);
	X509_STORE_free(store);
	ERR_clear_error();
	return ok;
}

bool rpc_certificate_ok(const char *pem, const char *chain, const char *ca, enum rpc_certificate_use use,
			bool *out_known, char *why, size_t n_why)
{
	X509 *certificate = read_text(pem);
	BIO *text = chain ? BIO_new_mem_buf(chain, -1) : NULL;
	STACK_OF(X509) *between = read_all(text);
	snprintf(why, n_why, "its certificate cannot be read");
	bool known = false;
	const bool ok = certificate && between && verify(certificate, between, ca, use, &known, why, n_why);
	if (out_known)
		*out_known = known;
	sk_X509_pop_free(between, X509_free);
	BIO_free(text);
	X509_free(certificate);
	ERR_clear_error();
	return ok;
}

/* ---- the own one ---- */

static bool has_key(X509 *certificate, const char *path)
{
	const char *why;
	FILE *file = regular_open(path, &why);
	EVP_PKEY *key = file ? PEM_read_PrivateKey(file, NULL, NULL, no_phrase) : NULL;
	const bool fits = key && X509_check_private_key(certificate, key) == 1;
	EVP_PKEY_free(key);
	if (file)
		fclose(file);
	return fits;
}

static int64_t expiry(X509 *certificate)
{
	struct tm tm;
	return ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &tm) ? (int64_t)timegm(&tm) : 0;
}

/* Whether the role is one that the other side takes: a coordinator takes nodes, and nodes a coordinator. Clients take
 * any server of the right name, so a gaccd without nodes needs no role; that of an administrator is never right, as it
 * is for who gives orders. */
static void judge_role(const struct rpc_identity *own, const char *node, bool dials, struct rpc_own_certificate *out)
{
	const enum rpc_role wanted = dials ? RPC_ROLE_NODE : RPC_ROLE_COORDINATOR;
	if (own->is_bad || (own->role != wanted && (dials || own->role != RPC_ROLE_NONE)))
		snprintf(out->fault, sizeof(out->fault),
			 "%s: the role has to be %s/%.64s, as this gaccd %s: " MAKE_ANOTHER, out->name,
			 rpc_role_word(wanted), node, dials ? "dials a coordinator" : "coordinates");
	else if (dials && strcmp(own->name, node) != 0)
		snprintf(out->fault, sizeof(out->fault),
			 "%s is for node %s, and node.name is %.64s: use the certificate of %.64s, or set node.name",
			 out->name, own->name, node, node);
}

static void judge_note(X509 *certificate, const struct rpc_identity *own, const char *address,
		       struct rpc_own_certificate *out)
{
	char date[32];
	if (out->expires_unix - (int64_t)time(NULL) < SOON_S)
		snprintf(out->note, sizeof(out->note), "%s expires on %s: " MAKE_ANOTHER "; no restart is needed",
			 out->name, date_text(X509_get0_notAfter(certificate), date));
	else if (own->role && X509_check_ip_asc(certificate, address, 0) != 1)
		snprintf(out->note, sizeof(out->note),
			 "%s does not name node.data_address, %s: is that this node's address on the data network?",
			 out->name, address);
}

/* The first of `all` is the own one. */
static void judge_own(STACK_OF(X509) * all, const struct rpc_tls_files *files, const char *node, const char *address,
		      bool dials, struct rpc_own_certificate *out)
{
	const enum rpc_certificate_use use = dials ? RPC_CERTIFICATE_OF_CLIENT : RPC_CERTIFICATE_OF_SERVER;
	struct rpc_identity identity = { 0 };
	bool known;
	X509 *own = sk_X509_value(all, 0);
	name_it(own, out->name, sizeof(out->name));
	read_names(own, &identity);
	out->expires_unix = expiry(own);
	if (!has_key(own, files->key))
		snprintf(
			out->fault, sizeof(out->fault),
			"the key in %.240s cannot be read or is encrypted, or is not that of the certificate in %.240s",
			files->key, files->cert);
	else if (verify(own, all, files->ca, use, &known, out->fault, sizeof(out->fault)))
		judge_role(&identity, node, dials, out);
	if (!*out->fault)
		judge_note(own, &identity, address, out);
}

void rpc_own_certificate(const struct rpc_tls_files *files, const char *node, const char *address, bool dials,
			 struct rpc_own_certificate *out)
{
	const char *why;
	FILE *opened = regular_open(files->cert, &why);
	BIO *file = opened ? BIO_new_fp(opened, BIO_CLOSE) : NULL;
	STACK_OF(X509) *all = read_all(file);
	const char *odd = regular_is_not(files->cert)  ? files->cert
			  : regular_is_not(files->key) ? files->key
			  : regular_is_not(files->ca)  ? files->ca
						       : NULL;
	*out = (struct rpc_own_certificate){ 0 };
	if (odd)
		snprintf(out->fault, sizeof(out->fault), "%.300s is not a regular file: put the PEM file itself there",
			 odd);
	else if (sk_X509_num(all) > 0)
		judge_own(all, files, node, address, dials, out);
	else
		snprintf(out->fault, sizeof(out->fault), "no certificate can be read from %.300s", files->cert);
	sk_X509_pop_free(all, X509_free);
	BIO_free(file);
	ERR_clear_error();
}
