/* SPDX-License-Identifier: Apache-2.0 */
/* Makes gRPC's credentials of certificates, keys and authorities in PEM files, which gRPC reads again when they have
 * changed, and checks the certificates of clients and of a coordinator. Loop thread, at the start; the checks on any
 * thread. */
#include "rpc/credentials.h"

#include "base/log.h"
#include "base/regular.h"
#include "rpc/certificate.h"
#include "rpc/refusals.h"
#include "rpc/revoked.h"
#include "rpc/role.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/string_util.h>
#include <openssl/ssl.h>

#define RELOAD_S 2	       /* how often the files are looked at */
#define CHAIN_BYTES (10 << 10) /* of the certificates that the other side may send: five with RSA keys of 4096 bits */

bool rpc_tls_complete(const struct rpc_tls_files *files)
{
	return files->cert && files->key && files->ca;
}

bool rpc_tls_none(const struct rpc_tls_files *files)
{
	return !files->cert && !files->key && !files->ca;
}

/* ---- what a handshake may cost ---- */

/* libssl's, which gRPC calls for all of its connections and has no arguments for the rest. gRPC asks for no
 * verification here (set_verifier), but OpenSSL does it all the same, only to ignore what comes out: with each
 * signature of a chain as long as a stranger likes, on the thread that serves everybody. With the depth 0 no signature
 * is looked at; certificates are still parsed, which the bytes limit. If gRPC asked for verification after all, the
 * depth would make it refuse too much, not too little. Tickets would let clients resume sessions, which ours do not. */
__attribute__((visibility("default"))) SSL_CTX *SSL_CTX_new(const SSL_METHOD *method)
{
	SSL_CTX *made = SSL_CTX_new_ex(NULL, NULL, method);
	if (made) {
		SSL_CTX_set_verify_depth(made, 0);
		SSL_CTX_set_max_cert_list(made, CHAIN_BYTES);
		SSL_CTX_set_num_tickets(made, 0);
	}
	return made;
}

/* ---- files ---- */

/* gRPC reads the files itself, again and again; what it cannot use, it only notes in its log. So they are looked at
 * before. */
static bool pem_ok(const char *path, const char *what)
{
	const char *why = NULL;
	char *text = NULL;
	FILE *file = regular_open(path, &why);
	size_t n = 0;
	bool read = file && getdelim(&text, &n, 0, file) >= 0;
	bool ok = read && strstr(text, what);
	if (!read)
		log_error("cannot read %s: %s", path, why ? why : strerror(errno));
	else if (!ok)
		log_error("%s: has no \"%s\"", path, what);
	free(text);
	if (file)
		fclose(file);
	return ok;
}

/* With a provider that reads the files again when they have changed. NULL: a file cannot be used. */
static grpc_tls_credentials_options *make_options(const struct rpc_tls_files *files)
{
	bool ok = pem_ok(files->cert, "BEGIN CERTIFICATE");
	ok = pem_ok(files->key, "PRIVATE KEY") && ok;
	ok = pem_ok(files->ca, "BEGIN CERTIFICATE") && ok;
	if (!ok)
		return NULL;
	grpc_tls_credentials_options *options = grpc_tls_credentials_options_create();
	grpc_tls_certificate_provider *provider =
		grpc_tls_certificate_provider_file_watcher_create(files->key, files->cert, files->ca, RELOAD_S);
	grpc_tls_credentials_options_set_certificate_provider(options, provider);
	grpc_tls_certificate_provider_release(provider);
	grpc_tls_credentials_options_watch_root_certs(options);
	grpc_tls_credentials_options_watch_identity_key_cert_pairs(options);
	return options;
}

/* Has `external` check the certificates instead of gRPC, which would not say what is wrong with one. */
static void set_verifier(grpc_tls_credentials_options *options, grpc_tls_certificate_verifier_external *external)
{
	grpc_tls_certificate_verifier *verifier = grpc_tls_certificate_verifier_external_create(external);
	grpc_tls_credentials_options_set_certificate_verifier(options, verifier);
	grpc_tls_certificate_verifier_release(verifier);
}

