/* SPDX-License-Identifier: Apache-2.0 */
#include "certify.h"

#include "support/scratch.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static char dir[SCRATCH_PATH], paths[3][SCRATCH_PATH + 32];

__attribute__((format(printf, 1, 2))) static void shell(const char *format, ...)
{
	char command[1400], whole[1600];
	va_list list;
	va_start(list, format);
	vsnprintf(command, sizeof(command), format, list);
	va_end(list);
	snprintf(whole, sizeof(whole), "cd %s && { %s; } >/dev/null 2>&1", dir, command);
	ck_assert_msg(system(whole) == 0, "%s", command);
}

#define NEW_KEY "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "

/* `more`: arguments of openssl req */
static void make(const char *authority, const char *name, const char *more, int days)
{
	shell(NEW_KEY "-subj /CN=%s -keyout %s.key %s -out %s.csr && openssl x509 -req -in %s.csr -CA %s.pem -CAkey "
		      "%s.key -CAcreateserial -days %d -copy_extensions copy -out %s.pem",
	      name, name, more, name, name, authority, authority, days, name);
}

void certify_days(const char *name, const char *san, int days)
{
	char more[300];
	snprintf(more, sizeof(more), "-addext subjectAltName=%s", san);
	make("ca", name, more, days);
}

void certify(const char *name, const char *san)
{
	certify_days(name, san, 2);
}

void certify_for(const char *name, const char *san, const char *use)
{
	char more[300];
	snprintf(more, sizeof(more), "-addext subjectAltName=%s -addext extendedKeyUsage=%s", san, use);
	make("ca", name, more, 2);
}

void certify_by(const char *authority, const char *name, const char *role)
{
	char more[300];
	snprintf(more, sizeof(more), "-addext subjectAltName=URI:spiffe://lab/%s/%s" LOCAL, role, name);
	make(authority, name, more, 2);
}

void certify_between(const char *name)
{
	make("ca", name, "-addext basicConstraints=critical,CA:TRUE", 2);
}

void certify_rsa(const char *name, int bits, const char *digest)
{
	shell("openssl req -newkey rsa:%d -nodes -subj /CN=%s -addext basicConstraints=critical,CA:TRUE -addext "
	      "subjectAltName=URI:spiffe://lab/node/%s -keyout %s.key -out %s.csr && openssl x509 -req -in %s.csr -CA "
	      "ca.pem -CAkey ca.key -CAcreateserial -days 2 -copy_extensions copy -%s -out %s.pem",
	      bits, name, name, name, name, name, digest, name);
}

void encrypt_key(const char *name)
{
	shell("openssl pkey -aes256 -passout pass:secret -in %s.key -out plain && mv plain %s.key", name, name);
}

void join_chain(const char *name, const char *authority)
{
	shell("cat %s.pem >> %s.pem", authority, name);
}

void new_authority(void)
{
	shell(NEW_KEY "-x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.pem");
}

void certify_all(void)
{
	ck_assert(scratch_make(dir));
	new_authority();
	certify("hub", "URI:spiffe://lab/coordinator/hub" LOCAL);
	certify("a", "URI:spiffe://lab/node/a" LOCAL);
	certify("boss", "URI:spiffe://lab/admin/jane" LOCAL);
	certify("plain", "DNS:plain" LOCAL);
	certify("far", "URI:spiffe://elsewhere/node/a" LOCAL);
	certify("farhub", "URI:spiffe://elsewhere/coordinator/hub" LOCAL);
	certify("both", "URI:spiffe://lab/node/a,URI:spiffe://lab/admin/jane" LOCAL);
	shell(NEW_KEY "-x509 -days 2 -subj /CN=mallory -addext subjectAltName=URI:spiffe://lab/node/a -keyout "
		      "mallory.key -out mallory.pem");
}

const char *path_of(int i, const char *name, const char *kind)
{
	snprintf(paths[i], sizeof(paths[i]), "%s/%s.%s", dir, name, kind);
	return paths[i];
}
