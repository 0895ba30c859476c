/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of what goes between two members over Gloo, keyed by random words of all members' addresses: they find bytes
 * that were changed on the way, and connections of strangers. On the threads of a member. */
#include "coll/gloo_impl.h"

#include <string.h>
#ifdef XXHASH_DISPATCH
#include <xxh_x86dispatch.h> /* the same digests, by the widest vectors that this CPU has; xxhash.h uses the oldest ones */
#else
#include <xxhash.h>
#endif

_Static_assert(sizeof(((struct gloo_member *)0)->secret) >= XXH3_SECRET_SIZE_MIN, "XXH3 wants longer secrets");

/* splitmix64 */
static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

void gloo_make_secret(struct gloo_member *m, const uint64_t (*key)[2])
{
	XXH128_hash_t h = XXH3_128bits(key, m->base.n_parts * sizeof(*key));
	for (size_t i = 0; i < sizeof(m->secret) / sizeof(*m->secret); i += 2) {
		m->secret[i] = mix(h.low64 + i);
		m->secret[i + 1] = mix(h.high64 + i);
	}
}

uint64_t gloo_digest(const struct gloo_member *m, const void *bytes, size_t n)
{
	return XXH3_64bits_withSecret(bytes, n, m->secret, sizeof(m->secret));
}

uint64_t gloo_proof(const struct gloo_member *m, const struct gloo_hello *hello)
{
	return gloo_digest(m, hello, offsetof(struct gloo_hello, proof));
}

uint64_t gloo_digest_of(const struct gloo_member *m, uint64_t digest, uint32_t from, uint32_t to, uint64_t i)
{
	uint64_t place[] = { digest, m->begun, from, to, i };
	return gloo_digest(m, place, sizeof(place));
}

uint64_t gloo_digest_shares(const struct gloo_member *m, const uint64_t *bounds, const struct coll_division *d)
{
	uint64_t both[2] = { gloo_digest(m, bounds, ((d ? d->n_shares : m->base.n_parts) + 1) * sizeof(*bounds)),
			     d ? gloo_digest(m, d, sizeof(*d)) : 0 };
	return gloo_digest(m, both, sizeof(both));
}

uint64_t gloo_data_slot(const struct gloo_member *m, const struct gloo_shape *shape)
{
	uint64_t whole[] = { m->begun, gloo_digest(m, shape, sizeof(*shape)) };
	return gloo_digest(m, whole, sizeof(whole)) | UINT64_C(1) << 63;
}