static bool is_valid(const grpc_tls_custom_verification_check_request *request, const char *ca,
		     enum rpc_certificate_use use, bool *out_known, char *why, size_t n_why)
{
	return rpc_certificate_ok(request->peer_info.peer_cert, request->peer_info.peer_cert_full_chain, ca, use,
				  out_known, why, n_why);
}

static void cancel(void *user_data, grpc_tls_custom_verification_check_request *request)
{
}

/* ---- certificates of clients ---- */

static void tell(const char *why, bool known)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct refusals told;
	struct timespec now;
	bool last;
	clock_gettime(CLOCK_MONOTONIC, &now);
	pthread_mutex_lock(&lock);
	const bool is_news = refusals_add(&told, why, known, now.tv_sec, &last);
	pthread_mutex_unlock(&lock);
	if (is_news)
		log_warn("a connection is refused: %s%s", why,
			 !last	 ? ""
			 : known ? " (of other certificates of these authorities nothing is told for some minutes)"
				 : " (of other certificates of unknown authorities nothing is told for some minutes)");
}

struct acceptance {
	grpc_tls_certificate_verifier_external external;
	char ca[]; /* path */
};

static int verify_client(void *user_data, grpc_tls_custom_verification_check_request *request,
			 grpc_tls_on_custom_verification_check_done_cb callback, void *callback_arg,
			 grpc_status_code *out_status, char **out_why)
{
	const struct acceptance *a = user_data;
	char why[RPC_CERTIFICATE_WHY];
	bool known;
	if (is_valid(request, a->ca, RPC_CERTIFICATE_OF_CLIENT, &known, why, sizeof(why))) {
		*out_status = GRPC_STATUS_OK;
		return 1;
	}
	tell(why, known);
	*out_status = GRPC_STATUS_UNAUTHENTICATED;
	*out_why = gpr_strdup(why);
	return 1;
}

static void drop_acceptance(void *user_data)
{
	free(user_data);
}

