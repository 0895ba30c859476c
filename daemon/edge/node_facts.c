/* SPDX-License-Identifier: Apache-2.0 */
/* Collects what a node says of itself: for node_dial.c, and for the coordinator's own row among the nodes. Loop thread.
 */
#include "edge/node_facts.h"

#include "math/kernels.h"
#include "proto/version.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Sixteen bytes from the text of the kernel, which is a UUID; zero if there is none. */
static void read_boot_id(uint8_t out[16])
{
	char text[64] = "";
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	size_t n = 0;
	unsigned byte;
	memset(out, 0, 16);
	if (!f)
		return;
	if (fgets(text, sizeof(text), f))
		for (const char *at = text; n < 16 && *at; at++)
			if (*at != '-' && sscanf(at, "%2x", &byte) == 1) {
				out[n++] = (uint8_t)byte;
				at++;
			}
	fclose(f);
}

static uint64_t half(const uint8_t bytes[8])
{
	uint64_t out = 0;
	for (int i = 0; i < 8; i++)
		out = out << 8 | bytes[i];
	return out;
}

void node_uuid_halves(const uint8_t uuid[16], uint64_t *high, uint64_t *low)
{
	*high = half(uuid);
	*low = half(uuid + 8);
}

struct member_beat node_beat(const struct daemon *d)
{
	return (struct member_beat){ .memory_limit = d->node.conf->limits.host_memory,
				     .memory_used = d->node.host_bytes };
}

void node_build(const struct daemon *d, struct member_facts *out)
{
	const struct conf *c = d->node.conf;
	const struct kernels *k = kernels_get(strcmp(c->engine.kernels, "auto") ? c->engine.kernels : NULL);
	*out = (struct member_facts){ .kernels_revision = KERNELS_REVISION };
	snprintf(out->node, sizeof(out->node), "%s", c->node.name);
	snprintf(out->version, sizeof(out->version), "%s", GACC_VERSION);
	snprintf(out->data_address, sizeof(out->data_address), "%s", c->node.data_address);
	snprintf(out->coll, sizeof(out->coll), "%s", NODE_COLL);
	snprintf(out->kernels, sizeof(out->kernels), "%s", k ? k->name : "none");
}

void node_facts(const struct daemon *d, struct member_facts *out)
{
	const struct member_beat beat = node_beat(d);
	node_build(d, out);
	out->incarnation = d->node.incarnation;
	out->protocol_min = PEER_PROTOCOL_MIN;
	out->protocol_max = PEER_PROTOCOL;
	out->cpus = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
	out->memory_limit = beat.memory_limit;
	out->memory_used = beat.memory_used;
	read_boot_id(out->boot_id);
}
