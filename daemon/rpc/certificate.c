/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the cluster that this process's own certificate names, to refuse those of others. For the server's TCP listener
 * and the channel to an upstream. Loop thread. */
#include "rpc/certificate.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>

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

void rpc_certificate_cluster(const char *path, char out[RPC_CLUSTER_MAX + 1])
{
	struct rpc_identity own = { 0 };
	FILE *file = fopen(path, "re");
	X509 *certificate = file ? PEM_read_X509(file, NULL, NULL, NULL) : NULL;
	if (certificate)
		read_names(certificate, &own);
	X509_free(certificate);
	if (file)
		fclose(file);
	snprintf(out, RPC_CLUSTER_MAX + 1, "%s", own.is_bad ? "" : own.cluster);
}