struct grpc_server_credentials *rpc_tls_server(const struct rpc_tls_files *files)
{
	struct acceptance *a = calloc(1, sizeof(*a) + strlen(files->ca) + 1);
	grpc_tls_credentials_options *options = a ? make_options(files) : NULL;
	if (!options) {
		free(a);
		return NULL;
	}
	strcpy(a->ca, files->ca);
	a->external = (grpc_tls_certificate_verifier_external){
		.user_data = a, .verify = verify_client, .cancel = cancel, .destruct = drop_acceptance
	};
	/* that the client has the key is checked by TLS, the rest by verify_client */
	grpc_tls_credentials_options_set_cert_request_type(
		options, GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
	set_verifier(options, &a->external);
	return grpc_tls_server_credentials_create(options);
}

/* ---- the coordinator's certificate ---- */

/* Checks the certificate of a server, on any thread of gRPC's. gRPC holds it, and whoever asks what was seen. */
struct rpc_tls_peer {
	grpc_tls_certificate_verifier_external external;
	grpc_tls_certificate_verifier *host_name; /* gRPC's own check, which ours would replace */
	atomic_uint holders;
	pthread_mutex_t mutex;
	char serial[REVOKED_SERIAL_MAX + 1]; /* of the newest connection, under the mutex; "": there was none */
	char cluster[RPC_CLUSTER_MAX + 1];   /* of the own certificate; "": none is named */
	char ca[];			     /* path */
};

static bool is_coordinator(const struct rpc_tls_peer *peer, const grpc_tls_custom_verification_check_request *request,
			   char serial[REVOKED_SERIAL_MAX + 1], char *why, size_t n_why)
{
	struct rpc_identity identity = { 0 };
	for (size_t i = 0; i < request->peer_info.san_names.uri_names_size; i++) {
		const char *uri = request->peer_info.san_names.uri_names[i];
		rpc_identity_add(&identity, uri, strlen(uri));
	}
	const char *name = request->peer_info.common_name ? request->peer_info.common_name : "";
	const char *pem = request->peer_info.peer_cert ? request->peer_info.peer_cert : "";
	if (!is_valid(request, peer->ca, RPC_CERTIFICATE_OF_SERVER, NULL, why, n_why))
		return false;
	if (!revoked_serial(pem, strlen(pem), serial) || revoked_has(serial))
		snprintf(why, n_why, "certificate \"%.100s\" (serial %s) is revoked", name, serial);
	else if (identity.is_bad)
		snprintf(why, n_why, "certificate \"%.100s\": its URIs name several roles, or one without a name",
			 name);
	else if (identity.role == RPC_ROLE_NONE)
		snprintf(why, n_why, "certificate \"%.100s\" has no role; needed: coordinator", name);
	else if (identity.role != RPC_ROLE_COORDINATOR)
		snprintf(why, n_why, "certificate \"%.100s\" has the role %s/%s; needed: coordinator", name,
			 rpc_role_word(identity.role), identity.name);
	else if (rpc_identity_is_foreign(&identity, peer->cluster))
		snprintf(why, n_why,
			 "certificate \"%.100s\" is of another cluster, \"%s\", and that of this gaccd of \"%s\"", name,
			 identity.cluster, peer->cluster);
	else
		return true;
	return false;
}

static void note(struct rpc_tls_peer *peer, const char *serial)
{
	pthread_mutex_lock(&peer->mutex);
	snprintf(peer->serial, sizeof(peer->serial), "%s", serial);
	pthread_mutex_unlock(&peer->mutex);
}

static int verify(void *user_data, grpc_tls_custom_verification_check_request *request,
		  grpc_tls_on_custom_verification_check_done_cb callback, void *callback_arg,
		  grpc_status_code *out_status, char **out_why)
{
	struct rpc_tls_peer *peer = user_data;
	char serial[REVOKED_SERIAL_MAX + 1] = "", why[RPC_CERTIFICATE_WHY];
	if (!is_coordinator(peer, request, serial, why, sizeof(why))) {
		*out_why = gpr_strdup(why);
		*out_status = GRPC_STATUS_PERMISSION_DENIED;
		return 1;
	}
	if (!grpc_tls_certificate_verifier_verify(peer->host_name, request, callback, callback_arg, out_status,
						  out_why))
		return 0;
	if (*out_status == GRPC_STATUS_OK)
		note(peer, serial);
	return 1;
}

void rpc_tls_peer_drop(struct rpc_tls_peer *peer)
{
	if (!peer || atomic_fetch_sub(&peer->holders, 1) > 1)
		return;
	grpc_tls_certificate_verifier_release(peer->host_name);
	pthread_mutex_destroy(&peer->mutex);
	free(peer);
}

static void destruct(void *user_data)
{
	rpc_tls_peer_drop(user_data);
}

bool rpc_tls_peer_revoked(struct rpc_tls_peer *peer, char out_serial[REVOKED_SERIAL_MAX + 1])
{
	pthread_mutex_lock(&peer->mutex);
	memcpy(out_serial, peer->serial, sizeof(peer->serial));
	pthread_mutex_unlock(&peer->mutex);
	return out_serial[0] && revoked_has(out_serial);
}

/* With one holder. */
static struct rpc_tls_peer *make_peer(const char *ca)
{
	struct rpc_tls_peer *peer = calloc(1, sizeof(*peer) + strlen(ca) + 1);
	if (!peer)
		return NULL;
	strcpy(peer->ca, ca);
	peer->external = (grpc_tls_certificate_verifier_external){
		.user_data = peer, .verify = verify, .cancel = cancel, .destruct = destruct
	};
	peer->host_name = grpc_tls_certificate_verifier_host_name_create();
	pthread_mutex_init(&peer->mutex, NULL);
	atomic_init(&peer->holders, 1);
	return peer;
}

struct grpc_channel_credentials *rpc_tls_client(const struct rpc_tls_files *files, struct rpc_tls_peer **out_peer)
{
	struct rpc_tls_peer *peer = make_peer(files->ca);
	grpc_tls_credentials_options *options = peer ? make_options(files) : NULL;
	if (!options) {
		rpc_tls_peer_drop(peer);
		return NULL;
	}
	rpc_certificate_cluster(files->cert, peer->cluster);
	atomic_fetch_add(&peer->holders, 1);
	grpc_tls_credentials_options_set_verify_server_cert(options, 0);
	set_verifier(options, &peer->external);
	*out_peer = peer;
	return grpc_tls_credentials_create(options);
}
